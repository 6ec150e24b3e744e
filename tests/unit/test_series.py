"""The limit on a collector's series."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from exporter import discover
from exporter.ledger import RETENTION, Ledger, Process
from exporter.model import Distribution, Kind, Metric, Sample, Value
from exporter.page import Pages
from exporter.profile import Profile
from exporter.series import FOLDED, SeriesLimit
from exporter.series import LIMIT as SERIES_LIMIT
from exporter.values import lines as series_lines
from exporter.verbs.activity import Activity
from exporter.verbs.samples import PeerLabels
from exporter.views import prometheus
from tests import typical_node

ABOUT = (FOLDED, SERIES_LIMIT)
"""A limit's metrics of itself, not limited."""
CALLS = Metric("calls", "", Kind.COUNTER, labels=("api",), process=True)
ERRORS = Metric("calls.errors", "", Kind.COUNTER, process=True)
PAIRS = Metric("pairs", "", Kind.COUNTER, labels=("qp", "device"), process=True, identity=("qp",))
RATIO = Metric("ratio", "", Kind.GAUGE, "1", process=True)
USED = Metric("used", "", Kind.GAUGE, process=True)
LAST = Metric("last.timestamp", "", Kind.GAUGE, "s", process=True)
WAITED = Metric("waited", "", Kind.HISTOGRAM, "s", process=True)


def calls(**by_pid: int) -> list[Sample]:
    return [CALLS.sample(value, {"pid": pid.removeprefix("p"), "api": "x"}) for pid, value in by_pid.items()]


def more(count: int) -> list[Sample]:
    """So many series that a limit has room for."""
    return [USED.sample(1, {"pid": f"x{number}"}) for number in range(count)]


def shown(samples: list[Sample]) -> dict[tuple[str, str], Value]:
    """Values by metric and pid, "+" for what was folded."""
    return {
        (sample.metric.name, "+" if "overflow" in sample.labels else sample.labels.get("pid", "")): sample.value
        for sample in samples
        if sample.metric not in ABOUT and not sample.labels.get("pid", "").startswith("x")
    }


def folded(samples: Iterable[Sample], collector: str = "test") -> Value:
    [sample] = [sample for sample in samples if sample.metric is FOLDED]
    assert {"collector": collector} == sample.labels
    return sample.value


def lines(samples: list[Sample]) -> int:
    """Lines of /metrics with values, but for those of ABOUT."""
    text = prometheus.render(it for it in samples if it.metric not in ABOUT).text.decode()
    return sum(not line.startswith("#") for line in text.splitlines())


def test_within_the_limit_nothing_changes() -> None:
    """Up to four fifths of the limit every series is shown as it is."""
    limit = SeriesLimit("test", 10)
    samples = [*calls(p1=5, p2=6), *more(6)]
    assert samples == limit.apply(samples)[:8]
    assert 0 == folded(limit.apply(samples))


def test_what_exceeds_it_is_one_series_without_the_process() -> None:
    """The others are added up under overflow=true with the metric's own labels, and counted."""
    result = SeriesLimit("test", 10).apply([*more(6), *calls(p1=1, p2=2, p3=3, p4=4)])
    assert {("calls", "1"): 1, ("calls", "2"): 2, ("calls", "+"): 7} == shown(result)
    [overflow] = [sample for sample in result if "overflow" in sample.labels]
    assert {"api": "x", "overflow": "true"} == overflow.labels
    assert 2 == folded(result)


def test_identity_goes_too() -> None:
    """Labels that the metric declares as identity are left out, its others stay."""
    samples = [PAIRS.sample(1, {"pid": "1", "device": "d", "qp": str(number)}) for number in range(30)]
    [overflow] = [it for it in SeriesLimit("test", 20).apply(samples) if "overflow" in it.labels]
    assert ({"device": "d", "overflow": "true"}, 14) == (overflow.labels, overflow.value)


def test_the_limit_holds_whatever_labels_there_are() -> None:
    """If a metric has too many labels, one series without any takes the rest; with too many metrics, none does."""
    samples = [CALLS.sample(1, {"pid": "1", "api": str(number)}) for number in range(100)]
    result = SeriesLimit("test", 10).apply(samples)
    assert [{"api": "8", "overflow": "true"}, {"overflow": "true"}] == [it.labels for it in result[8:10]]
    assert (10, 91, 92) == (lines(result), result[9].value, folded(result))
    many = [Metric(f"m{number}", "", Kind.COUNTER).sample(1) for number in range(100)]
    assert 10 == lines(SeriesLimit("test", 10).apply(many))


