"""The variable `workload`: each panel on processes, evaluated by a Prometheus with synthetic series of all metrics.

The store has the same node several times, by `job`: with the processes of two workloads and others, with the processes
of only one workload, and with processes without a known workload.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping

import pytest

from dashboards import queries
from exporter.model import Metric
from tests.e2e.backend import Prometheus
from tests.metric_names import metrics, recorded, series_of

pytestmark = [
    pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus (Debian package) is not installed"),
    pytest.mark.evidence(feature="queries of dashboards", on="real software"),
]

Labels = Mapping[str, str]
Line = tuple[str, float, int]
"""Series, value and time."""
A, B, POD, SLURM, BARE = range(5)
PROCESSES: Mapping[int, Labels] = {
    A: {"workload": "a", "namespace": "ml", "pod": "a-0", "container": "c"},
    B: {"workload": "b", "slurm_job_id": "7"},
    POD: {"namespace": "ml", "pod": "c-0", "container": "c"},
    SLURM: {"slurm_job_id": "8"},
    BARE: {},
}
"""By number: the workload, where it is known, and the labels of each process."""
STORES = {"all": (A, B, POD, SLURM, BARE), "a": (A,), "b": (B,), "pod": (POD,), "slurm": (SLURM,), "bare": (BARE,)}
BOUNDS = ("0.05", "1.0", "+Inf")
STEP, STEPS = 15, 24
RATE = (1, 10, 100, 1000, 10000)
"""Rates of the counters of each process: a sum has no digit of a process that is not part of it."""
SELECTOR = re.compile(r"([a-zA-Z_][\w:]*)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)(=~|=|!=)"([^"]*)"')
OF_PODS = {"GPUs by pod label", "SM time by pod label", "Device memory by pod label"}
OF_ALLOCATIONS = {"Idle allocations", "Use of allocated GPUs", "GPUs allocated", "Allocated GPUs", "Allocated to"}
NAMED_ONLY = {"Jobs by name"}
BY_POD = {"Before the engine"}
"""Panels of pods, of allocations, of named workloads and of series recorded by pod: without pods they are by node."""


@functools.cache
def panels() -> list[tuple[str, str, str]]:
    """The dashboard, the title and the expression of each query that the variable is in."""
    return [
        (panel.board, panel.title, target["expr"])
        for panel in queries.panels()
        for target in panel.json["targets"]
        if "$workload" in target["expr"]
    ]


@functools.cache
def selectors() -> dict[str, set[str]]:
    """The matchers with which each series is selected, by name."""
    found: dict[str, set[str]] = {}
    for *_, expr in panels():
        for metric, matchers in SELECTOR.findall(expr):
            found.setdefault(metric, set()).add(matchers)
    return found


@functools.cache
def declarations() -> list[Metric]:
    return metrics()


@functools.cache
def settings(name: str) -> list[Labels]:
    """Labels with which the series is selected in panels, besides variables: each combination once."""
    found: dict[tuple[tuple[str, str], ...], Labels] = {}
    for matchers in sorted(selectors().get(name, ())):
        labels = {
            label: "x"
            if operator == "!="
            else re.sub(r"\(([^|)]*)[^)]*\)", r"\1", value).split("|")[0].replace(".*", "x")
            for label, operator, value in MATCHER.findall(matchers)
            if "$" not in value and value and label not in ("le", "__name__")
        }
        found[tuple(sorted(labels.items()))] = labels
    return list(found.values())


def values(name: str, labels: Labels, rate: float, begin: int) -> Iterator[Line]:
    """Lines of a series: a counter that rises, times of some seconds ago, or a gauge."""
    bounds = BOUNDS if name.endswith("_bucket") else ("",)
    for place, bound in enumerate(bounds, 1):
        own = {**labels, **({"le": bound} if bound else {})}
        text = ",".join(f'{key}="{value}"' for key, value in own.items() if value)
        for step in range(STEPS):
            at = begin + step * STEP
            if re.search(r"_(total|sum|count|bucket)$", name):
                value = rate * (at - begin) * place
            else:
                value = begin - rate if "timestamp" in name else 1.0 if name.endswith("_info") else rate
            yield f"{name}{{{text}}}", value, at


def of_process(number: int, job: str, begin: int) -> Iterator[Line]:
    """Lines of all series of a process, of its GPU, its allocation and its communicator."""
    process = {"job": job, "instance": "n1", "pid": str(number + 1), "comm": f"p{number}", **PROCESSES[number]}
    gpu = {"gpu": str(number), "gpu_uuid": f"G{number}"}
    workload = process.pop("workload", "")
    for metric in declarations():
        declared = {label: "1" for label in metric.labels}
        named = {"comm_hash": f"h{number}", "device": f"m{number}", "model": f"l{number}"}
        declared |= {label: value for label, value in named.items() if label in declared}
        for name in series_of(metric):
            for chosen in settings(name) if name != "job_process_info" else ():
                if metric.process:
                    yield from values(name, {**process, **gpu, **declared, **chosen}, RATE[number], begin)
                elif name == "gpu_process_exits_total":
                    own = {key: value for key, value in process.items() if key != "pid"}
                    yield from values(name, {**own, "status": "0"}, RATE[number], begin)
                elif name.startswith(("nccl_ras_", "hw_gpu_")):
                    own = gpu if name.startswith("hw") else {}
                    node = {"job": job, "instance": "n1"}
                    yield from values(name, {**node, **declared, **own, **chosen}, RATE[number], begin)
    if workload:
        info = {**process, "workload": workload, "workload_kind": "x"}
        for comm in (info["comm"], "sh"):  # a process has two in the minutes after an exec
            yield from values("job_process_info", {**info, "comm": comm}, 1, begin)
    owner = {key: process[key] for key in ("namespace", "pod", "slurm_job_id", "container") if key in process}
    if owner:
        base = {"job": job, "instance": "n1", **owner, "label_app": f"app{number}"}
        yield from values("gpu_allocation_info", {**base, **gpu}, 1, begin)
        yield from values("gpu_allocation_info", {**base, "gpu": f"2{number}", "gpu_uuid": f"F{number}"}, 1, begin)
        idle = {"job": job, "instance": "n1", "gpu": f"2{number}", "gpu_uuid": f"F{number}"}
        for name in ("hw_gpu_memory_usage_bytes", "hw_gpu_memory_limit_bytes"):
            yield from values(name, idle, 1, begin)
    named_by = {"workload": workload, "workload_kind": "x"} if workload else {"comm": process["comm"], **owner}
    for name in sorted(recorded() | {"instance_workload:gpu_cuda_memory_usage_bytes:sum"}):
        shown = {**named_by, "comm_hash": f"h{number}", "rank": "0", **gpu}
        if name in selectors():
            if not name.startswith(("instance_pod:", "instance_job:")):
                yield from values(name, {"job": job, "instance": "n1", **shown}, RATE[number], begin)
            else:
                own = {
                    key: value for key, value in {**named_by, **owner}.items() if name[9:12] == "job" or key in owner
                }
                yield from values(name, {"job": job, "instance": "n1", **own}, RATE[number], begin)


def lines(begin: int) -> Iterator[str]:
    every = (line for job, own in STORES.items() for number in own for line in of_process(number, job, begin))
    yield from {(series, at): f"{series} {value} {at}" for series, value, at in every}.values()
    yield "# EOF"


class Store:
    """A Prometheus with these series, and the time of the last ones."""

    def __init__(self, prometheus: Prometheus, at: float) -> None:
        self._prometheus, self._at = prometheus, at

    def __call__(self, expr: str, job: str, workload: str = ".*") -> dict[frozenset[tuple[str, str]], str]:
        """The values of a query by labels, with a job and a pattern of workloads chosen."""
        chosen = expr.replace("$workload", workload).replace("$job", job)
        found = self._prometheus.query(queries.chosen(chosen, "2m"), self._at)
        return {frozenset(it for it in key if it[0] != "job"): f"{value:.9g}" for key, value in found.items()}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("workloads")
    begin = int(time.time()) // 3600 * 3600 - 4 * 3600
    (folder / "series.txt").write_text("\n".join(lines(begin)) + "\n")
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "series.txt", folder / "data"]
    done = subprocess.run(made, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with Prometheus(folder, "127.0.0.1:9", []) as prometheus:
        yield Store(prometheus, begin + (STEPS - 1) * STEP)


def wrong(found: Iterable[tuple[str, str, str]]) -> list[str]:
    return [f"{board}: {title}: {expr[:200]}" for board, title, expr in found]


def test_every_panel_has_data(store: Store) -> None:
    """The store has series for each query."""
    assert {"cuda", "fleet", "gpu", "jobs", "nccl", "node", "rdma", "serving"} == {board for board, *_ in panels()}
    assert [] == wrong(it for it in panels() if not store(it[2], "all"))


@pytest.mark.parametrize("workload", ["a", "b"])
def test_one_workload_is_shown_alone(store: Store, workload: str) -> None:
    """With one workload chosen, each query has the same result as where this workload is the only one."""
    known = (it for it in panels() if workload == "a" or it[1] not in BY_POD)
    assert [] == wrong(it for it in known if store(it[2], "all", workload) != store(it[2], workload))


def test_two_workloads_are_shown_together(store: Store) -> None:
    """Several workloads can be chosen; other and unknown workloads are not shown."""
    for board, title, expr in panels():
        shown = {value for key in store(expr, "all", "a|b") for name, value in key if name in ("workload", "pid")}
        assert shown <= {"a", "b", "1", "2"}, (board, title)


@pytest.mark.parametrize("job", ["a", "b", "pod", "slurm", "bare"])
def test_a_workload_that_is_not_known_empties_no_panel(store: Store, job: str) -> None:
    """With "All" chosen each query shows a process with or without workload, pod and Slurm job."""
    known = PROCESSES[STORES[job][0]]
    without = {*(() if "pod" in known else OF_PODS), *(() if "workload" in known else NAMED_ONLY)}
    without |= OF_ALLOCATIONS if job == "bare" else set()
    assert [] == wrong(it for it in panels() if it[1] not in without and not store(it[2], job))


@pytest.mark.parametrize("job", ["a", "b", "pod", "slurm", "bare"])
def test_lines_and_rows_have_a_name(store: Store, job: str) -> None:
    """Legends that name a workload have it, or else the pod, the Slurm job or the command."""
    unnamed = []
    known = PROCESSES[STORES[job][0]]
    expected = next((known[it] for it in ("workload", "pod", "slurm_job_id") if it in known), f"p{STORES[job][0]}")
    for panel in queries.panels():
        for expr, legend in [(it["expr"], it["legendFormat"]) for it in panel.json["targets"]]:
            labels = set(re.findall(r"{{(\w+)}}", legend))
            by_communicator = "comm_hash" in labels and "pod" not in labels
            if "$workload" in expr and "workload" in labels and not by_communicator and panel.title not in BY_POD:
                shown = [" ".join(value for name, value in key if name in labels) for key in store(expr, job)]
                unnamed += [(panel.board, panel.title, it) for it in shown if expected not in it]
    assert [] == unnamed
