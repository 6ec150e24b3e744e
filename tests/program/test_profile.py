"""Profiles: how many series a node has, that sums agree, and that nothing that alerts use is left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from dashboards import queries
from dashboards.parts import DETAIL
from exporter import collector_state, discover
from exporter.bpf import probe_metrics, status
from exporter.bpf.maps import MAP_FULL
from exporter.collectors import allocation
from exporter.durations import durations
from exporter.exponential import schema
from exporter.faults import metrics as faults
from exporter.kubernetes import pods
from exporter.members import RETENTION
from exporter.model import PROCESS_LABELS, Distribution, Exemplar, Kind, Metric, Sample
from exporter.page import Pages
from exporter.profile import (
    _IN_DEBUG,
    _IN_DEBUG_LABELS,
    _IN_NODE,
    _IN_NODE_LABELS,
    _REST_IN_DEBUG,
    _WITH_GPU,
    BUCKETS,
    CONVENTIONAL,
    MEANS,
    MOST_SINGLY,
    SINGLY,
    Profile,
    rule_of,
)
from exporter.ras import metrics as ras
from exporter.ras.report import Missing, Rank, RasCommunicator, Report
from exporter.ras.samples import samples as ras_samples
from exporter.reduction import MOST_RULES, Reduction
from exporter.resolve import workload
from exporter.series import LIMIT, SeriesLimit
from exporter.serving import activity as serving
from exporter.values import classic, lines, lines_of, merged
from exporter.verbs import control_samples, metrics
from exporter.views import prometheus
from tests import metric_names, typical_node

ROOT = Path(__file__).parents[2]
FEW = (Profile.FLEET, Profile.NODE)
OTHERS = (
    *(probe_metrics.ATTACHED, probe_metrics.HITS, MAP_FULL, status.DISCOVERY, LIMIT),
    *(collector_state.DURATION, collector_state.SERIES),
)
CALLS = Metric("calls", "", Kind.COUNTER, labels=("api",), process=True)
ERRORS = Metric("calls.errors", "", Kind.COUNTER, process=True)
HELD = Metric("gpu.process.memory.usage", "", Kind.GAUGE, process=True)
USED = Metric("used", "", Kind.GAUGE, process=True)
LAST = Metric("last.timestamp", "", Kind.GAUGE, "s", process=True)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    return typical_node.node(tmp_path_factory.mktemp("sys"), 5)


def declared() -> dict[str, Metric]:
    found = {
        metric.name: metric for it in discover.collectors().values() for metric in it.metrics if not metric.literal
    }
    return found | {metric.name: metric for metric in OTHERS}


@pytest.mark.parametrize(
    ("profile", "least", "most"), [("debug", 20_000, 30_000), ("node", 2_000, 3_000), ("fleet", 800, 1_200)]
)
def test_a_typical_node(node: list[Sample], profile: str, least: int, most: int) -> None:
    """8 GPUs with NVLink, 8 NICs, 8 ranks with 256 queue pairs each: lines of the page by profile."""
    page = prometheus.render(Pages(50_000, Profile.DEBUG).within(lambda: node, None, Profile.of(profile)))
    assert (0, 0) == (page.duplicates, page.malformed)
    assert least < sum(not line.startswith(b"#") for line in page.text.splitlines()) <= most


WORLD, TENSOR, PIPELINE = 2048, 8, 8
"""Ranks of a job, and of its groups of tensor and pipeline parallelism."""


def job(behind: Iterable[int] = (), missing: Iterable[int] = ()) -> Report:
    """The report of RAS on a job of 256 nodes, where some ranks are a collective behind or do not answer."""
    late, absent = {*behind}, {*missing}
    stage = WORLD // PIPELINE
    groups = [[*range(WORLD)], *([*range(first, first + TENSOR)] for first in range(0, WORLD, TENSOR))]
    groups += [[*range(first, WORLD, stage)] for first in range(stage)]
    groups += [[*range(at + it, at + stage, TENSOR)] for at in range(0, WORLD, stage) for it in range(TENSOR)]
    comms = []
    for number, group in enumerate(groups):
        calls = {rank: {"AllReduce": 10 - (rank in late), "AllGather": 5, "ReduceScatter": 5} for rank in group}
        there = tuple(Rank(at, f"h{it // 8}", calls[it], 0, 0) for at, it in enumerate(group) if it not in absent)
        away = tuple(Missing(at, f"h{it // 8}", "dead") for at, it in enumerate(group) if it in absent)
        comms.append(RasCommunicator(f"{number:016x}", len(group), len(away), there, away))
    return Report("2.28.7", len(comms), tuple(comms), len(absent), 0, 0.1)


@pytest.mark.parametrize("profile", FEW)
@pytest.mark.parametrize(
    ("behind", "missing", "lags", "named"),
    [
        ((), (), 0, 0),
        (range(0, WORLD, 2), (), 16, 0),  # ranks report one after the other, while the job runs
        ((77,), (), 4, 0),
        ((), range(8, 16), 0, 30),
        ((), range(WORLD // 2), 0, 64),
    ],
)
def test_a_job_of_many_communicators(
    profile: Profile, behind: Iterable[int], missing: Iterable[int], lags: int, named: int
) -> None:
    """The node with rank 0 of a large job has few series of the job's RAS, including those of late or missing ranks."""
    report = job(behind, missing)
    found = Reduction(profile).apply(ras_samples([report]))
    of = Counter(sample.metric for sample in found)
    assert len(report.communicators) > 500 and lines(found) < 300
    assert (lags, named) == (of[ras.LAG], of[ras.RANK_MISSING])
    assert {it.value for it in found if it.metric is ras.LAG} <= {1}
    whole = {it.metric: it.value for it in found if it.labels.get("comm_hash") == f"{0:016x}" and it.value}
    assert WORLD == whole[ras.SIZE] and whole.get(ras.MISSING, 0) == len([*missing])
    counted = {it.labels["comm_hash"] for it in found if it.metric is ras.CALLS}
    assert {it.labels["comm_hash"] for it in found if it.metric is ras.LAG} <= counted
    debug = Reduction(Profile.DEBUG).apply(ras_samples([report]))
    assert len(report.communicators) == sum(it.metric is ras.SIZE for it in debug)


