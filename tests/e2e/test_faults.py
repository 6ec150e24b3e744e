"""Every cause of a stopped job, injected at its source, fires its alert within a minute, and nothing fires before."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from exporter.bpf import multi
from exporter.bpf.privileges import CAPABILITIES
from exporter.faults import categories, coverage
from tests.e2e import fault_table
from tests.e2e.fault_table import CASES, Case, Outcome
from tests.e2e.test_cli import Exporter

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus (Debian package) is not installed"),
]


@dataclass(frozen=True)
class Seen:
    outcome: Outcome
    seconds: float


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, bpf_refusal: str) -> Seen:
    if bpf_refusal:
        pytest.skip(bpf_refusal)
    began = time.monotonic()
    return Seen(fault_table.run(tmp_path_factory.mktemp("faults")), time.monotonic() - began)


@pytest.mark.parametrize("case", CASES, ids=[f"{it.category}-{it.alert}" for it in CASES])
def test_fault_fires_its_alert(seen: Seen, case: Case) -> None:
    """The alert fires, with the labels that tell this fault from the others."""
    number = CASES.index(case)
    assert number in seen.outcome.seconds, seen.outcome.missing[number]


def test_a_healthy_machine_is_silent(seen: Seen) -> None:
    """Before the first fault no alert fires."""
    assert [] == seen.outcome.early


def test_within_a_minute(seen: Seen) -> None:
    """All of it, the start of the exporter and of Prometheus included, takes less than a minute."""
    assert seen.seconds < 60


def test_every_row_has_a_fault() -> None:
    """Each of the 18 rows is injected, and fires an alert that docs/faults.md names for it."""
    for row in categories.CATEGORIES:
        alerts = {case.alert for case in CASES if case.category == row.label}
        assert alerts and alerts <= set(coverage.COVERAGE[row.label].alerts), row.label


@pytest.mark.parametrize("asked", [True, False])
def test_asking_drives_keeps_a_capability(asked: bool, tmp_path: Path) -> None:
    """CAP_SYS_ADMIN, which the kernel wants for it, is kept for --collector.faults.nvme-smart and not without."""
    if not multi.supported():
        pytest.skip("this kernel has no multi-uprobe links (Linux 6.6): the capability is kept anyway")
    flags = (
        "--collector.disable-defaults",
        "--collector.faults",
        *(["--collector.faults.nvme-smart"] if asked else []),
    )
    exporter = Exporter(tmp_path, *flags).await_ready()
    try:
        assert {asked} == {
            bool(int(mask, 16) >> CAPABILITIES["CAP_SYS_ADMIN"] & 1) for mask in exporter.status("CapEff")
        }
        source = 'node_fault_source_available{source="nvme_smart"}'
        exporter.await_(lambda: 'source="nvme"' in exporter.get("/metrics")[1])
        assert asked is (exporter.value(source) is not None)
    finally:
        exporter.end()


def test_the_table_says_what_did_not_fire() -> None:
    """A row with a fault whose alert did not fire does not pass."""
    outcome = Outcome([], {number: 1.0 for number in range(len(CASES)) if number}, {0: "GpuLost did not fire"})
    lines = fault_table.table(outcome).splitlines()
    assert ["Faulty GPU"] == [line[:32].strip() for line in lines if " pass" not in line]
    assert "GpuLost did not fire" in lines[0]
