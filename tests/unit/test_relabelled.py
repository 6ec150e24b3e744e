"""Pages of processes with labels that become known or unknown: each page has all counts once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from exporter import ledger, series
from exporter.ledger import Ledger, Process
from exporter.model import Distribution, Kind, Labels, Metric, Sample, Value
from exporter.page import Pages
from exporter.profile import Profile
from exporter.series import SeriesLimit
from exporter.values import count, key, lines

CALLS = Metric("gpu.cuda.api.calls", "", Kind.COUNTER, labels=("api",), process=True)
WAITED = Metric("gpu.cuda.sync_wait", "", Kind.HISTOGRAM, "s", ("api",), process=True)
SENT = Metric("rdma.send", "", Kind.COUNTER, "By", ("qp",), process=True, identity=("qp",))
MEMORY = Metric("gpu.cuda.memory.usage", "", Kind.GAUGE, "By", process=True)
BOUNDS = (1.0, 2.0, 4.0)
PIDS = range(1, 10)
STARTED = 1e6

Row = tuple[str, int]
"""A counted thing, and its device or queue pair."""


@dataclass
class Counts:
    """Counts of one process, and whether its GPUs are known."""

    rows: Counter[Row] = field(default_factory=Counter)
    known: bool = False

    def ended(self) -> None:
        """Do nothing: counts outlive their process."""

    def absorb(self, late: Counts) -> None:
        self.rows.update(late.rows)


class Node:
    """A probe with the real ledger and limit, of processes that get names and GPUs, and lose GPUs again."""

    def __init__(self, limit: int, profile: Profile) -> None:
        self.now, self.profile = STARTED, profile
        self._limit = SeriesLimit("cuda", limit, lambda: self.now, profile)
        self._ledger = Ledger[Counts](
            self._read, self._take, self, Path("/nonexistent"), lambda: self.now, fold=self._fold
        )
        self.running: dict[int, Counts] = {}
        self._named = set[int]()
        self.truth: Counter[str] = Counter()
        self._own: Counter[tuple[int, str]] = Counter()
        self.run()

    def start(self, pid: int) -> None:
        self._named.discard(pid)
        self.running[pid] = Counts()
        self._ledger.started(pid)

    def name(self, pid: int) -> None:
        """Let the name of the process's pod be known."""
        self._named.add(pid)

    def gpu(self, pid: int) -> None:
        """Let the GPUs of the process be known or unknown."""
        if pid in self.running:
            self.running[pid].known ^= True

    def count(self, pid: int, device: int) -> None:
        if pid not in self.running:
            self.start(pid)
        for row, more in ((("calls", device), 3), (("sent", device), 5), (("waited", device), 7)):
            self.running[pid].rows[row] += more
        if self.running[pid].rows.total() == 15:  # the first counts of its program
            for name in (CALLS.name, SENT.name, WAITED.name):
                del self._own[pid, name]
        counted = {CALLS.name: 3, SENT.name: 5, WAITED.name: 7 * (len(BOUNDS) + 1)}
        self.truth.update(counted)
        self._own.update({(pid, name): more for name, more in counted.items()})

    def end(self, pid: int) -> None:
        self._ledger.ended([pid])

    def replace(self, pid: int) -> None:
        """Have a process run another program."""
        self._ledger.ended([pid], replaced=True)
        self.running[pid] = Counts()
        self._ledger.started(pid)

    def run(self) -> None:
        """Collect the samples that pages show until the next call."""
        with self._ledger.page():
            self.samples = self._limit.apply(self._samples())
        self.counted, self.own = self.truth.copy(), self._own.copy()
        """Counts on the pages, and those of the last program of each pid that counted anything."""

    def labels(self, pid: int) -> Labels:
        pod = {"pod": f"p{pid % 2}", "namespace": "n", "container_id": f"c{pid}"} if pid in self._named else {}
        return {"pid": str(pid), "comm": "python3", **pod}

    def forget(self, pid: int) -> None:
        """Do nothing: nothing is remembered."""

    def _read(self) -> dict[int, Counts]:
        return {pid: Counts(Counter(it.rows), it.known) for pid, it in self.running.items() if it.rows}

    def _take(self, pids: Collection[int]) -> dict[int, Counts]:
        return {pid: counts for pid in pids if (counts := self.running.pop(pid, None)) and counts.rows}

    def _fold(self, process: Process[Counts]) -> None:
        self._limit.retire(self._samples_of(process), ledger.RETENTION)

    def _samples(self) -> Iterator[Sample]:
        for process in self._ledger.processes():
            yield from self._samples_of(process)

    @staticmethod
    def _samples_of(process: Process[Counts]) -> Iterator[Sample]:
        """Yield samples like those of CUDA and RDMA: by GPU if all GPUs are known, else for all GPUs together."""
        rows, known = process.activity.rows, process.activity.known
        devices = sorted({device for _, device in rows})
        parts = [[device] for device in devices] if known else [devices]
        for part in parts:
            labels = {**process.labels, "api": "x", **(_gpu(part[0]) if known else {})}
            calls, waited = (sum(rows[what, device] for device in part) for what in ("calls", "waited"))
            yield Sample(MEMORY, labels, 1, process.since)
            yield Sample(CALLS, labels, calls, process.since)
            times = Distribution(BOUNDS, (waited,) * (len(BOUNDS) + 1), float(waited))
            yield Sample(WAITED, labels, times, process.since)
        only = _gpu(devices[0]) if known and len(devices) == 1 else {}
        for device in devices:
            yield Sample(SENT, {**process.labels, **only, "qp": str(device)}, rows["sent", device], process.since)