def test_the_worst_ranks_are_shown() -> None:
    """The ranks most behind have a series, in whatever order the ranks come."""
    own = [ras.LAG.sample(lag, {"comm_hash": "a", "rank": str(lag)}) for lag in range(40)]
    found = Reduction(Profile.NODE).apply(own)
    assert [*range(39, 23, -1)] == [it.value for it in found]


def test_the_fleet_has_alerts_of_the_hardware() -> None:
    """Alerts of faults, GPUs, RDMA and Xids have their series in fleet too, where a node is one of thousands."""
    hardware = {
        rule["alert"]: rule["expr"]
        for stem in ("faults", "gpu", "rdma", "xid")
        for group in yaml.safe_load((ROOT / "alerts" / f"{stem}.yaml").read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    lacking = {
        (alert, name)
        for alert, expr in hardware.items()
        for name, metric in declared().items()
        if wanted(expr, metric) and not rule_of(metric, Profile.FLEET).shown and name not in SINGLY
    }
    assert len(hardware) > 40
    assert set() == lacking


def totals(samples: Iterable[Sample]) -> dict[str, float]:
    """The sum of each counter over all its series; of a histogram its observations, and their sum."""
    found: Counter[str] = Counter()
    for sample in samples:
        name, value = sample.metric.name, sample.value
        if isinstance(value, Distribution):
            found[f"{name} count"] += sum(value.counts)
            found[f"{name} sum"] += value.sum
        elif sample.metric.kind is Kind.COUNTER:
            found[name] += value
    return found


@pytest.mark.parametrize("profile", FEW)
def test_sums_agree(profile: Profile, tmp_path: Path) -> None:
    """Every counter that a profile has adds up to what debug has, at each scrape, also from profile to profile; seconds
    agree but for rounding.
    """
    straight, stepwise = Reduction(profile), (Reduction(Profile.NODE), Reduction(profile))
    for turn in (3, 7, 8):
        samples = typical_node.node(tmp_path / str(turn), turn)
        exact, found = totals(samples), totals(straight.apply(samples))
        for name in found.keys() - _REST_IN_DEBUG:
            assert exact[name] == (
                found[name] if type(exact[name]) is int else pytest.approx(found[name], rel=1e-12)
            ), name
        assert found == pytest.approx(totals(stepwise[1].apply(stepwise[0].apply(samples))), rel=1e-12)
    assert len(found) > 20


def test_buckets_are_merged_exactly() -> None:
    """Cumulated counts at the bounds that stay are those of before; an exemplar goes with its bucket."""
    exemplar = Exemplar(0.2, 1.0, "a", "b")
    fine = Distribution(tuple(float(2**n) for n in range(27)), tuple(range(28)), 12.5, {5: exemplar})
    few = merged(fine, 6)
    coarse = classic(few)
    assert (fine.bounds, fine.counts, fine.exemplars) == (few.bounds, few.counts, few.exemplars)
    assert lines_of(few) == lines_of(coarse)
    assert (5, 12.5, sum(fine.counts)) == (len(coarse.counts), coarse.sum, sum(coarse.counts))
    assert (2.0**5, 2.0**11, 2.0**17, 2.0**23) == coarse.bounds
    for at, bound in enumerate(coarse.bounds):
        assert sum(fine.counts[: fine.bounds.index(bound) + 1]) == sum(coarse.counts[: at + 1])
    [at] = coarse.exemplars
    assert 2.0**5 <= coarse.bounds[at] and (not at or coarse.bounds[at - 1] < 2.0**5)
    assert merged(few, 6) is few and merged(coarse, 6) is coarse
    assert coarse is classic(coarse)


@pytest.mark.parametrize("profile", Profile)
def test_exemplars_of_sums(profile: Profile) -> None:
    """A sum has the newest exemplar of each bucket, of its series on the page; of other buckets it has none."""
    waited = Metric("gpu.cuda.sync_wait", "", Kind.HISTOGRAM, "s", labels=("api",), process=True)
    old, new, other = (Exemplar(0.5, at, "a" * 32, f"{at:016.0f}") for at in (1.0, 2.0, 3.0))
    reduction = Reduction(profile)

    def found(*own: tuple[str, tuple[float, ...], dict[int, Exemplar]]) -> dict[int, Exemplar]:
        samples = [
            waited.sample(Distribution(bounds, (1,) * (len(bounds) + 1), 1.0, exemplars), {"pid": "1", "api": api})
            for api, bounds, exemplars in own
        ]
        result = [it.value for it in reduction.apply(samples)]
        return {at: one for it in result if isinstance(it, Distribution) for at, one in classic(it).exemplars.items()}

    one, two = ("a", (1.0, 2.0), {0: new}), ("b", (1.0, 2.0), {0: old, 2: other})
    assert found(one, two) == {0: old if profile is Profile.DEBUG else new, 2: other}
    assert found(two) == {0: old, 2: other}
    if profile < Profile.DEBUG:
        assert {} == found(one, ("c", (2.0,), {}))


@pytest.mark.parametrize(("profile", "shown"), [(Profile.DEBUG, 12), (Profile.NODE, 8), (Profile.FLEET, 4)])
def test_durations_have_few_classic_buckets(profile: Profile, shown: int) -> None:
    """A profile leaves the counts of all bounds to native histograms; the debug profile too has 12 buckets at most.

    Those of the conventions for GenAI have as many in node as in debug, 12 too.
    """
    fine = durations([*range(38)], 23 * 10**9)
    waited, first = metrics.LATENCY, declared()["gen_ai.server.time_to_first_token"]
    conventional = serving.Histogram(serving.FIRST_TOKEN).distribution()
    found = {it.metric: it.value for it in Reduction(profile).apply([waited.sample(fine), first.sample(conventional)])}
    few, of_convention = found[waited], found[first]
    assert isinstance(few, Distribution) and isinstance(of_convention, Distribution)
    assert (fine.bounds, fine.counts) == (few.bounds, few.counts)
    assert shown // 2 < len(classic(few).counts) <= shown
    assert sum(fine.counts) == sum(classic(few).counts)
    assert len(classic(of_convention).counts) == (3 if profile is Profile.FLEET else 12)
    retired = [lines_of(it.value) for it in Reduction(profile).retire([waited.sample(fine, {"pid": "1"})], 1)]
    assert retired == ([] if profile is Profile.FLEET else [lines_of(few)])  # there it is in the sum over processes


def test_buckets_of_requests() -> None:
    """Each histogram of requests to LLM servers has 12 classic buckets at most; a count is in the next shown bound."""
    all_bounds = (serving.DURATION, serving.FIRST_TOKEN, serving.PER_TOKEN, serving.QUEUE, serving.gap_bounds(32))
    for bounds in all_bounds:
        made = serving.Histogram(bounds)
        for value in (*bounds, 1e9):
            made.observe(value)
        few = merged(made.distribution(), BUCKETS[Profile.DEBUG])
        shown = classic(few)
        assert len(shown.counts) <= 12 and {*shown.bounds} <= {*bounds}
        assert len(bounds) + 1 == sum(shown.counts) and few.counts == tuple(made.counts)
    assert 16 == len(serving.FIRST_TOKEN)


def test_few_buckets_of_a_mean(node: list[Sample]) -> None:
    """Histograms that dashboards use only for the mean have two classic buckets; sum, count and all bounds stay."""
    for profile in FEW:
        found = [it for it in Reduction(profile).apply(node) if it.metric.name in MEANS]
        assert {it.metric.name for it in found} == (MEANS if profile is Profile.NODE else set())
        assert all(isinstance(it.value, Distribution) and len(classic(it.value).counts) == 2 for it in found)
        assert all(isinstance(it.value, Distribution) and len(it.value.bounds) > 20 for it in found)
    buckets = "|".join(f"{prometheus.name(declared()[name])}_bucket" for name in MEANS)
    detail = [it for it in queries.panels() if any(re.search(buckets, expr) for expr, _ in it.queries("1m").values())]
    assert [] == detail


def test_counters_never_fall() -> None:
    """Counts of a process stay while its job has others, and for minutes after the end of the last process; each new
    start adds to them. Gauges are of now.
    """
    now = 0.0

    def scrape(**by_pid: int) -> dict[str, float]:
        samples = [
            metric.sample(value, {"pid": pid, "pod": "a", "container_id": f"c{pid}"})
            for pid, value in by_pid.items()
            for metric in (CALLS, USED, LAST)
        ]
        found = reduction.apply(samples)
        assert all({"pod"} == {*sample.labels} for sample in found)
        return {sample.metric.name: sample.value for sample in found}  # type: ignore[misc]

    reduction = Reduction(Profile.FLEET, lambda: now)
    assert {"calls": 7, "used": 7, "last.timestamp": 5} == scrape(p1=5, p2=2)
    assert {"calls": 9, "used": 4, "last.timestamp": 4} == scrape(p2=4)
    assert {"calls": 13, "used": 4, "last.timestamp": 3} == scrape(p2=1, p3=3)
    assert {} == scrape()
    assert {"calls": 14, "used": 1, "last.timestamp": 1} == scrape(p4=1)
    assert {} == scrape()
    now = RETENTION
    assert {} == scrape()
    assert {"calls": 1, "used": 1, "last.timestamp": 1} == scrape(p4=1)


IN_POD = {"pod": "a", "namespace": "n", "container_id": "c"}
ON_GPU = {"gpu": "0", "gpu_uuid": "u"}
ON_CARD = {"card": "card1", "pci_bus_id": "0000:c1:00.0"}


@pytest.mark.parametrize("most", [1000, 10])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        *(({}, IN_POD), ({}, ON_GPU), ({}, IN_POD | ON_GPU), (ON_GPU, {}), (ON_GPU, IN_POD)),
        *(({}, ON_CARD), (ON_CARD, {}), (ON_CARD, IN_POD)),
    ],
)
@pytest.mark.parametrize("alone", [False, True])
def test_labels_that_become_known(before: dict[str, str], after: dict[str, str], most: int, alone: bool) -> None:
    """Counts of a process from before the name of its pod, or its GPU, was known are not counted again with it, in sums
    and in folded series; nor are counts from before the use of a second GPU.
    """
    limit = SeriesLimit("test", most, profile=Profile.FLEET if most > 10 else Profile.DEBUG)
    others = [USED.sample(1, {"pid": f"x{number}"}) for number in range(8)]
    if not alone:  # the sum that the process was part of has another one
        others.append(Sample(CALLS, {"pid": "2", "comm": "h"} | before, 5, 1.0))
    who = {"pid": "1", "comm": "x"}
    pages = (
        (15, [Sample(CALLS, who | before, 10, 2.0)]),
        (17, [Sample(CALLS, who | after, 12, 2.0)]),
        (18, [Sample(CALLS, who | after, 13, 2.0)]),
        (28, [Sample(CALLS, who | after, 13, 2.0), Sample(CALLS, who | before, 10, 3.0)]),  # another process
        (29, [Sample(CALLS, who | after, 14, 2.0), Sample(CALLS, who | before, 10, 3.0)]),
    )
    for expected, samples in pages:
        found = [it for it in limit.apply([*others, *samples]) if it.metric is CALLS]
        assert expected - 5 * alone == sum(int(it.value) for it in found)  # type: ignore[arg-type]


