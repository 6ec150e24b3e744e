"""Prometheus scrapes the real exporter once a second: rates are true, nothing freezes, every query works.

One run of about 50 seconds is observed once; the tests look at what was seen.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from bisect import bisect_left
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dashboards.queries import chosen, flat
from tests.bpf.cuda_node import BUILD, build_standins
from tests.e2e.backend import Prometheus, QueryError, end, get
from tests.support import PATIENCE, free_port, until

ROOT = Path(__file__).parents[2]
RULES = sorted(path for path in (ROOT / "alerts").glob("*.yaml") if not path.stem.endswith(".test"))
WINDOW, WINDOW_AFTER, RETENTION = 20, 12, 6
"""Seconds of scrapes before and after the restart, and that the series of an ended process stay."""
IMPATIENT = f"""
from exporter.__main__ import main
from exporter import ledger
from tests import workers
workers.see_own_files()
ledger.RETENTION = {RETENTION}.0
raise SystemExit(main())
"""
"""The exporter, which keeps the series of an ended process for seconds in place of five minutes."""

WITHOUT_DATA = {
    ("cuda", "Unattributed memory"),
    ("cuda", "Untracked allocations"),
    ("cuda", "Frees of unseen allocations"),
    ("exporter", "Probes not attached"),
    ("exporter", "Pods left out"),
    ("exporter", "Custom probes running"),
    ("exporter", "Map usage of custom probes"),
    ("exporter", "Losses of custom probes"),
    *(("exporter", f"{what} of custom probes") for what in ("CPU", "Memory")),
    ("exporter", "Time in custom programs"),
    ("exporter", "Stacks without frames"),
    *(("exporter", title) for title in ("Bound used by the worst process", "Probed in windows")),
    *(("cuda", f"${label}") for label in ("namespace", "pod", "slurm_job_id", "workload")),
    *((stem, "$cluster") for stem in ("cuda", "exporter")),
}
"""Names that this run lacks: faults, pods, custom probes, profiles and NCCL (only its messages are probed in windows),
and names that the run's processes do not have, although other processes may.
"""

OF_OTHERS = {"fleet", "gpu", "jobs", "nccl", "node", "rdma", "serving"}
"""Dashboards of what this run lacks: GPUs, NCCL, RDMA, LLM servers. That Prometheus takes their queries is tested."""

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus (Debian package) is not installed"),
    pytest.mark.evidence(feature="Prometheus pages", on="real software"),
]


@dataclass
class Job:
    """A paced job and its log: wall time in seconds and launches, tick by tick."""

    process: subprocess.Popen[bytes]
    log: Path

    def launches(self, at: float) -> float:
        """Launches made at a wall time, between ticks as if they were even."""
        until(lambda: int(self._ticks()[-1][0]) / 1e9 > at, "the job's next tick")
        ticks = [(int(when) / 1e9, int(count)) for when, count in self._ticks()]
        index = bisect_left(ticks, (at, 0))
        (t0, n0), (t1, n1) = ticks[index - 1], ticks[index]
        return n0 + (n1 - n0) * (at - t0) / (t1 - t0)

    def total(self) -> int:
        """All launches made, once it has ended."""
        return int(self._ticks()[-1][1])

    def _ticks(self) -> list[list[str]]:
        return [line.split() for line in self.log.read_text().splitlines() if line.count(" ") == 1]


class Rate(NamedTuple):
    """The rate of a job by Prometheus, and what the job itself noted from its first scrape to its last.

    A job that was late catches up at once, which Prometheus sees only if it happens between two scrapes. Launches are
    counted at some time of a scrape: `least` and `most` differ by what the job did during the first and the last one.
    """

    measured: float
    least: float
    most: float

    @property
    def is_own(self) -> bool:
        """Within 2 %."""
        return 0.98 * self.least <= self.measured <= 1.02 * self.most


@dataclass
class Seen:
    """Results of the run."""

    rates: dict[str, Rate] = field(default_factory=dict)
    """By job, while both ran."""
    restarted: Rate = Rate(0, 1, -1)
    """Of the lasting job, after the exporter's restart."""
    total: tuple[float, int] = (0, -1)
    """Launches of the ended job by Prometheus, and its own number."""
    scrapes: list[float] = field(default_factory=list)
    """Times of the samples that the rates were made of."""
    panels: dict[tuple[str, str, str], int | str] = field(default_factory=dict)
    """Number of series returned, or the refusal, by dashboard, panel title and letter."""
    rules: list[Any] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)
    """True if the ended job had series: just after its end, after the retention, after the exporter's restart."""
    resets: float = 0
    """Of the lasting job's counter."""
    frozen: set[frozenset[tuple[str, str]]] | None = None
    missing: set[frozenset[tuple[str, str]]] | None = None
    """After the restart: series that Prometheus holds for current and the exporter does not serve, and the reverse."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, bpf_refusal: str) -> Seen:
    if bpf_refusal:
        pytest.skip(bpf_refusal)
    build_standins()
    with ExitStack() as stack:
        return Run(tmp_path_factory.mktemp("prometheus"), stack).watch()


class Run:
    """An exporter, a Prometheus and two jobs; one ends, then the exporter restarts beside the lasting one."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack, self._seen = folder, stack, Seen()
        self._listen = f"127.0.0.1:{free_port()}"

    def watch(self) -> Seen:
        exporter = self._start_exporter()
        self._prometheus = self._stack.enter_context(Prometheus(self._folder, self._listen, RULES))
        until(lambda: get(f"http://{self._listen}/-/ready"), "the exporter is ready")
        lasting = self._start_job("lasting", 500)
        until(lambda: self._has_series(lasting), "Prometheus has scraped the first job")
        ending = self._start_job("ending", 2000)
        self._look(lasting, ending, self._wait_for_scrapes(ending, WINDOW))
        self._end(ending)
        self._restart(exporter, lasting, ending)
        return self._seen

    def _wait_for_scrapes(self, job: Job, seconds: int) -> float:
        """Return the end of a window, from now on, that has lost at most one scrape: a busy machine may lose more.

        At its ends none is lost, for there rate() would take it that the series begins or ends.
        """
        begin = time.time()

        def whole() -> float:
            at = time.time() - 1
            if at - seconds < begin or not self._prometheus.query(self._of(job), at):
                return 0.0
            times = [when for when, _ in self._prometheus.samples(self._of(job), at, seconds)]
            if len(times) < seconds - 1 or max(b - a for a, b in pairwise(times)) >= 2:
                return 0.0
            ends, interval = (times[0] - (at - seconds), at - times[-1]), (times[-1] - times[0]) / (len(times) - 1)
            return at if max(ends) < 1.1 * interval else 0.0

        return until(whole, "a scrape a second", 3 * PATIENCE)

    def _look(self, lasting: Job, ending: Job, at: float) -> None:
        self._seen.rates = {"lasting": self._rates(lasting, at, WINDOW), "ending": self._rates(ending, at, WINDOW)}
        self._seen.scrapes = [when for when, _ in self._prometheus.samples(self._of(ending), at, WINDOW)]
        self._seen.panels = {key: self._count(expr) for key, expr in panels().items()}
        own = {str(job.process.pid) for job in (lasting, ending)}
        self._seen.rules = [
            {**rule, "alerts": [it for it in rule.get("alerts", ()) if it["labels"].get("pid", "") in own | {""}]}
            for rule in self._prometheus.rules()
        ]

    def _end(self, job: Job) -> None:
        assert end(job.process) == 0
        later = f"timestamp({self._of(job)}) > {time.time()}"
        [scraped] = until(lambda: self._prometheus.query(later), "the job is scraped after its end").values()
        self._seen.total = self._prometheus.value(self._of(job), scraped), job.total()
        self._seen.kept.append(self._has_series(job, scraped))
        time.sleep(RETENTION)
        until(lambda: not self._has_series(job), "its series have ended")
        self._seen.kept.append(self._has_series(job))

    def _restart(self, exporter: subprocess.Popen[bytes], lasting: Job, ending: Job) -> None:
        assert end(exporter) == 0
        self._start_exporter()
        until(lambda: get(f"http://{self._listen}/-/ready"), "the exporter is ready")
        until(lambda: self._prometheus.query(self._of(lasting)), "Prometheus has scraped the lasting job again")
        at = self._wait_for_scrapes(lasting, WINDOW_AFTER)
        self._seen.restarted = self._rates(lasting, at, WINDOW_AFTER)
        self._seen.resets = self._prometheus.value(f"resets({self._of(lasting)}[5m])")
        self._seen.kept.append(self._has_series(ending))
        self._compare()

    def _compare(self) -> None:
        """Other processes of the machine come and go between page and query: hence a page on either side."""
        rounds = [self._differences() for _ in range(3)]  # processes of other tests come and go within one
        self._seen.frozen, self._seen.missing = (set.intersection(*found) for found in zip(*rounds, strict=True))

    def _differences(self) -> tuple[set[frozenset[tuple[str, str]]], set[frozenset[tuple[str, str]]]]:
        """Return the series that only Prometheus has, and those that only the exporter has."""
        before = self._page()
        time.sleep(1.5)
        target = {("job", "accel-exporter"), ("instance", self._listen)}
        current = self._prometheus.query('{job="accel-exporter", __name__!~"up|scrape_.*|ALERTS.*|.*:.*"}')
        stored = {frozenset(labels - target) for labels in current}
        after = self._page()
        return stored - before - after, before & after - stored

    def _page(self) -> set[frozenset[tuple[str, str]]]:
        return series(get(f"http://{self._listen}/metrics") or "")

    def _rates(self, job: Job, at: float, seconds: int) -> Rate:
        measured = self._prometheus.value(f"rate({self._of(job)}[{seconds}s])", at)
        first, *_, last = (when for when, _ in self._prometheus.samples(self._of(job), at, seconds))
        first_end, last_end = (it + self._prometheus.value("scrape_duration_seconds", it) for it in (first, last))
        least, most = job.launches(last) - job.launches(first_end), job.launches(last_end) - job.launches(first)
        return Rate(measured, least / (last - first), most / (last - first))

    def _count(self, expr: str) -> int | str:
        try:
            return len(self._prometheus.query(expr))
        except QueryError as error:
            return str(error)

    def _has_series(self, job: Job, at: float | None = None) -> bool:
        scraped = '__name__!~".+:.+"'  # what rules record of a rate goes on for the rate's five minutes
        return bool(self._prometheus.query(f'{{{scraped}, job="accel-exporter", pid="{job.process.pid}"}}', at))

    def _of(self, job: Job) -> str:
        return f'gpu_cuda_kernel_launch_calls_total{{api_layer="driver", pid="{job.process.pid}"}}'

    def _start_exporter(self) -> subprocess.Popen[bytes]:
        (self._folder / "kmsg").touch()  # the machine's own log may have anything
        options = (
            f"--web.listen-address={self._listen}",
            "--bpf.stats",
            f"--kmsg.path={self._folder}/kmsg",
        )
        command = [sys.executable, "-c", IMPATIENT, *options]
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
        return self._start("exporter", command, environment)

    def _start_job(self, name: str, per_second: int) -> Job:
        command = [sys.executable, str(ROOT / "tests" / "e2e" / "paced_job.py"), str(per_second)]
        process = self._start(name, command, {**os.environ, "LD_LIBRARY_PATH": str(BUILD)})
        return Job(process, self._folder / f"{name}.log")

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        self._stack.callback(end, process)
        return process


