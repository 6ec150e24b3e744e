"""Eight ranks on two nodes, two exporters that know nothing of each other, one OTLP collector: a trace a collective.

A node is a network namespace here: the exporter of each looks only at processes in it, and each has its own NCCL.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.bpf.nccl_node import BUILD, PRELUDE, Rank, build_standins
from tests.e2e.test_otlp import attributes
from tests.program.process import Exporter
from tests.standins.otlp_sink import HttpSink
from tests.support import PATIENCE

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(400),
    pytest.mark.evidence(feature="traces of collectives", on="stand-in"),
]

RANKS, COLLECTIVES = 8, 1000
LATE = 5
"""The rank that is late, and later stops."""
LAG_MS = 1000
ONE_NODE = """
import os, sys
from exporter.__main__ import main
from exporter.bpf import targets
del sys.argv[1:4]  # python -m exporter
class Lister:
    def __init__(self, lister): self.lister = lister
    def __getattr__(self, name): return getattr(self.lister, name)
    def everything(self): return self.own(self.lister.everything())
    def of(self, pids): return self.own(self.lister.of(pids))
    def own(self, mappings):
        here = {}
        for it in mappings:
            if it.pid not in here:
                here[it.pid] = network(it.pid) == os.environ["NODE"]
        return [it for it in mappings if here[it.pid]]
def network(pid):
    try: return os.readlink(f"/proc/{pid}/ns/net")
    except OSError: return ""
choose = targets.choose_lister
targets.choose_lister = lambda proc: Lister(choose(proc))
raise SystemExit(main())
"""
"""The exporter, for which the processes of other network namespaces are on another machine."""


class Node:
    """One machine: a network namespace, its own copy of the library, and the exporter when it is started."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        folder.mkdir()
        shutil.copy(BUILD / "libnccl.so.2", folder)
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "600"])
        stack.callback(self._holder.wait)
        stack.callback(self._holder.kill)
        own, self.network = _network("self"), ""
        while self.network in ("", own):
            self.network = _network(self._holder.pid)
            time.sleep(0.01)

    def start(self, sink: HttpSink) -> Exporter:
        flags = ("--profile=debug", "--collector.nccl.spans-per-second=100000", "--otlp.spans-per-second=0")
        self.exporter = Exporter(
            self.folder,
            *flags,
            prefix=(sys.executable, "-c", ONE_NODE),
            NODE=self.network,
            OTEL_EXPORTER_OTLP_ENDPOINT=sink.endpoint,
            OTEL_METRICS_EXPORTER="none",
            OTEL_BSP_SCHEDULE_DELAY="200",
            OTEL_BSP_MAX_QUEUE_SIZE="100000",
        )
        self._stack.callback(self.stop)
        return self.exporter.await_ready()

    def stop(self) -> None:
        self.exporter.process.terminate()
        self.exporter.process.wait(PATIENCE)

    def await_attached(self) -> None:
        probes = rf'^accel_exporter_probe_attached{{library="{self.folder}/libnccl.so.2".* (\d)$'
        self.exporter.await_(lambda: {"1"} == set(re.findall(probes, self.exporter.get("/metrics")[1], re.M)))

    def samples(self, metric: str) -> dict[int, float]:
        """Values of a metric by rank."""
        pattern = rf'^{metric}{{.*\brank="(\d+)".*}} (\S+)$'
        return {int(rank): float(value) for rank, value in re.findall(pattern, self.exporter.get("/metrics")[1], re.M)}

    def of(self, metric: str, pid: int) -> float | None:
        found = re.search(rf'^{metric}{{.*\bpid="{pid}".*}} (\S+)$', self.exporter.get("/metrics")[1], re.M)
        return float(found[1]) if found else None


def _network(pid: int | str) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