def test_labels_that_become_known_after_another_end() -> None:
    """Counts from before the name of a pod was known stay in their sum, even if its other series have vanished."""
    limit = SeriesLimit("test", 1000, profile=Profile.FLEET)
    ended, who = Sample(CALLS, {"pid": "2", "comm": "h"}, 5, 1.0), {"pid": "1", "comm": "x"}
    pages: tuple[tuple[int, list[Sample]], ...] = (
        (15, [ended, Sample(CALLS, who, 10, 2.0)]),
        (15, [Sample(CALLS, who, 10, 2.0)]),
        (16, [Sample(CALLS, who | IN_POD, 11, 2.0)]),
        (17, [Sample(CALLS, who | IN_POD, 12, 2.0)]),
        (17, [ended, Sample(CALLS, who | IN_POD, 12, 2.0)]),
    )
    for expected, samples in pages:
        found = [it for it in limit.apply(samples) if it.metric is CALLS]
        assert expected == sum(int(it.value) for it in found)  # type: ignore[arg-type]


def test_a_sum_stays_with_the_process_that_left_it() -> None:
    """A sum with counts from before the name of a pod was known is shown until the process ends, even if the other
    processes of the sum ended long before.
    """
    now = 0.0
    limit = SeriesLimit("test", 1000, lambda: now, Profile.FLEET)
    other, who = Sample(CALLS, {"pid": "2", "comm": "h"}, 5, 1.0), {"pid": "1", "comm": "x"}
    pages: tuple[tuple[list[int], list[Sample]], ...] = (
        ([15], [other, Sample(CALLS, who, 10, 2.0)]),
        ([15, 2], [other, Sample(CALLS, who | IN_POD, 12, 2.0)]),
        ([15, 3], [Sample(CALLS, who | IN_POD, 13, 2.0)]),
        ([15, 4], [Sample(CALLS, who | IN_POD, 14, 2.0)]),
        ([], []),
    )
    for expected, samples in pages:
        assert expected == [it.value for it in limit.apply(samples) if it.metric is CALLS]
        now += RETENTION


