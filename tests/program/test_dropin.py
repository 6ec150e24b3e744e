"""docs/coming-from-dcgm-exporter.md by a real Prometheus: both sides of each row, and each rule before and after."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from exporter.compat.dcgm.fields import FIELDS
from tests.e2e.backend import Prometheus
from tests.program.test_dcgm import PANELS as OF_12239
from tests.program.test_dcgm import ROOT, SELECTED, Exporter, exporter
from tests.standins import nvml
from tests.support import until

PAGE = (ROOT / "docs" / "coming-from-dcgm-exporter.md").read_text()
ROWS = dict(re.findall(r"^\| `(DCGM_\w+)` \| `([^`]+)` \| [^|]*\|$", PAGE, re.M))
PANELS = {
    panel: sides for panel, *sides in re.findall(r"^\| (\w[^|]*) \| `([^`]*DCGM[^`]+)` \| `([^`]+)` \|$", PAGE, re.M)
}
LABELS = dict(re.findall(r"^\| `(DCGM_\w+)` \| `([a-z_]+)` \|$", PAGE, re.M))
BLOCK = PAGE.partition("```promql\n")[2].partition("```")[0]
RULES = dict(re.findall(r"^# (\w+)[^\n]*\n([^#]+)", BLOCK, re.M))
"""Queries by the first of the rules that they answer."""

NAMED = "DCGM_FI_DEV_XID_ERRORS"
"""The field with a value that is a label here."""
COUNTED_OTHERWISE = {"DCGM_EXP_CLOCK_EVENTS_COUNT", "DCGM_EXP_CLOCK_EVENTS_TOTAL"}
"""The page has how these differ: only that both sides have values is tested."""
MOVING = {
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1e-3,
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 0.25,
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0": 0.25,
}
"""By how much they may differ: NVML may be read between the two, and rates are of other spans of time."""
BEFORE_HOPPER = {"DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "DCGM_FI_DEV_PCIE_RX_THROUGHPUT"}
SETTLED = 5
"""Seconds of scrapes that rates are made of."""
UNANSWERED = {"DCGM_FI_DEV_OEM_INFOROM_VER", "DCGM_FI_DEV_ECC_INFOROM_VER", "DCGM_FI_DEV_POWER_INFOROM_VER"}

COUNTS = (3, 4, 5, 6, 29, 30, 38, 45, 52, 59, *range(74, 80), 94, 142, 143, 173)
"""Field values (NVML's numbers) that count something: each is another number, so that none is taken for another."""
DIFFERENT: dict[str, object] = {
    **{f"gpu.field.{number}": 1_000_000 + number for number in COUNTS},
    **{f"gpu.gpm.{number}": 1_000_000 + number for number in range(248, 261)},
    **{f"gpu.gpm.{number}": number + 0.5 for number in range(1, 14)},
    "gpu.encoder": 11,
    "gpu.decoder": 12,
    "gpu.vgpu_licensed": 1,
    "gpu.pstate": 2,
    "gpu.reasons": "0x0",
    "gpu.field.31": 0,
    "gpu.field.192": 600_000,
    "gpu.field.189": 650_000,
    "gpu.field.190": 710_000,
}
NODES: dict[str, dict[str, object]] = {
    "different": DIFFERENT,
    "before hopper": {"gpu.gpm": 0, "gpu.pcie_throughput.0": 9, "gpu.pcie_throughput.1": 7},
    "healthy": {"gpu.field.31": 0, "gpu.reasons": "0x0"},
}
FAULTY: dict[str, object] = {
    "gpu0.temperature": 91,
    "gpu0.reasons": "0xe0",
    "gpu0.field.4": 1,
    "gpu0.field.31": 1,
    "gpu0.field.144": 1,
    "gpu0.field.145": 1,
    "gpu0.field.230": 1,
    "event.1": "0 8 79",
    "event.2": "0 8 94",
    "gpu1.lost": 1,
}
SILENT = {"CollectionFailing", "CollectionStale"}
"""Rules that fire while NVML does not answer; the others need its answer."""
FIFTEEN = {
    *("CollectionFailing", "CollectionStale", "CollectionSlow", "RecoveryActionNeeded", "XidCritical", "XidWarning"),
    *("UncorrectableEcc", "RowRemapFailure", "RowRemapPending", "RetiredPagesPending", "HwThermalSlowdown"),
    *("SwThermalSlowdown", "PowerBrake", "TemperatureHigh", "GpuMissing"),
}

pytestmark = pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus (Debian package) is not installed")


@dataclass
class Both:
    """An exporter with all series in both namings, and the Prometheus that scrapes it."""

    exporter: Exporter
    prometheus: Prometheus
    since: float = 0.0
    """Time from which on the exporter's page was as the tests want it."""
    at: float = 0.0
    """Evaluation time of queries: all scrapes of the SETTLED seconds before succeeded, also on a busy machine."""

    def await_(self, *queries: str) -> None:
        """Wait until Prometheus has series for these queries."""
        for query in queries:
            until(lambda query=query: self.prometheus.query(query), f"{query} is scraped")
        self.since = time.time()

    def settle(self) -> None:
        """Wait until there is a time to evaluate queries at."""
        scrapes = f"up[{SETTLED}s]"
        healthy = f"min_over_time({scrapes}) == 1 and count_over_time({scrapes}) >= {SETTLED - 1}"
        healthy += f' and on () max_over_time(accel_exporter_source_stalled{{source="nvml"}}[{SETTLED}s]) == 0'

        def settled() -> bool:
            self.at = time.time() - 1
            return self.at > self.since + SETTLED and bool(self.prometheus.query(healthy, self.at))

        until(settled, "scrapes succeed")

    def values(self, expr: str, *labels: str) -> dict[tuple[str, ...], float]:
        """The values by labels, which have to be different for each series."""
        found = [(dict(series), value) for series, value in self.prometheus.query(expr, self.at).items()]
        values = {tuple(series.get(label, "") for label in labels): value for series, value in found}
        assert len(found) == len(values), f"{expr} has several series with the same {labels}"
        return values


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    nvml.build()


@contextmanager
def scraped(folder: Path, scenario: Mapping[str, object]) -> Iterator[Both]:
    """Every field of dcgm-exporter, with Xids from NVML alone."""
    csv, kmsg = folder / "counters.csv", folder / "kmsg"
    csv.write_text("".join(f"{it.name}, {it.kind.value if it.kind else 'label'}, x\n" for it in FIELDS))
    kmsg.touch()
    flags = ("--profile=debug", "--compat.dcgm", f"--compat.dcgm.csv={csv}", "--collector.xid", f"--kmsg.path={kmsg}")
    with exporter(folder, *flags, **scenario) as subject, Prometheus(folder, subject.listen, []) as prometheus:
        yield Both(subject, prometheus)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Both]]:
    """Three nodes, each with a Prometheus that takes its seconds to begin: all at the same time."""
    with ExitStack() as stack:
        made = {name: stack.enter_context(scraped(tmp_path_factory.mktemp(name), it)) for name, it in NODES.items()}
        for both in made.values():
            both.await_("DCGM_FI_DEV_GPU_TEMP")
        made["different"].exporter.scenario.set({"event.1": "0 8 31", "gpu1.reasons": "0x4"})
        made["before hopper"].await_("DCGM_FI_DEV_PCIE_RX_THROUGHPUT")
        yield made


