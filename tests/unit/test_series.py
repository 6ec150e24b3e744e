"""The limit on a collector's series."""

from __future__ import annotations

from collections.abc import Iterator

from exporter import discover
from exporter.model import Distribution, Kind, Metric, Sample, Value
from exporter.series import FOLDED, SeriesLimit
from exporter.verbs import control_samples, metrics
from exporter.views import prometheus

CALLS = Metric("calls", "", Kind.COUNTER, labels=("api",), process=True)
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
        if sample.metric is not FOLDED and not sample.labels.get("pid", "").startswith("x")
    }


def folded(samples: list[Sample]) -> Value:
    [sample] = [sample for sample in samples if sample.metric is FOLDED]
    assert {"collector": "test"} == sample.labels
    return sample.value


def lines(samples: list[Sample]) -> int:
    """Lines of /metrics with values, but for the one of FOLDED."""
    text = prometheus.render(it for it in samples if it.metric is not FOLDED).text.decode()
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
    """Where a metric's own labels are too many, one series without any takes the rest; where metrics are, none does."""
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
    """When some of its members go, what they counted stays; new members are added, and shown series stay shown."""
    limit = SeriesLimit("test", 10)
    assert 5 == shown(limit.apply([*more(7), *calls(p1=1, p2=5, p3=0)]))["calls", "+"]
    assert 8 == shown(limit.apply([*more(7), *calls(p2=8, p3=0, p1=1)]))["calls", "+"]
    assert {("calls", "1"): 1, ("calls", "+"): 8} == shown(limit.apply([*more(7), *calls(p1=1, p3=0)]))
    assert 10 == shown(limit.apply([*more(7), *calls(p1=1, p3=0, p4=2)]))["calls", "+"]


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


def test_histograms_are_added_up() -> None:
    """Counts and sums of folded histograms add up bucket by bucket, and never fall."""
    limit = SeriesLimit("test", 40)
    samples = [WAITED.sample(Distribution((1.0,), (1, n), 2.0), {"pid": str(n)}) for n in (2, 3)]
    assert Distribution((1.0,), (2, 5), 4.0) == shown(limit.apply([*more(32), *samples]))["waited", "+"]
    assert Distribution((1.0,), (2, 5), 4.0) == shown(limit.apply([*more(32), samples[0]]))["waited", "+"]


RANKS, QUEUES, RESTARTS, LIMIT = 8, 256, 5, 10_000
RETENTION = 300


def job(run: int, turn: int) -> Iterator[Sample]:
    """The data path of a job's queue pairs as the verbs collector shows it: new pids and numbers at each restart."""
    for rank in range(RANKS):
        who = {"pid": f"{run * 1000 + rank}", "comm": "python3", "container_id": "c", "pod": f"train-{rank}"}
        for queue in range(QUEUES):
            own = {**who, "device": f"mlx5_{rank}", "qp": str((run * RANKS + rank) * QUEUES + queue)}
            yield metrics.POSTS.sample(turn, own)
            peer = {**own, "peer_qp": str(queue), "peer_gid": f"fe80::{queue}"}
            for opcode in ("SEND", "RDMA_WRITE"):
                for metric in (metrics.BYTES, metrics.REQUESTS, metrics.PACKETS):
                    yield metric.sample(turn, {**peer, "opcode": opcode})
            yield control_samples.QP.sample(1, {**peer, "port": "1", "type": "RC", "state": "RTS", "mtu": "4096"})


def test_a_job_that_restarts() -> None:
    """Runs of 16,384 series follow each other: the limit holds at each scrape, no folded counter falls, and five
    minutes after the end of the last process all is gone.
    """
    limit, falls, before = SeriesLimit("verbs", LIMIT), [], dict[frozenset[tuple[str, str]], float]()
    runs = [(60 * number, 60 * number + 50) for number in range(RESTARTS)]
    end = runs[-1][1] + RETENTION
    for now in (*range(0, end, 60), end):
        alive = [(run, min(now, last)) for run, (first, last) in enumerate(runs) if first <= now < last + RETENTION]
        samples = [sample for run, until in alive for sample in job(run, until - runs[run][0] + 1)]
        result = limit.apply(samples)
        assert len(result) <= LIMIT + 1  # that of FOLDED
        after = {
            frozenset({**it.labels, "": it.metric.name}.items()): it.value
            for it in result
            if "overflow" in it.labels and it.metric.kind is Kind.COUNTER and isinstance(it.value, int)
        }
        falls += [key for key in after if after[key] < before.get(key, 0)]
        before = after
    assert ([], [], 0) == (falls, result[:-1], len(limit._shown) + len(limit._members) + len(limit._folds))


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