def test_series_of_two_gpus() -> None:
    """A series of one GPU of a process is not taken for that of another one, which began as the first was missing."""
    limit = SeriesLimit("test", 10)
    others = [USED.sample(1, {"pid": f"x{number}"}) for number in range(8)]
    one, two = ({"pid": "1", "gpu": gpu, "gpu_uuid": f"u{gpu}"} for gpu in "01")
    for expected, sample in ((10, Sample(CALLS, one, 10, 2.0)), (22, Sample(CALLS, two, 12, 2.0))):
        found = [it for it in limit.apply([*others, sample]) if it.metric is CALLS]
        assert expected == sum(int(it.value) for it in found)  # type: ignore[arg-type]


def test_what_is_missing_from_a_page_is_not_counted_again() -> None:
    """A series that is missing once, because one reading or one collector failed, goes on where it was."""
    reduction = Reduction(Profile.FLEET)
    for pids, expected in (("12", 30), ("1", 30), ("12", 30), ("", None), ("12", 30), ("2", 30)):
        samples = [CALLS.sample(10 * int(pid), {"pid": pid, "pod": "a"}) for pid in pids]
        assert [expected] * bool(pids) == [sample.value for sample in reduction.apply(samples)]
    assert [31] == [sample.value for sample in reduction.apply([CALLS.sample(11, {"pid": "1", "pod": "a"})])]