def panels() -> dict[tuple[str, str, str], str]:
    """Every expression of every dashboard by dashboard, panel title and letter; all choices made, as Grafana would."""
    found = {}
    for path in sorted((ROOT / "dashboards").glob("*.json")):
        board = json.loads(path.read_text())
        for panel in flat(board):
            for target in panel.get("targets", []):
                found[path.stem, panel["title"], target["refId"]] = chosen(target["expr"], "15s")
        for variable in board["templating"]["list"]:
            if values := re.fullmatch(r"label_values\((\w+)(?:\{(.*)\})?, (\w+)\)", variable.get("query", "")):
                metric, matchers, label = values.groups()
                every = ", ".join(filter(None, (matchers, f'{label}!=""')))
                found[path.stem, f"${variable['name']}", ""] = chosen(f"{metric}{{{every}}}", "15s")
    return found


def series(page: str) -> set[frozenset[tuple[str, str]]]:
    """Name and labels of every series on a /metrics page."""
    found = set()
    for line in page.splitlines():
        if line and not line.startswith("#"):
            name, labels = re.match(r"(\w+)(?:\{(.*)\})? ", line).groups()  # type: ignore[union-attr]
            pairs = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or "")
            found.add(frozenset({("__name__", name), *pairs}))
    return found


def test_scraped_every_second(seen: Seen) -> None:
    """The window holds a sample a second: no scrape was lost or slow."""
    assert len(seen.scrapes) >= WINDOW - 1
    assert max(after - before for before, after in pairwise(seen.scrapes)) < 2