def test_a_histogram_counts_its_lines() -> None:
    """A bucket is a line of /metrics as any other series, and so are sum and count."""
    times = Distribution(tuple(float(bound) for bound in range(1, 29)), (1,) * 29, 1.0)
    samples = [WAITED.sample(times, {"pid": str(pid)}) for pid in range(20)]
    result = SeriesLimit("test", 200).apply(samples)
    assert ((200 - 40) // 31 + 1) * 31 == lines(result) <= 200
    assert 15 == folded(result)


def test_a_folded_counter_never_falls() -> None:
    """Counts of members that disappear stay; new members are added, and shown series stay shown."""
    limit = SeriesLimit("test", 10)
    assert 5 == shown(limit.apply([*more(7), *calls(p1=1, p2=5, p3=0)]))["calls", "+"]
    assert 8 == shown(limit.apply([*more(7), *calls(p2=8, p3=0, p1=1)]))["calls", "+"]
    assert {("calls", "1"): 1, ("calls", "+"): 8} == shown(limit.apply([*more(7), *calls(p1=1, p3=0)]))
    assert 10 == shown(limit.apply([*more(7), *calls(p1=1, p3=0, p4=2)]))["calls", "+"]


def test_a_member_that_is_missing_once() -> None:
    """A folded series that is missing from one page is not counted again when it returns."""
    limit = SeriesLimit("test", 10)
    for pids, total in (({"p1": 5, "p2": 3}, 8), ({"p1": 5}, 8), ({}, None), ({"p1": 6, "p2": 3}, 9)):
        assert total == shown(limit.apply([*more(8), *calls(**pids)])).get(("calls", "+"))


def test_a_member_that_starts_anew() -> None:
    """A counter that falls, as of a process that runs another program, adds what it has counted since."""
    limit = SeriesLimit("test", 10)
    assert 5 == shown(limit.apply([*more(8), *calls(p1=5)]))["calls", "+"]
    assert 7 == shown(limit.apply([*more(8), *calls(p1=2)]))["calls", "+"]
    assert 8 == shown(limit.apply([*more(8), *calls(p1=3)]))["calls", "+"]
    limit = SeriesLimit("test", 50)
    for counted, total in ((4, 4), (1, 5), (3, 7)):
        waited = WAITED.sample(Distribution((1.0,), (counted, 0), 0.5 * counted), {"pid": "1"})
        assert Distribution((1.0,), (total, 0), 0.5 * total) == shown(limit.apply([*more(40), waited]))["waited", "+"]


def test_a_folded_series_ends_with_its_members() -> None:
    """Nothing is kept of what is no more: not even when series are shown singly again."""
    limit = SeriesLimit("test", 10)
    limit.apply([*more(8), *calls(p1=1, p2=5)])
    assert {} == shown(limit.apply(more(8)))
    assert {("calls", "3"): 3} == shown(limit.apply([*more(2), *calls(p3=3)]))


def test_a_freed_place_goes_to_a_new_series() -> None:
    """A folded series is not shown later, for its value would count twice; a new one takes the place."""
    limit = SeriesLimit("test", 10)
    limit.apply([*more(7), *calls(p1=1, p2=2)])
    assert {("calls", "3"): 3, ("calls", "+"): 2} == shown(limit.apply([*more(7), *calls(p2=2, p3=3)]))


def test_gauges_are_of_now() -> None:
    """Folded gauges add up as they are now; of times and ratios the largest is shown."""
    limit = SeriesLimit("test", 20)
    samples = more(16)
    for pid, used, last, ratio in (("2", 10, 100.0, 0.5), ("3", 20, 90.0, 0.75)):
        samples += [USED.sample(used, {"pid": pid}), LAST.sample(last, {"pid": pid}), RATIO.sample(ratio, {"pid": pid})]
    found = shown(limit.apply(samples))
    assert (30, 100.0, 0.75) == (found["used", "+"], found["last.timestamp", "+"], found["ratio", "+"])
    assert ("used", "+") not in shown(limit.apply(more(16)))


def test_states_are_not_added_up() -> None:
    """A folded state is the largest of them, not a number that stands for no state."""
    state = Metric("qp.state", "", Kind.GAUGE, labels=("qp",), identity=("qp",))
    pairs = [state.sample(value, {"qp": str(value)}) for value in (3, 6)]
    assert 6 == shown(SeriesLimit("test", 20).apply([*more(18), *pairs]))["qp.state", "+"]


def test_histograms_are_added_up() -> None:
    """Counts and sums of folded histograms add up bucket by bucket, and never fall."""
    limit = SeriesLimit("test", 40)
    samples = [WAITED.sample(Distribution((1.0,), (1, n), 2.0), {"pid": str(n)}) for n in (2, 3)]
    assert Distribution((1.0,), (2, 5), 4.0) == shown(limit.apply([*more(32), *samples]))["waited", "+"]
    assert Distribution((1.0,), (2, 5), 4.0) == shown(limit.apply([*more(32), samples[0]]))["waited", "+"]


RESTARTS, LIMIT = 5, 10_000


class Job:
    """A training job that restarts: its processes in a ledger, as the verbs collector has them. `now` is in seconds."""

    def __init__(self) -> None:
        self.now, self._began, self._run, self._runs = 0.0, 0.0, -1, False
        self._limit = SeriesLimit("verbs", LIMIT, lambda: self.now)
        self._labels = PeerLabels(typical_node.PEERS)
        nowhere, clock = Path("/nonexistent"), lambda: self.now
        self._ledger = Ledger[Activity](self._read, self._take, self, nowhere, clock, self._fold)
        self._before: dict[frozenset[tuple[str, str]], float] = {}

    def start(self) -> None:
        """Begin the next run."""
        self._run, self._began, self._runs = self._run + 1, self.now, True
        for rank in range(typical_node.RANKS):
            self._ledger.started(typical_node.pid(self._run, rank))

    def end(self) -> None:
        self._runs = False
        self._ledger.ended(self._pids())

    def scrape(self) -> tuple[int, int, list[str]]:
        """Return the series of the page and of the collector before its limit, and the folded counters that fell."""
        with self._ledger.page():
            samples = [*typical_node.verbs_of(self._ledger.processes(), self._labels)]
            limited = self._limit.apply(samples)
        after = {
            frozenset({**it.labels, "": it.metric.name}.items()): it.value
            for it in limited
            if "overflow" in it.labels and it.metric.kind is Kind.COUNTER and isinstance(it.value, int)
        }
        fell = [str(key) for key in after if after[key] < self._before.get(key, 0)]
        self._before = after
        page = prometheus.render(limited)
        assert (0, 0) == (page.duplicates, page.malformed)
        shown = sum(not line.startswith(b"#") for line in page.text.splitlines()) - len(ABOUT)
        return shown, series_lines(samples), fell

    def labels(self, pid: int) -> dict[str, str]:
        return typical_node.labels(self._run, pid % 1000)

    def forget(self, pid: int) -> None:
        """Do nothing: nothing is remembered."""

    def _pids(self) -> list[int]:
        return [typical_node.pid(self._run, rank) for rank in range(typical_node.RANKS)]

    def _read(self) -> dict[int, Activity]:
        return self._activities(self._pids() if self._runs else ())

    def _take(self, pids: Collection[int]) -> dict[int, Activity]:
        return self._activities(pids)

    def _activities(self, pids: Iterable[int]) -> dict[int, Activity]:
        turn = int(self.now - self._began) + 1
        return {pid: typical_node.verbs_activity(self._run, pid % 1000, turn) for pid in pids}

    def _fold(self, process: Process[Activity]) -> None:
        self._limit.retire(typical_node.verbs_of([process], self._labels), RETENTION)


def test_a_job_that_restarts() -> None:
    """A job of 8 ranks with 256 queue pairs each restarts five times: the page never has more series than the limit, no
    folded counter falls, and five minutes after the end of the last process all is gone.
    """
    job, scrapes = Job(), list[tuple[int, int, list[str]]]()
    for run in range(RESTARTS + 1):
        job.start()
        job.now += 20
        if run in (0, 2, RESTARTS):
            scrapes.append(job.scrape())
        job.end()
        job.now += 20
    job.now += RETENTION
    assert (0, 0, []) == job.scrape()
    assert LIMIT / 2 < min(shown for shown, _, _ in scrapes) and max(shown for shown, _, _ in scrapes) <= LIMIT
    assert 90_000 < max(before for _, before, _ in scrapes)
    assert [] == [fell for _, _, falls in scrapes for fell in falls]
    job.now += RETENTION
    job.scrape()
    assert not job._limit.members
    assert {} == job._limit.shown == job._limit.folds


def test_faults_are_folded_last() -> None:
    """Errors come before all other series of a page; new ones have a quarter of the room for folded series besides."""
    errors = [ERRORS.sample(1, {"pid": str(number)}) for number in range(20)]
    limit = SeriesLimit("test", 20)
    assert {**{("calls.errors", str(n)): 1 for n in range(17)}, ("calls.errors", "+"): 3, ("used", "+"): 9} == shown(
        limit.apply([*more(9), *errors])
    )
    limit = SeriesLimit("test", 20)
    limit.apply(more(17))
    result = limit.apply([*more(17), *errors[:4]])
    assert {("calls.errors", "0"): 1, ("calls.errors", "+"): 3, ("used", "+"): 1} == shown(result)
    assert 19 == lines(result)


def test_the_hardware_comes_before_processes() -> None:
    """A page beyond its limit from the start has the state of each GPU and collector, however many processes run."""
    status = Metric("hw.status", "", Kind.GAUGE, labels=("gpu", "state"))
    success = Metric("accel_exporter.collector.success", "", Kind.GAUGE, labels=("collector",))
    samples = [CALLS.sample(1, {"pid": f"p{number}"}) for number in range(60)]
    samples += [status.sample(int(gpu == "3"), {"gpu": gpu, "state": "failed"}) for gpu in "01234567"]
    samples += [success.sample(int(name != "nvml"), {"collector": name}) for name in ("cuda", "nvml", "xid")]
    limit = SeriesLimit("page", 40)
    found = limit.apply(samples)
    assert 3 == sum("collector" in it.labels for it in found if it.metric is success)
    assert {"3": 1} == {it.labels["gpu"]: it.value for it in found if it.metric is status and it.value}
    assert 60 == sum(int(it.value) for it in found if it.metric is CALLS)  # type: ignore[arg-type]
    cost = Metric("accel_exporter.page.series", "", Kind.GAUGE)  # known from the second page on
    assert [{}] == [it.labels for it in limit.apply([*samples, cost.sample(40)]) if it.metric is cost]


def test_a_flood_of_errors_leaves_no_counts_out() -> None:
    """Errors of ever new codes take the room for folded series with labels, and that for more faults, but not all."""
    codes = Metric("calls.errors", "", Kind.COUNTER, labels=("code",), process=True)
    flood = [codes.sample(1, {"pid": "1", "code": str(code)}) for code in range(200)]
    limit = SeriesLimit("test", 100)
    limit.apply(flood)
    result = limit.apply([*flood, *calls(p2=23, p3=19)])

    assert 42 == sum(int(it.value) for it in result if it.metric is CALLS)  # type: ignore[arg-type]
    assert 200 == sum(int(it.value) for it in result if it.metric is codes)  # type: ignore[arg-type]
    assert 100 >= lines(result)


def test_what_a_fault_is() -> None:
    """Metrics are of errors and faults by their names; what the exporter misses itself is not the node's fault."""
    declared = {metric for found in discover.collectors().values() for metric in found.metrics if not metric.literal}
    errors = {it.name for it in declared if it.name.endswith("errors") and not it.name.startswith("accel_exporter")}
    assert errors < {it.name for it in declared if it.fault}
    assert {"accel.node.fault", "hw.errors", "gpu.bus.losses", "nccl.last_error.timestamp"} < {
        it.name for it in declared if it.fault
    }
    assert not any(it.fault for it in declared if it.name.startswith("accel_exporter"))


def test_the_limit_of_a_page() -> None:
    """The limit holds for all collectors together, and for each selection of them by itself; 0 is none."""
    samples = [*calls(p1=5, p2=7), *more(50)]
    page = Pages(22, Profile.DEBUG, clock=iter((1.0, 3.0)).__next__)
    written: list[Sequence[Sample]] = []

    def write(within: Sequence[Sample]) -> tuple[bytes, int]:
        written.append(within)
        return b"page", 4711

    assert [] == [*page.collect()]
    assert b"page" == page.write(lambda: samples, None, Profile.DEBUG, write)
    assert 17 == lines([*written[0]]) == series_lines(written[0]) - 2  # one metric is folded, into one series
    assert [
        ("accel_exporter.page.series", 19),
        ("accel_exporter.page.size", 4711),
        ("accel_exporter.page.render.time", 2),
    ] == [(it.metric.name, it.value) for it in page.collect()]
    few = frozenset({"cuda"})
    page = Pages(20, Profile.DEBUG)
    page.write(lambda: samples, few, Profile.DEBUG, write)
    page.write(lambda: samples[:3], None, Profile.DEBUG, write)
    page.write(lambda: samples, few, Profile.DEBUG, write)
    assert [*written[-1]] == [*written[-3]] and 0 == folded(written[-2], "page")
    Pages(0, Profile.DEBUG).write(lambda: samples, None, Profile.DEBUG, write)
    assert samples == written[-1]


def test_identity_is_declared() -> None:
    """Every metric with a label that names one of many things that come and go declares it, and only labels it has."""
    declared = {metric for found in discover.collectors().values() for metric in found.metrics}
    names = {"qp", "peer_qp", "peer_gid", "local_gid", "comm_hash", "rank"}
    assert {} == {it.name: missing for it in declared if (missing := names & {*it.labels} - {*it.identity})}
    assert {} == {it.name: it.identity for it in declared if not set(it.identity) <= set(it.labels)}


def test_a_process_that_is_shown_no_more() -> None:
    """The counts stay with the workload's labels, each once: also those that had been folded before. Gauges go."""
    now = 0.0
    limit = SeriesLimit("test", 100, lambda: now)
    first = [Sample(CALLS, {"pid": "1", "pod": "a", "api": "x"}, 5), USED.sample(3, {"pid": "1"})]
    limit.apply([*first, *calls(p2=7)])
    limit.retire(first, 300.0)
    result = limit.apply(calls(p2=7))
    assert {("calls", "+"): 5, ("calls", "2"): 7} == shown(result)
    assert {"pod": "a", "api": "x", "overflow": "true"} in [sample.labels for sample in result]
    now = 301.0
    assert {("calls", "2"): 7} == shown(limit.apply(calls(p2=7)))

    full = SeriesLimit("test", 20, lambda: now)
    full.apply([*more(16), *calls(p1=5, p2=6)])
    full.retire(calls(p1=8), 300.0)  # 5 of them are in the folded series already
    assert {("calls", "+"): 14} == shown(full.apply([*more(16), *calls(p2=6)]))


def test_a_collector_that_begins_to_fold() -> None:
    """Series that its first page with folded ones does not show any more are counted once on a page that folds too."""
    limit, page = SeriesLimit("test", 20), Pages(14, Profile.DEBUG)
    for count in (15, 20):
        of_collector = limit.apply(calls(**{f"p{number}": 1 for number in range(count, 0, -1)}))
        on_page = page.within(lambda: of_collector, None, Profile.DEBUG)  # noqa: B023
        totals = [sum(int(it.value) for it in of if it.metric is CALLS) for of in (of_collector, on_page)]  # type: ignore[arg-type]
        assert [count, count] == totals


def test_histograms_with_other_bounds() -> None:
    """Engines of two versions have other buckets: added up are those that both have, the sum and the count."""
    first = [Distribution((1.0, 2.0, 4.0), (1, 2, 3, 4), 23.0), Distribution((2.0, 8.0), (5, 6, 7), 19.0)]
    both = Distribution((2.0,), (1 + 2 + 5, 3 + 4 + 6 + 7), 42.0)
    declared = Metric("vllm:e2e", "", Kind.HISTOGRAM, process=True, literal=True)

    def of(values: Sequence[Distribution]) -> list[Sample]:
        return [declared.sample(value, {"pid": str(pid)}) for pid, value in enumerate(values)]

    limit = SeriesLimit("test", 1000, profile=Profile.FLEET)
    for _ in range(2):
        assert [both] == [it.value for it in limit.apply(of(first)) if it.metric is declared]
    limit = SeriesLimit("test", 40)
    for _ in range(2):
        result = limit.apply([*more(32), *of(first)])
        assert [both] == [it.value for it in result if it.metric is declared]
    changed = [first[0], Distribution((3.0,), (100, 100), 1.0)]
    result = limit.apply([*more(32), *of(changed)])
    assert [28] == [sum(it.value.counts) for it in result if isinstance(it.value, Distribution)]


def test_a_name_of_two_kinds() -> None:
    """One engine declares as a histogram what another one has as a counter: neither is added to the other."""
    counter = Metric("vllm:n", "", Kind.COUNTER, process=True, literal=True)
    histogram = Metric("vllm:n", "", Kind.HISTOGRAM, process=True, literal=True)
    samples = [
        counter.sample(23, {"pid": "1"}),
        histogram.sample(Distribution((1.0,), (1, 2), 3.0), {"pid": "2"}),
        counter.sample(19, {"pid": "3"}),
    ]
    for limit in (SeriesLimit("test", 1000, profile=Profile.FLEET), SeriesLimit("test", 40)):
        for _ in range(2):
            result = limit.apply([*more(32), *samples])
            assert 42 == sum(int(it.value) for it in result if it.metric is counter)  # type: ignore[arg-type]
            assert [3] == [sum(it.value.counts) for it in result if isinstance(it.value, Distribution)]