@pytest.mark.parametrize("later", [2.0, 1.0])
def test_a_program_that_is_replaced(later: float) -> None:
    """A process that runs another program, of the same name, counts from 0 again, as its start shows."""
    reduction = Reduction(Profile.FLEET)
    found = [
        reduction.apply([Sample(CALLS, {"pid": "1", "pod": "a"}, calls, start)])[0].value
        for calls, start in ((100, 1.0), (120, later))
    ]
    assert [100, 220 if later > 1 else 120] == found


@pytest.mark.parametrize("seen", [True, False])
def test_a_process_that_is_shown_no_more(seen: bool) -> None:
    """Counts of a process are in the sum, once, whether it was on a page before or not; the sum stays for a while."""
    now = 0.0
    limit = SeriesLimit("test", 1000, lambda: now, Profile.FLEET)
    before, after = (Sample(CALLS, {"pid": "1", "pod": "a"}, calls, start) for calls, start in ((100, 1.0), (50, 2.0)))
    if seen:
        limit.apply([Sample(CALLS, before.labels, 90, 1.0)])
    limit.retire([before], 300)
    assert [100] == [sample.value for sample in limit.apply([]) if sample.metric is CALLS]
    assert [150] == [sample.value for sample in limit.apply([after]) if sample.metric is CALLS]
    limit.retire([after], 300)
    now = 300.0
    assert [] == [sample for sample in limit.apply([]) if sample.metric is CALLS]


def program(explicit: int, implicit: int, start: float) -> list[Sample]:
    """Return the frees of a program with pid 1, of which the profile node shows the sum."""
    metric, labels = declared()["gpu.cuda.memory.frees"], {"pid": "1", "comm": "python3", "memory": "device"}
    return [Sample(metric, labels, explicit, start), Sample(metric, {**labels, "implicit": "true"}, implicit, start)]


def freed(samples: Iterable[Sample]) -> dict[tuple[str | None, str | None], object]:
    """Return the frees that are shown, by pid and overflow."""
    shown = [it for it in samples if it.metric.name == "gpu.cuda.memory.frees"]
    return {(it.labels.get("pid"), it.labels.get("overflow")): it.value for it in shown}