def _gpu(device: int) -> Labels:
    return {"gpu": str(device), "gpu_uuid": f"u{device}"}


class Scraper:
    """Reads one page of a node repeatedly, and compares each reading with the one before and with the counts."""

    def __init__(self, node: Node, most: int, profile: Profile) -> None:
        self._node, self._most, self._profile = node, most, profile
        self._pages = Pages(most, node.profile, now=lambda: node.now)
        self._before: dict[str, Sample] = {}

    def miss(self) -> None:
        """Read a page on which the collector is missing."""
        self._pages.within(lambda: [], None, self._profile)

    def read(self) -> None:
        page = self._pages.within(lambda: self._node.samples, None, self._profile)
        assert not self._most or lines(page) <= self._most
        counters = [it for it in page if it.metric.process and it.metric.kind is not Kind.GAUGE]
        found = {key(it.metric, it.labels): it for it in counters}
        assert len(found) == len(counters)
        for name in found.keys() & self._before.keys():
            before, after = self._before[name], found[name]
            began = None not in (before.start, after.start) and after.start > before.start  # type: ignore[operator]
            assert began or not any(a > b for a, b in zip(_parts(before.value), _parts(after.value), strict=True)), name
        self._before = found
        totals: Counter[str] = Counter()
        own: Counter[tuple[int, str]] = Counter()
        for sample in counters:
            if "pid" in sample.labels:
                own[int(sample.labels["pid"]), sample.metric.name] += count(sample.value)  # type: ignore[assignment]
            totals[sample.metric.name] += count(sample.value)  # type: ignore[assignment]
            assert min(_parts(sample.value)) >= 0
        assert +self._node.counted == +totals, (self._most, self._profile)
        assert own <= self._node.own, (own - self._node.own, self._most, self._profile)


def _parts(value: Value) -> tuple[float, ...]:
    return (*value.counts, value.sum) if isinstance(value, Distribution) else (value,)


PID = st.sampled_from(PIDS)
STEPS = st.one_of(
    st.tuples(st.just("count"), PID, st.sampled_from((0, 0, 1))),
    st.tuples(st.sampled_from(("name", "gpu", "end", "replace")), PID, st.just(0)),
    st.tuples(st.sampled_from(("run", "read", "miss")), st.just(0), st.just(0)),
)


def of_all(does: str, device: int = 0) -> list[tuple[str, int, int]]:
    return [(does, pid, device) for pid in PIDS]


PAGE = [("run", 0, 0), ("read", 0, 0)]
GPUS_COME_AND_GO = [*of_all("count"), *PAGE, *(2 * [*of_all("gpu"), *PAGE, *of_all("count", 1), *PAGE])]
SUCCEEDED = [("count", 3, 0), *PAGE, ("gpu", 3, 0), ("end", 3, 0), ("run", 0, 0), ("count", 3, 0)]
MISSED = [("count", 1, 0), ("count", 2, 0), *PAGE, ("miss", 0, 0), ("name", 1, 0), *PAGE]


@pytest.mark.parametrize("most", [10_000, 110])
@pytest.mark.parametrize("profile", [Profile.DEBUG, Profile.NODE, Profile.FLEET])
@settings(max_examples=100, deadline=None, suppress_health_check=[*HealthCheck])
@example(steps=SUCCEEDED)
@example(steps=GPUS_COME_AND_GO)
@example(steps=MISSED)
@given(steps=st.lists(STEPS, max_size=90))
def test_every_page_has_what_was_counted(
    profile: Profile, most: int, steps: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes start, count, run other programs and end. Names of pods and GPUs become known, and GPUs unknown again.
    Collectors and pages reach their limits or do not, and pages lack a collector. In all of this no counter falls, and
    each page has all counts once.
    """
    node: Node
    clock = SimpleNamespace(time=lambda: node.now, monotonic=lambda: node.now)
    with monkeypatch.context() as patch:
        for module in (ledger, series):
            patch.setattr(module, "time", SimpleNamespace(time=lambda: STARTED, monotonic=lambda: STARTED))
        patch.setattr(ledger, "MOST_ENDED", 2)
        node = Node(most, profile)
        for module in (ledger, series):
            patch.setattr(module, "time", clock)
        scrapers = [Scraper(node, limit, it) for it in Profile if it <= profile for limit in (0, 110)]
        for does, pid, device in (*steps, ("run", 0, 0), ("read", 0, 0)):
            node.now += 1.0
            if does == "count":
                node.count(pid, device)
            elif does == "run":
                node.run()
            elif does in ("read", "miss"):
                for scraper in scrapers:
                    scraper.read() if does == "read" else scraper.miss()
            elif pid in node.running:
                getattr(node, does)(pid)