class Member(Rank):
    """A rank in a node's network namespace, with the node's library."""

    def __init__(self, node: Node) -> None:
        self.process = subprocess.Popen(
            ["nsenter", f"--net=/proc/{node._holder.pid}/ns/net", sys.executable, "-c", self.DRIVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.node, self.pid, self.libraries = node, self.process.pid, set()
        self.run(f"lib = ctypes.CDLL('{node.folder}/libnccl.so.2')")
        self.run(PRELUDE)

    def wait(self) -> None:
        """For the end of what was begun."""
        assert self.process.stdout and self.process.stdout.readline()


@dataclass
class Seen:
    """Observations, phase by phase. Spans by trace."""

    traces: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    lags: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Sum and count by rank, of the calls for which one rank was late."""
    others_took: float = 0
    """Seconds that all other ranks took for these calls: none of them is later than that."""
    stopped_after: float = -1
    """Seconds until the metrics named the rank that stopped."""
    stopped: dict[int, float] = field(default_factory=dict)
    """Calls that each rank was behind then."""
    in_flight: float | None = None
    killed_after: float = -1
    left: set[int] = field(default_factory=set)
    """Ranks on the node of the killed one that are still shown."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, bpf_refusal: str) -> Iterator[Seen]:
    if bpf_refusal:
        pytest.skip(bpf_refusal)
    build_standins()
    with ExitStack() as stack:
        yield Run(tmp_path_factory.mktemp("nodes"), stack).watch()


class Run:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._sink = HttpSink()
        stack.callback(self._sink.close)
        self._nodes = [Node(folder / name, stack) for name in ("a", "b")]
        for node in self._nodes:
            node.start(self._sink)
        self._ranks = [stack.enter_context(Member(self._nodes[rank // 4])) for rank in range(RANKS)]
        for node in self._nodes:
            node.await_attached()
        self._seen = Seen()

    def watch(self) -> Seen:
        self._phase("init", f"c = init({{0}}, {RANKS}, b'job')", RANKS)
        self._phase("all", f"for i in range({COLLECTIVES}): reduce_all(c, 1)", COLLECTIVES * RANKS)
        self._lag()
        self._phase("split", "s = c_void_p(); lib.ncclCommSplit(c, {0} % 2, {0} // 2, byref(s), None)", RANKS)
        self._phase("halves", "for i in range(10): reduce_all(s, 1)", 10 * RANKS)
        self._nodes[1].stop()
        self._phase("half seen", "for i in range(7): reduce_all(c, 1)", 7 * RANKS // 2)
        self._nodes[1].start(self._sink)
        self._nodes[1].await_attached()
        self._phase("late", "for i in range(10): reduce_all(c, 1)", 10 * RANKS)
        self._stop()
        self._kill()
        return self._seen

    def _collectives(self, lines: str, ranks: list[Member] | None = None) -> None:
        for number, rank in enumerate(ranks or self._ranks):
            rank.begin(lines.format(number))
        for rank in ranks or self._ranks:
            rank.wait()

    def _phase(self, name: str, lines: str | Callable[[], None], spans: int) -> None:
        """Runs the lines in every rank, or the function, and keeps what spans they made."""
        before = sum(1 for _ in self._sink.spans())
        if isinstance(lines, str):
            self._collectives(lines)
        else:
            lines()
        self._sink.wait_for(lambda sink: sum(1 for _ in sink.spans()) - before >= spans)
        traces: dict[str, list[Any]] = defaultdict(list)
        for span in list(self._sink.spans())[before:]:
            traces[span.trace_id.hex()].append(span)
        self._seen.traces[name] = traces

    def _lag(self) -> None:
        before = self._lags()
        for number in range(3):
            self._phase(f"lag {number}", self._one_is_late, RANKS)
        after = self._lags()
        self._seen.lags = {it: (after[it][0] - before[it][0], after[it][1] - before[it][1]) for it in after}

    def _one_is_late(self) -> None:
        """All others have called, however slow the machine is, before the time begins by which one rank is late."""
        began, late = time.monotonic(), self._ranks[LATE]
        self._collectives("reduce_all(c, 1)", [rank for rank in self._ranks if rank is not late])
        self._seen.others_took += time.monotonic() - began
        self._collectives(f"time.sleep({LAG_MS / 1000})\nreduce_all(c, 1)", [late])

    def _lags(self) -> dict[int, tuple[float, float]]:
        lag = "nccl_rank_arrival_lag_seconds"
        sums, counts = ({}, {})
        for node in self._nodes:
            sums |= node.samples(f"{lag}_sum")
            counts |= node.samples(f"{lag}_count")
        return {rank: (sums[rank], counts[rank]) for rank in sums}

    def _stop(self) -> None:
        """One rank stays in a call for good, the others go on until they would have to wait for it."""
        node, began = self._nodes[LATE // 4], time.monotonic()
        stuck = self._ranks[LATE]
        stuck.begin("lib.standin_stall(c_uint64(600 * 10**9)); reduce_all(c, 1)")
        node.exporter.await_(lambda: node.of("nccl_calls_in_flight", stuck.pid) == 1)
        others = [rank for rank in self._ranks if rank is not stuck]
        self._collectives("for i in range(5): reduce_all(c, 1)", others)
        while not (behind := node.samples("nccl_rank_calls_behind")).get(LATE) and time.monotonic() < began + 60:
            time.sleep(0.1)
        self._seen.stopped_after, self._seen.stopped = time.monotonic() - began, behind
        self._seen.in_flight = node.of("nccl_calls_in_flight", stuck.pid)

    def _kill(self) -> None:
        node, began = self._nodes[LATE // 4], time.monotonic()
        self._ranks[LATE].process.kill()
        while LATE in (left := set(node.samples("nccl_communicator_info"))) and time.monotonic() < began + 60:
            time.sleep(0.1)
        self._seen.killed_after, self._seen.left = time.monotonic() - began, left


def test_every_collective_is_one_trace(seen: Seen) -> None:
    """Each of 1,000 collectives is one trace with eight spans of its id: one of each rank, rank 0's the root."""
    traces = seen.traces["all"]
    assert COLLECTIVES == len(traces)
    for spans in traces.values():
        by_rank = {attributes(span)["nccl.rank"]: span for span in spans}
        assert (RANKS, RANKS, set(range(RANKS))) == (len(spans), len({it.span_id for it in spans}), set(by_rank))
        root = by_rank.pop(0)
        assert (b"", {root.span_id}) == (root.parent_span_id, {it.parent_span_id for it in by_rank.values()})
    assert {1} == {len({attributes(span)["nccl.sequence"] for span in spans}) for spans in traces.values()}


def test_the_late_rank_is_named(seen: Seen) -> None:
    """The rank delayed by a second has that lag in each call, the others on its node are not; it ends the trace."""
    sums = {rank: total for rank, (total, _) in seen.lags.items() if rank // 4 == LATE // 4}
    assert {3} == {count for _, count in seen.lags.values()}
    assert LATE == max(sums, key=lambda rank: sums[rank])
    assert 3 * LAG_MS / 1000 * 0.9 <= sums.pop(LATE)
    assert max(sums.values()) <= seen.others_took
    for number in range(3):
        (spans,) = seen.traces[f"lag {number}"].values()
        last = max(spans, key=lambda span: span.start_time_unix_nano)
        assert LATE == attributes(last)["nccl.rank"]


def test_a_split(seen: Seen) -> None:
    """The two communicators of a split have traces of their own, each of four ranks of both nodes."""
    ranks = [sorted(attributes(it)["nccl.rank"] for it in spans) for spans in seen.traces["halves"].values()]
    assert [[0, 1, 2, 3]] * 20 == ranks
    assert [4, 4] == [len(spans) for spans in seen.traces["split"].values()]
    assert [RANKS] == [len(spans) for spans in seen.traces["init"].values()]


def test_a_late_exporter_joins(seen: Seen) -> None:
    """An exporter that was restarted names the traces as the other does, which saw the job from its start."""
    traces = seen.traces["late"]
    assert [RANKS] * 10 == [len(spans) for spans in traces.values()]
    origins = {(attributes(it)["nccl.rank"] // 4, attributes(it)["nccl.sequence.origin"]) for it in spans_of(traces)}
    assert {(0, "creation"), (1, "library")} == origins


def spans_of(traces: dict[str, list[Any]]) -> list[Any]:
    return [span for spans in traces.values() for span in spans]


def test_a_rank_that_stops(seen: Seen) -> None:
    """Within 30 s a rank that stops is the one that is behind the others of its node, and inside a call."""
    assert 0 <= seen.stopped_after < 30
    assert {4: 0, 5: 4, 6: 0, 7: 0} == seen.stopped
    assert 1 == seen.in_flight


def test_a_killed_rank(seen: Seen) -> None:
    """Within 30 s a killed rank is no rank of the communicator any more, and the others are."""
    assert 0 <= seen.killed_after < 30
    assert {4, 6, 7} == {rank for rank in seen.left if rank > 3}