@pytest.mark.parametrize("seen", [True, False])
def test_next_program_of_a_process_counts_from_0(seen: bool) -> None:
    """Counts of a program that another one replaced are folded, and are not counts of the new program with its pid.

    The same applies to sums of the profile for each process: over functions, or of implicit and other frees.
    """
    limit = SeriesLimit("test", 1000, profile=Profile.NODE)

    def found(samples: list[Sample]) -> dict[tuple[str | None, str | None], object]:
        return freed(limit.apply(samples))

    if seen:
        assert {("1", None): 5} == found(program(5, 0, 1.0))
    limit.retire(program(5, 60, 1.0), 300)
    assert {(None, "true"): 65} == found([])
    assert {("1", None): 7, (None, "true"): 65} == found(program(7, 0, 2.0))
    limit.retire(program(8, 1, 2.0), 300)
    assert {(None, "true"): 74} == found([])


@pytest.mark.parametrize("collected", [Profile.NODE, Profile.DEBUG])
def test_next_program_of_a_process_counts_from_0_on_a_page(collected: Profile) -> None:
    """A replaced program is folded on a page of the profile node too, if the collector has this or a higher profile."""
    limit, pages = SeriesLimit("test", 1000, profile=collected), Pages(0, collected)

    def found(samples: list[Sample]) -> dict[tuple[str | None, str | None], object]:
        return freed(pages.within(lambda: limit.apply(samples), None, Profile.NODE))

    assert {("1", None): 5} == found(program(5, 0, 1.0))
    limit.retire(program(5, 60, 1.0), 300)
    assert {("1", None): 7, (None, "true"): 65} == found(program(7, 0, 2.0))
    assert {("1", None): 9, (None, "true"): 65} == found(program(8, 1, 2.0))


SINGLE = ("qp", "symbol", "link", "map", "sensor")


def test_what_does_not_work_is_shown_singly() -> None:
    """A queue pair in an error state, a symbol without a probe, a map that was full, an alarm and an NVLink that is
    down have their series in every profile.
    """
    pair = {"pid": "1", "device": "d"}
    samples = [
        control_samples.QP.sample(3, {**pair, "qp": "5"}),
        control_samples.QP.sample(6, {**pair, "qp": "6"}),
        *(
            probe_metrics.ATTACHED.sample(value, {"probe": "cuda", "symbol": symbol, "library": "l"})
            for symbol, value in (("a", 1), ("b", 1), ("c", 0))
        ),
        *(MAP_FULL.sample(keys, {"map": f"m{keys}"}) for keys in (0, 9)),
        *(faults.ALARM.sample(int(it == "b"), {"chip": "c", "sensor": it}) for it in "abc"),
        *(declared()["gpu.nvlink.link.up"].sample(int(it != "4"), {"gpu": "0", "link": it}) for it in ("3", "4", "5")),
    ]
    for profile in FEW:
        found = [
            (next((sample.labels[it] for it in SINGLE if it in sample.labels), ""), sample.value)
            for sample in Reduction(profile).apply(samples)
        ]
        others = [("", 2), ("", 0), ("", 2), ("", 0)]
        assert [("c", 0), ("m9", 9), ("b", 1), ("4", 0), *others, ("6", 6)] == found


def test_failed_queue_pairs_are_a_few() -> None:
    """Of thousands in an error state the same few have a series of their own, whatever their order."""
    pairs = [control_samples.QP.sample(6, {"pid": "1", "device": "d", "qp": str(number)}) for number in range(5000)]
    for profile in FEW:
        reduction = Reduction(profile)
        found, again = reduction.apply(pairs), reduction.apply(pairs[::-1])
        assert found == again and MOST_SINGLY["rdma.qp.state"] == len(found)


def test_peers_of_a_process(node: list[Sample]) -> None:
    """In profile node bytes are by process, device and peer's GID, requests by opcode, and neither by queue pair."""
    found = Reduction(Profile.NODE).apply(node)
    sent = [sample for sample in found if sample.metric is metrics.BYTES]
    assert typical_node.RANKS * typical_node.HOSTS == len(sent)
    assert {"pid", "device", "peer_gid"} <= {*sent[0].labels} and not {"qp", "peer_qp", "opcode"} & {*sent[0].labels}
    assert 5 * 4096 * 2 * typical_node.QUEUE_PAIRS // typical_node.HOSTS == sent[0].value


def test_errors_and_faults_are_in_every_profile() -> None:
    """No profile leaves out a metric of errors or faults, and none takes the process of one away."""
    for profile in FEW:
        rules = {name: rule_of(metric, profile) for name, metric in declared().items() if metric.fault}
        assert [] == [name for name, rule in rules.items() if not rule.shown]
        assert [] == [name for name, rule in rules.items() if {"pid", "comm", "comm_hash"} & rule.without]


