"""The nodes of a simulated fleet: pages written by our own code, of jobs that start again and nodes that are lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from exporter.collectors import topology
from exporter.ledger import RETENTION
from exporter.model import Sample
from exporter.page import Pages
from exporter.profile import Profile
from exporter.views import prometheus
from tests import typical_node

PER_LEAF, PER_RACK = 32, 8
TURNS = 8
"""Pages that counters go through; then they start again, as of an exporter that restarted."""
KINDS = ("training",) * 8 + ("inference", "idle")
"""Of ten nodes one after the other."""
_PROCESS = b'pid="1000'


@dataclass
class _Node:
    run: int = 0
    """How often its job has started again."""
    restarted: float = -RETENTION
    """When it did so last, on time.monotonic."""
    lost: bool = False


@dataclass
class Fleet:
    """Serves /N for node N: a page by the time, its job and its place. Counters grow from one interval to the next."""

    folder: Path
    nodes: int
    interval: float
    """Seconds between two scrapes."""
    profile: Profile
    mixed: bool = True
    """Whether the nodes are of all KINDS; else all of them train."""
    _nodes: list[_Node] = field(init=False)

    def __post_init__(self) -> None:
        self._nodes = [_Node() for _ in range(self.nodes)]
        self._pages = {kind: self._turns(kind) for kind in sorted(set(KINDS))}
        self._job = lru_cache(1024)(self._job_of)
        self.server = _Server(self)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def kind(self, node: int) -> str:
        return KINDS[node % len(KINDS)] if self.mixed else KINDS[0]

    def page_size(self, kind: str) -> tuple[int, int]:
        """Return the lines of samples of a node, and the bytes of its page."""
        page = self._pages[kind][-1]
        return sum(not line.startswith(b"#") for line in page.splitlines()), len(page)

    def targets(self) -> list[dict[str, object]]:
        """Return what is scraped, as Prometheus' static_configs have it."""
        address = f"127.0.0.1:{self.server.server_port}"
        return [
            {"targets": [address], "labels": {"__metrics_path__": f"/{node}", "instance": f"n{node}"}}
            for node in range(self.nodes)
        ]

    def restart(self, nodes: Iterable[int]) -> None:
        """Replace the jobs of these nodes: other pids, pods, containers and communicators. Lost nodes answer again."""
        for node in nodes:
            state = self._nodes[node]
            self._nodes[node] = _Node(state.run + 1, -RETENTION if state.lost else time.monotonic())

    def lose(self, nodes: Iterable[int]) -> None:
        """Make nodes refuse every request."""
        for node in nodes:
            self._nodes[node].lost = True

    def page(self, node: int) -> bytes | None:
        """Return the page of a node as of now; None while it is lost."""
        state, kind = self._nodes[node], self.kind(node)
        if state.lost:
            return None
        turn = int(time.time() / self.interval) % TURNS
        place = {"leaf": f"leaf{node // PER_LEAF}", "rack": f"r{node // PER_RACK}", "zone": "z1"}
        parts = [self._job(kind, turn, state.run, False), prometheus.render([topology.INFO.sample(1, place)]).text]
        if time.monotonic() - state.restarted < RETENTION:
            parts.append(self._job(kind, TURNS - 1, state.run - 1, True))
        return b"".join(parts)

    def _turns(self, kind: str) -> list[bytes]:
        reduced = Pages(100_000, Profile.DEBUG)
        pages = []
        for turn in range(1, TURNS + 1):
            samples = _samples(kind, self.folder / kind / str(turn), turn)
            pages.append(prometheus.render(reduced.within(lambda made=samples: made, None, self.profile)).text)
        return pages

    def _job_of(self, kind: str, turn: int, run: int, ended: bool) -> bytes:
        """Return a page with the names of a run of the job; of one that has ended, what the exporter keeps of it."""
        page = self._pages[kind][turn]
        if ended:
            page = b"".join(line for line in page.splitlines(True) if _PROCESS in line)
        for before, after in _renamed(run).items():
            page = page.replace(before, after)
        return page


def _samples(kind: str, folder: Path, turn: int) -> list[Sample]:
    if kind == "training":
        return typical_node.node(folder, turn)
    job = (*typical_node.cuda_job(turn), *typical_node.jobs()) if kind == "inference" else ()
    idle = (*typical_node.gpus(turn), *typical_node.pci(turn), *typical_node.ports(folder), *typical_node.own())
    return [*job, *(it for it in idle if job or not it.labels.get("pid"))]


def _renamed(run: int) -> Mapping[bytes, bytes]:
    """Return what names the first run of the job, and what names this one in its place."""
    if not run:
        return {}
    return {
        _PROCESS: f'pid="{1000 + run}'.encode(),
        b'pod="train-0-': f'pod="train-{run}-'.encode(),
        f'container_id="{1:064x}"'.encode(): f'container_id="{run + 1:064x}"'.encode(),
        b'comm_hash="000000000000abc': f'comm_hash="{run:08x}0000abc'.encode(),
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        body = self.server.fleet.page(int(self.path[1:].partition("?")[0]))
        self.send_response(503 if body is None else 200)
        self.send_header("Content-Type", prometheus.Format.TEXT.value)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        pass
