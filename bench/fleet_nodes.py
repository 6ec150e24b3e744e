"""The nodes of a simulated fleet: pages written by our own code, of jobs that start again and nodes that are lost."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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
_NAMES = re.compile(
    rb'(pid="1000|pod="train-0-worker-0"|container_id="0{63}1"|GPU-5e0a1c2b-0000-|comm_hash="0{12}abc[0-3]"'
    rb'|rank="(?:2[4-9]|3[01])"|(?:nranks|world_size)="64")'
)
"""Label values that differ by node, by the node's place in the job, or by run of the job."""


@dataclass
class _Node:
    run: int = 0
    """Number of restarts of the node's job."""
    restarted: float = -RETENTION
    """Time of the last restart of the job, in seconds of time.monotonic."""
    lost: bool = False


@dataclass
class Fleet:
    """Serves /N for node N: a page by the time, its job and its place. Counters grow from one interval to the next.

    All nodes that train have the ranks of one job, each its own pods, containers and GPUs.
    """

    folder: Path
    nodes: int
    interval: float
    """Seconds between two scrapes."""
    profile: Profile
    mixed: bool = True
    """True if the nodes are of all KINDS; false if all of them train."""
    _nodes: list[_Node] = field(init=False)

    def __post_init__(self) -> None:
        self._nodes = [_Node() for _ in range(self.nodes)]
        self._pages = {kind: self._turns(kind) for kind in sorted(set(KINDS))}
        self._parts = {kind: [_NAMES.split(page) for page in pages] for kind, pages in self._pages.items()}
        self._ended = {kind: _NAMES.split(_of_processes(pages[-1])) for kind, pages in self._pages.items()}
        training = [node for node in range(self.nodes) if self.kind(node) == KINDS[0]]
        self._first = {node: typical_node.RANKS * at for at, node in enumerate(training)}
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
        parts = [self._named(node, self._parts[kind][turn], state.run)]
        if time.monotonic() - state.restarted < RETENTION:
            parts.append(self._named(node, self._ended[kind], state.run - 1))
        return b"".join((*parts, prometheus.render([topology.INFO.sample(1, place)]).text))

    def _turns(self, kind: str) -> list[bytes]:
        reduced = Pages(100_000, Profile.DEBUG)
        pages = []
        for turn in range(1, TURNS + 1):
            samples = _samples(kind, self.folder / kind / str(turn), turn)
            pages.append(prometheus.render(reduced.within(lambda made=samples: made, None, self.profile)).text)
        return pages

    def _named(self, node: int, parts: Sequence[bytes], run: int) -> bytes:
        """Return a page with the names of a node and of a run of the job."""
        world = len(self._first) * typical_node.RANKS if node in self._first else typical_node.RANKS
        names = {
            _PROCESS: f'pid="{1000 + run}'.encode(),
            b'pod="train-0-worker-0"': f'pod="train-{run}-worker-{node}"'.encode(),
            f'container_id="{1:064x}"'.encode(): f'container_id="{node:08x}{run + 1:056x}"'.encode(),
            b"GPU-5e0a1c2b-0000-": f"GPU-5e0a1c2b-{node:04x}-".encode(),
            f'comm_hash="{0xABC0:016x}"'.encode(): f'comm_hash="{run:08x}0000abc0"'.encode(),
            b'nranks="64"': f'nranks="{world}"'.encode(),
            b'world_size="64"': f'world_size="{world}"'.encode(),
        }
        for local in range(typical_node.RANKS):
            of_all = self._first.get(node, 0) + local
            names[f'rank="{typical_node.FIRST + local}"'.encode()] = f'rank="{of_all}"'.encode()
        for number in range(0xABC1, 0xABC4):
            names[f'comm_hash="{number:016x}"'.encode()] = f'comm_hash="{run:08x}{node:04x}{number:x}"'.encode()
        return b"".join([names.get(part, part) for part in parts])


def _of_processes(page: bytes) -> bytes:
    """Return what the exporter keeps of the page when the job has ended."""
    return b"".join(line for line in page.splitlines(True) if _PROCESS in line)


def _samples(kind: str, folder: Path, turn: int) -> list[Sample]:
    if kind == "training":
        return typical_node.node(folder, turn)
    of_job = (*typical_node.cuda_job(turn), *typical_node.jobs(), *typical_node.allocations())
    job = of_job if kind == "inference" else ()
    machine = (*typical_node.pci(turn), *typical_node.machine(turn), *typical_node.ports(folder))
    idle = (*typical_node.gpus(turn), *machine, *typical_node.own())
    return [*job, *(it for it in idle if job or not it.labels.get("pid"))]


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