def test_the_tables_name_what_there_is() -> None:
    """Every metric and label of the tables is declared."""
    known = declared()
    assert {*MOST_SINGLY} <= {*SINGLY} <= {*known}
    assert set() == {*_IN_DEBUG, *_IN_NODE, *_REST_IN_DEBUG, *_IN_DEBUG_LABELS, *_IN_NODE_LABELS} - {*known}
    assert set() == _IN_DEBUG & _IN_NODE
    for name, labels in (*_IN_DEBUG_LABELS.items(), *_IN_NODE_LABELS.items()):
        assert set() == {*labels} - {*known[name].labels}, name


def test_long_labels_are_joined() -> None:
    """Below debug the container's id and the GPU's UUID are on job_process_info, joined on the pid. Errors and what
    is joined with series of GPUs keep the UUID.
    """
    who = {"pid": "7", "comm": "x", "container_id": "c" * 64, "gpu": "0", "gpu_uuid": "u"}
    same = {"pid": "8", "container_id": "d" * 64}
    job = workload.INFO.sample(1, {**who, "rank": "3"})
    samples = [CALLS.sample(5, {**who, "api": "a"}), USED.sample(3, who), job, USED.sample(1, {"container_id": "e"})]
    samples += [ERRORS.sample(2, who), HELD.sample(9, who)]
    found = Reduction(Profile.NODE).apply(
        [*samples, USED.sample(4, same), USED.sample(6, {**same, "container_id": "f"})]
    )
    assert [
        ({"pid": "7", "comm": "x", "gpu": "0", "api": "a"}, 5),
        ({"pid": "7", "comm": "x", "gpu": "0"}, 3),
        (job.labels, 1),
        ({"container_id": "e"}, 1),
        ({"pid": "7", "comm": "x", "gpu": "0", "gpu_uuid": "u"}, 2),
        ({"pid": "7", "comm": "x", "gpu": "0", "gpu_uuid": "u"}, 9),
        ({"pid": "8"}, 4),
        ({"pid": "8", "container_id": "f"}, 6),
    ] == [(sample.labels, sample.value) for sample in found]


@pytest.mark.parametrize("profile", FEW)
def test_no_long_ids(profile: Profile, node: list[Sample]) -> None:
    """Of a whole node no other series of a process has the id of a container, and few have the UUID of a GPU."""
    samples = [it for it in Reduction(profile).apply(node) if it.metric.process]
    found = {it.metric.name for it in samples if "container_id" in it.labels}
    assert found == ({workload.INFO.name} if profile is Profile.NODE else set())
    with_uuid = {it.metric for it in samples if "gpu_uuid" in it.labels} - {workload.INFO}
    assert {it.name for it in with_uuid if not it.fault} == (_WITH_GPU if profile is Profile.NODE else set())


def test_what_is_joined_with_gpus_keeps_their_uuid() -> None:
    """Rules and dashboards that name gpu_uuid do not take it from series that lack it: these three go by pid there."""
    texts = [
        rule["expr"]
        for path in (ROOT / "alerts").glob("*.yaml")
        if not path.name.endswith(".test.yaml")
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]
    texts += [expr for panel in queries.panels() for expr, _ in panel.queries("1m").values()]
    lacking = {name: it for name, it in declared().items() if "gpu_uuid" in rule_of(it, Profile.NODE).joined}
    assert len(lacking) > 50
    by_pid = {"gpu.cuda.last_launch.timestamp", "gpu.hip.last_launch.timestamp", "nccl.calls.in_flight"}
    assert by_pid | {"nccl.rank.calls_behind"} == {
        name for expr in texts if "gpu_uuid" in expr for name, metric in lacking.items() if wanted(expr, metric)
    }


def test_label_names_of_a_series() -> None:
    """No metric has more than 20 label names, those of the process included."""
    names = {
        metric.name: {*metric.labels, *(PROCESS_LABELS if metric.process else ())} for metric in metric_names.metrics()
    }
    names[allocation.INFO.name] |= {f"label_{number}" for number in range(pods.MOST_NAMES)}
    assert len(names) > 400
    assert {} == {name: len(labels) for name, labels in names.items() if len(labels) > 20}


def test_rules_have_their_series() -> None:
    """Metrics used by alerts and recording rules are in profile node."""
    text = "".join(
        path.read_text() for path in (ROOT / "alerts").glob("*.yaml") if not path.name.endswith(".test.yaml")
    )
    left_out = {
        name
        for name, metric in declared().items()
        if not rule_of(metric, Profile.NODE).shown and name not in _REST_IN_DEBUG and wanted(text, metric)
    }
    assert set() == left_out