@pytest.fixture(scope="module")
def both(nodes: dict[str, Both]) -> Both:
    both = nodes["different"]
    xids = (f'{name}{{xid="31"}}' for name in ("DCGM_EXP_XID_ERRORS_TOTAL", "gpu_xid_errors_total"))
    both.await_(*xids, "DCGM_EXP_CLOCK_EVENTS_COUNT")
    both.settle()
    return both


def test_every_field_has_a_row() -> None:
    """The page's tables answer each field that the exporter fills, link 0 standing for all links."""
    fields = {re.sub(r"_L\d+$", "_L0", it.name): it.kind for it in FIELDS}

    assert {name for name, kind in fields.items() if kind} == set(ROWS)
    assert {name for name, kind in fields.items() if not kind} - UNANSWERED == set(LABELS)


@pytest.mark.parametrize("field", sorted(ROWS.keys() - {NAMED} - COUNTED_OTHERWISE - BEFORE_HOPPER))
def test_field(both: Both, field: str) -> None:
    """Ours has DCGM's values for the same GPUs, scraped at the same time."""
    by = ("gpu", "xid")
    theirs = both.values(field, *by)
    if field.startswith("DCGM_EXP_XID"):  # 0 there for a GPU that had none, absent here
        theirs = {key: value for key, value in theirs.items() if value}
    ours = ROWS[field].replace("[1m]", f"[{SETTLED}s]")

    assert theirs
    assert theirs == pytest.approx(both.values(ours, *by), rel=MOVING.get(field, 1e-9))