@pytest.mark.parametrize("job", ["lasting", "ending"])
def test_rate_is_the_jobs_own(seen: Seen, job: str) -> None:
    """rate() over the window is within 2 % of the pace that the job itself noted."""
    assert seen.rates[job].is_own, seen.rates[job]


def test_total_is_exact(seen: Seen) -> None:
    """The counter of a job that has ended is the number of launches it made: it was seen from its first call."""
    measured, own = seen.total
    assert own == measured


def test_queries_are_valid(seen: Seen) -> None:
    """Prometheus takes every expression of the dashboards."""
    assert {} == {key: answer for key, answer in seen.panels.items() if isinstance(answer, str)}


def test_panels_have_data(seen: Seen) -> None:
    """Every panel and variable has something to show, but for faults that did not happen."""
    empty = {key[:2] for key, answer in seen.panels.items() if answer == 0 and key[0] not in OF_OTHERS}
    assert set() == empty - WITHOUT_DATA


def test_rules_are_evaluated(seen: Seen) -> None:
    """Every alert rule is evaluated without an error."""
    assert len(seen.rules) > len(RULES)
    assert {"ok"} == {rule["health"] for rule in seen.rules}


def test_only_the_real_fault_alerts(seen: Seen) -> None:
    """Both jobs ran out of memory once, which was the first error of each; that alone fires, once for the node.

    The machine may have started just now, which is an alert too.
    """
    alerts = [alert["labels"] for rule in seen.rules for alert in rule["alerts"] if alert["state"] == "firing"]
    assert ["CudaOutOfMemory"] == [it["alertname"] for it in alerts if it["alertname"] != "NodeRebooted"]
    assert {"info"} == {it["severity"] for it in alerts}


def test_ended_jobs_leave(seen: Seen) -> None:
    """The series of an ended job stay for the retention, then they are gone, also after the restart."""
    expected = [True, False, False]
    assert expected == seen.kept


def test_nothing_is_frozen(seen: Seen) -> None:
    """After the restart Prometheus holds no series for current that the exporter does not serve, and all of those."""
    assert (set(), set()) == (seen.frozen, seen.missing)


def test_counters_begin_again(seen: Seen) -> None:
    """The counter of a job that the restart found running is reset once, and its rate is right again at once."""
    assert int(seen.resets) == 1
    assert seen.restarted.is_own, seen.restarted