def test_bounds_that_are_named() -> None:
    """Bounds of buckets that alerts and dashboards name are there in profile node."""
    bounds = {
        "gen_ai.server.time_to_first_token": serving.FIRST_TOKEN,
        "gen_ai.server.time_per_output_token": serving.PER_TOKEN,
        "llm.socket.queue": serving.QUEUE,
    }
    texts = [path.read_text() for path in (ROOT / "alerts").glob("*.yaml") if not path.name.endswith(".test.yaml")]
    for board in queries.boards().values():
        exprs = [target["expr"] for panel in queries.flat(board) for target in panel.get("targets", ())]
        for each in board["templating"]["list"]:
            if each["type"] == "custom":
                exprs += [it.replace(f"${each['name']}", value) for it in exprs for value in each["query"].split(",")]
        texts += [expr for expr in exprs if 'le="$' not in expr]
    named: dict[str, set[float]] = {}
    for series, le in re.findall(r'(\w+_bucket)\{[^}]*\ble="([0-9.]+)"', "\n".join(texts)):
        named.setdefault(series, set()).add(float(le))
    found = {}
    for name, fine in bounds.items():
        sample = declared()[name].sample(serving.Histogram(fine).distribution(), {"pid": "1"})
        [coarse] = (it.value for it in Reduction(Profile.NODE).apply([sample]))
        assert isinstance(coarse, Distribution)
        found[f"{prometheus.name(declared()[name])}_bucket"] = {*classic(coarse).bounds}
    assert {} == {series: bounds - found[series] for series, bounds in named.items() if bounds - found[series]}
    assert {*found} == {*named}


def test_rules_name_labels_that_there_are() -> None:
    """No alert and no recording rule goes by a label that profile node leaves out."""
    rules = [
        rule["expr"]
        for path in (ROOT / "alerts").glob("*.yaml")
        if not path.name.endswith(".test.yaml")
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]
    assert len(rules) > 50
    assert set() == {found for expr in rules for found in lost(re.sub(r"without \([^)]*\)", "", expr))}


def test_panels_have_their_series() -> None:
    """Panels name metrics and labels that profile node has; those that do not are in the row of profile debug."""
    for panel in queries.panels():
        exprs = [expr for expr, _ in panel.queries("1m").values()]
        missing = {found for expr in exprs for part in re.split(r" or (?:on \([^)]*\))?", expr) for found in lost(part)}
        assert bool(missing) == (panel.row == DETAIL), (panel.board, panel.title, missing)


def lost(expr: str) -> set[str]:
    """Metrics of an expression that profile node does not have at all, and labels that it leaves out of them."""
    found = set()
    for name, metric in declared().items():
        if not wanted(expr, metric):
            continue
        rule = rule_of(metric, Profile.NODE)
        if rule.singly is None and not rule.shown or name == "rdma.qp.state":
            found.add(name)
        if rule.singly is None:
            read = re.sub(r'"[^"]*"', "", expr)  # what label_replace makes is not of the metric
            found |= {f"{name} {label}" for label in rule.without if re.search(rf"\b{label}\b", read)}
    return found


def wanted(text: str, metric: Metric) -> bool:
    return re.search(rf"\b{prometheus.name(metric)}(_bucket|_sum|_count)?\b", text) is not None


def test_a_request_for_a_profile() -> None:
    """A profile with fewer series than the exporter's own is served, one with more is an error with its remedy."""
    pages = Pages(0, Profile.NODE)
    assert (Profile.NODE, Profile.FLEET) == (pages.profile(None), pages.profile("fleet"))
    with pytest.raises(ValueError, match="start the exporter with --profile=debug"):
        pages.profile("debug")
    with pytest.raises(ValueError, match="one of fleet, node, debug"):
        pages.profile("Everything")


def test_ever_new_metrics_are_not_kept() -> None:
    """A page of another exporter that has other metrics each time takes no more and more memory."""
    reduction = Reduction(Profile.NODE)
    for number in range(MOST_RULES + 10):
        assert 1 == len(reduction.apply([Metric(f"m{number}", "", Kind.GAUGE).sample(1)]))
    assert len(reduction.rules) <= MOST_RULES


def test_histograms_of_rules_are_classic() -> None:
    """With native histograms in Prometheus, no rule loses the buckets, the sum or the count that it reads."""
    texts = [path.read_text() for path in (ROOT / "alerts").glob("*.yaml") if not path.name.endswith(".test.yaml")]
    read = {*re.findall(r"\b(\w+)_(?:bucket|sum|count)\b", "\n".join(texts))}
    found = {prometheus.name(it): it for it in declared().values() if it.kind is Kind.HISTOGRAM}
    of_rules = {name: found[name] for name in read & found.keys()}
    assert {"nccl_rank_arrival_lag_seconds", "llm_socket_queue_seconds"} <= of_rules.keys()
    assert [] == [name for name, it in of_rules.items() if not it.classic and not it.name.startswith(CONVENTIONAL)]
    assert all(schema(bounds) is None for bounds in (serving.DURATION, serving.FIRST_TOKEN, serving.PER_TOKEN))