@pytest.mark.parametrize("field", sorted(COUNTED_OTHERWISE))
def test_field_that_is_counted_otherwise(both: Both, field: str) -> None:
    """Both name the GPU with lowered clocks."""
    assert {("1",)} == {gpu for gpu, value in both.values(f"max by (gpu) ({field})", "gpu").items() if value}
    assert {("1",)} == {gpu for gpu, value in both.values(f"max by (gpu) ({ROWS[field]})", "gpu").items() if value}


def test_last_xid(both: Both) -> None:
    """The label of ours is DCGM's value, of the GPU that had one."""
    theirs = {(gpu, f"{xid:.0f}") for (gpu,), xid in both.values(NAMED, "gpu").items() if xid}

    assert {("0", "31")} == theirs == both.values(ROWS[NAMED], "gpu", "xid").keys()


@pytest.mark.parametrize("panel", PANELS)
def test_panel(both: Both, panel: str) -> None:
    """Ours has the values of the dashboard's query."""
    theirs, ours = (both.values(side, "gpu") for side in PANELS[panel])

    assert theirs
    assert theirs == pytest.approx(ours)


def test_panels_are_those_of_12239() -> None:
    """The page has each panel of the dashboard, with its query."""
    expected = {panel: query.replace(SELECTED, "") for panel, (query, _) in OF_12239.items()}

    assert expected == {panel: theirs for panel, (theirs, _) in PANELS.items()}


def test_join_with_the_labels(both: Both) -> None:
    """The join that the page gives puts the model and the driver on a series of each GPU."""
    (join,) = re.findall(r"^    (hw_power_watts \* .*)$", PAGE, re.M)
    expected = {(gpu, "NVIDIA H100 80GB HBM3", "580.95.05") for gpu in ("0", "1")}

    assert expected == both.values(join, "gpu", "name", "driver_version").keys()


@pytest.mark.parametrize("field", LABELS)
def test_label(both: Both, field: str) -> None:
    """The label of ours has the value of DCGM's."""
    theirs, ours = both.values("DCGM_FI_DEV_GPU_TEMP", "gpu", field), both.values("hw_gpu_info", "gpu", LABELS[field])

    assert theirs.keys() == ours.keys()
    assert all(value for _, value in ours)


def test_before_hopper(nodes: dict[str, Both]) -> None:
    """PCIe traffic of GPUs without GPM."""
    both = nodes["before hopper"]
    both.settle()
    for field in BEFORE_HOPPER:
        assert {2} == {len(both.values(field, "gpu"))}
        assert both.values(field, "gpu") == pytest.approx(both.values(ROWS[field], "gpu"))


def test_rules(nodes: dict[str, Both]) -> None:
    """Every rule's query finds nothing on healthy GPUs, and its fault once that is there."""
    rules = {rule: query.replace("> 300", "> 2").replace(":1m]", ":1s]") for rule, query in RULES.items()}
    both = nodes["healthy"]
    both.settle()
    assert {} == {rule: found for rule, query in rules.items() if (found := both.prometheus.query(query, both.at))}

    both.exporter.scenario.set(FAULTY)
    both.await_(*(rules[rule] for rule in rules.keys() - SILENT))
    both.exporter.scenario.set({"hang": "nvmlDeviceGetFieldValues@0"})
    both.await_(*(rules[rule] for rule in SILENT))


def test_rules_are_all_there() -> None:
    """Each rule of nvidia_gpu_exporter's chart has a query, and the alerts that answer to it are there."""
    headings = re.findall(r"^# ([\w, ]+)(?:: ([\w, ]+))?", BLOCK, re.M)
    rules = {name for names, _ in headings for name in names.split(", ")}
    alerts = {name for _, names in headings for name in names.split(", ") if name}
    known = {it for path in (ROOT / "alerts").glob("*.yaml") for it in re.findall(r"alert: (\w+)", path.read_text())}

    assert rules == FIFTEEN
    assert set() == alerts - known
