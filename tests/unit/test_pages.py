"""Pages of every profile and limit in random histories of processes: each has what was counted, once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from exporter import ledger, series
from exporter.ledger import Ledger, Process
from exporter.model import Distribution, Kind, Labels, Metric, Sample, Value
from exporter.options import SettingsError
from exporter.page import MOST_SELECTIONS, Pages
from exporter.profile import Profile
from exporter.series import SeriesLimit
from exporter.server import WebSettings
from exporter.values import count, key, lines

CALLS = Metric("gpu.cuda.api.calls", "", Kind.COUNTER, labels=("api",), process=True)
WAITED = Metric("gpu.cuda.sync_wait", "", Kind.HISTOGRAM, "s", ("api",), process=True)
SENT = Metric("rdma.send", "", Kind.COUNTER, "By", ("qp",), process=True, identity=("qp",))
ERRORS = Metric("gpu.cuda.errors", "", Kind.COUNTER, process=True)
MEMORY = Metric("gpu.cuda.memory.usage", "", Kind.GAUGE, "By", process=True)
BOUNDS = tuple(float(2**n) for n in range(9))
PIDS, PODS, STEPS, SEEDS = range(1, 15), ("a", "b"), 200, 2

Row = tuple[Metric, str, str]
"""A metric, and a label of it with its value."""
ROWS: Sequence[Row] = (
    *((CALLS, "api", api) for api in ("launch", "copy")),
    *((SENT, "qp", str(number)) for number in range(4)),
    (WAITED, "api", "synchronize"),
    (ERRORS, "", ""),
)


class Counts(Counter[Row]):
    """Counts of one process."""

    def ended(self) -> None:
        """Do nothing: counts outlive their process."""

    def absorb(self, late: Counts) -> None:
        self.update(late)


class Node:
    """A probe's processes with the real ledger and limit, and the pages of what they show. `now` is in seconds."""

    def __init__(self, profile: Profile, limit: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.random, self.profile = 1e6, random.Random(seed), profile
        clock = SimpleNamespace(time=self._time, monotonic=self._time)
        for module in (ledger, series):
            monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(ledger, "MOST_ENDED", 4)
        self._limit = SeriesLimit("cuda", limit, self._time, profile)
        self._ledger = Ledger[Counts](self._read, self._take, self, Path("/nonexistent"), self._time, fold=self._fold)
        self.rows: dict[int, Counts] = {}
        self._pods = dict[int, str]()
        self._programs: Counter[int] = Counter()
        self.truth: Counter[str] = Counter()
        self.run()

    def _time(self) -> float:
        return self.now

    def start(self, pid: int) -> None:
        self._pods[pid] = self.random.choice(PODS)
        self.rows[pid] = Counts()
        self._ledger.started(pid)

    def count(self, pid: int) -> None:
        for row in self.random.sample(ROWS, 3):
            more = self.random.randrange(1, 9)
            self.rows[pid][row] += more
            self.truth[row[0].name] += more * (len(BOUNDS) + 1 if row[0] is WAITED else 1)

    def replace(self, pid: int) -> None:
        """Have a process run another program."""
        self._ledger.ended([pid], replaced=True)
        self._programs[pid] += self.random.randrange(2)
        self.rows[pid] = Counts()
        self.now += 0.001
        self._ledger.started(pid)

    def end(self, pid: int) -> None:
        self._ledger.ended([pid])

    def run(self) -> None:
        """Collect: what pages show until the next time."""
        with self._ledger.page():
            self.samples = self._limit.apply(self._samples())
        self.counted = self.truth.copy()

    def labels(self, pid: int) -> Labels:
        name = f"program{self._programs[pid]}"
        return {"pid": str(pid), "comm": name, "container_id": f"c{self._pods[pid]}", "pod": self._pods[pid]}

    def forget(self, pid: int) -> None:
        """Do nothing: nothing is remembered."""

    def _read(self) -> dict[int, Counts]:
        return {pid: Counts(counts) for pid, counts in self.rows.items() if counts}

    def _take(self, pids: Collection[int]) -> dict[int, Counts]:
        return {pid: counts for pid in pids if (counts := self.rows.pop(pid, None))}

    def _fold(self, process: Process[Counts]) -> None:
        self._limit.retire(self._samples_of(process), ledger.RETENTION)

    def _samples(self) -> Iterator[Sample]:
        for process in self._ledger.processes():
            yield from self._samples_of(process)

    @staticmethod
    def _samples_of(process: Process[Counts]) -> Iterator[Sample]:
        yield Sample(MEMORY, process.labels, 1, process.since)
        for (metric, label, of), counted in process.activity.items():
            value: Value = counted
            if metric is WAITED:
                value = Distribution(BOUNDS, (counted,) * (len(BOUNDS) + 1), float(counted))
            labels = {**process.labels, **({label: of} if label else {})}
            yield Sample(metric, labels, value, process.since)


class Scraper:
    """Reads one page of a node again and again, and compares each with the one before and with what was counted."""

    def __init__(self, node: Node, most: int, profile: Profile) -> None:
        self._node, self._most, self._profile = node, most, profile
        self._pages = Pages(most, node.profile, now=node._time)
        self._before: dict[str, Sample] = {}

    def read(self, exact: bool) -> None:
        page = self._pages.within(lambda: self._node.samples, None, self._profile)
        assert not self._most or lines(page) <= self._most
        counters = [it for it in page if it.metric.process and it.metric.kind is not Kind.GAUGE]
        found = {key(it.metric, it.labels): it for it in counters}
        assert len(found) == len(counters)
        for name in found.keys() & self._before.keys():
            before, after = self._before[name], found[name]
            began = None not in (before.start, after.start) and after.start > before.start  # type: ignore[operator]
            assert began or not _fell(before.value, after.value), name
        self._before = found
        if exact:
            assert +self._node.counted == totals(counters), (self._most, self._profile)


def totals(samples: Iterable[Sample]) -> Counter[str]:
    found: Counter[str] = Counter()
    for sample in samples:
        found[sample.metric.name] += count(sample.value)  # type: ignore[assignment]
        if isinstance(sample.value, Distribution):
            assert sum(sample.value.counts) == sample.value.sum * (len(BOUNDS) + 1)
    return found


def _fell(before: Value, after: Value) -> bool:
    if isinstance(before, Distribution) and isinstance(after, Distribution):
        return any(a > b for a, b in zip(before.counts, after.counts, strict=True))
    return before > after  # type: ignore[operator]


@pytest.mark.parametrize("most", [10_000, 300])
@pytest.mark.parametrize("profile", [Profile.DEBUG, Profile.NODE])
@pytest.mark.parametrize("lasts", [200.0, 3000.0])
def test_every_page_has_what_was_counted(
    profile: Profile, most: int, lasts: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes start, count, run other programs, end, are folded and forgotten, and pids return, while scrapers read
    pages of all profiles and limits: no counter falls, and, as long as nothing is forgotten, each page has everything
    that was counted, once. In short histories some pages are read seldom.
    """
    for seed in range(SEEDS if lasts < ledger.RETENTION else 1):
        node = Node(profile, most, seed, monkeypatch)
        scrapers = [Scraper(node, limit, it) for it in Profile if it <= profile for limit in (0, 220, 50_000)]
        began, running = node.now, set[int]()
        for _ in range(STEPS):
            node.now += node.random.random() * 2 * lasts / STEPS * 0.7
            pid = node.random.choice(PIDS)
            if pid not in running:
                node.start(pid)
                running.add(pid)
                node.count(pid)
                continue
            does = node.random.random()
            if does < 0.5:
                node.count(pid)
            elif does < 0.62:
                node.replace(pid)
            elif does < 0.72:
                node.end(pid)
                running.remove(pid)
            if node.random.random() < 0.4:
                node.run()
            reading = scrapers if lasts > ledger.RETENTION else node.random.sample(scrapers, node.random.randrange(3))
            for scraper in reading:
                scraper.read(node.now - began < ledger.RETENTION)


def test_requests_for_other_collectors() -> None:
    """A counter of all collectors does not fall because others request ever new selections of them."""
    pages = Pages(0, Profile.DEBUG)
    both = [CALLS.sample(23, {"pid": pid, "api": "launch"}) for pid in ("1", "2")]
    for pids in (2, 1):
        page = pages.within(lambda pids=pids: both[:pids], None, Profile.FLEET)  # type: ignore[misc]
        assert [46] == [it.value for it in page if it.metric is CALLS]
        for number in range(20):
            pages.within(lambda: both, frozenset({str(number)}), Profile.FLEET)
    assert len(pages._known) == 1 + MOST_SELECTIONS


def test_the_smallest_limit() -> None:
    """A page of ten lines has ten with those about its limit; fewer are an error with the flag's name."""
    many = [CALLS.sample(1, {"pid": str(pid), "api": "launch"}) for pid in range(50)]
    assert 10 >= lines(Pages(10, Profile.DEBUG).within(lambda: many, None, Profile.DEBUG)) > 8
    for few in (1, 9):
        with pytest.raises(SettingsError, match=f"web.series-limit: {few} "):
            WebSettings(series_limit=few)
