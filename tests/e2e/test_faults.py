"""Every cause of a stopped job, injected at its source, fires its alert within a minute, and nothing fires before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from exporter.bpf import multi
from exporter.bpf.privileges import CAPABILITIES
from exporter.faults import categories
from tests.e2e import fault_table
from tests.e2e.fault_cases import CASES, NOT_INJECTED, Case
from tests.e2e.fault_table import OVER_A_RESTART, OWN_SIGHT, ROOT, Outcome
from tests.program.process import Exporter
from tools.docs import coverage

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus (Debian package) is not installed"),
    pytest.mark.evidence(feature="faults in the kernel log", on="stand-in"),
    pytest.mark.evidence(feature="PCIe, memory controllers, sensors", on="stand-in"),
    pytest.mark.evidence(feature="alert and recording rules", on="stand-in"),
]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, bpf_refusal: str) -> Outcome:
    if bpf_refusal:
        pytest.skip(bpf_refusal)
    return fault_table.run(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("case", CASES, ids=[f"{it.category or 'sight'}-{it.alert}" for it in CASES])
def test_fault_fires_its_alert(seen: Outcome, case: Case) -> None:
    """The alert fires, with the labels of this fault and no other."""
    number = CASES.index(case)
    assert number in seen.seconds, seen.missing[number]


def test_a_healthy_machine_is_silent(seen: Outcome) -> None:
    """Before the first fault no alert fires."""
    assert [] == seen.early


def test_within_a_minute(seen: Outcome) -> None:
    """Each alert fires within a minute after its fault."""
    assert not seen.missing


def test_a_restart_pages_nobody(seen: Outcome) -> None:
    """While all those alerts fire the exporter is restarted: none resolves, none begins again, none comes."""
    assert ([], []) == (seen.paged, seen.resolved)


def test_every_alert_on_a_fault_is_injected() -> None:
    """Or has its reason why not."""
    files = [ROOT / "alerts" / f"{stem}.yaml" for stem in (*OVER_A_RESTART, "nccl")]
    groups = [group for path in files for group in yaml.safe_load(path.read_text())["groups"]]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    alerts |= {alert for it in coverage.COVERAGE.values() for alert in it.alerts}
    injected = {case.alert for case in CASES}

    assert set() == injected & NOT_INJECTED.keys()
    assert alerts == injected | NOT_INJECTED.keys()


def test_every_row_has_a_fault() -> None:
    """Each of the 18 rows is injected, and fires an alert that docs/faults.md names for it."""
    for row in categories.CATEGORIES:
        alerts = {case.alert for case in CASES if case.category == row.label}
        assert alerts and alerts <= set(coverage.COVERAGE[row.label].alerts), row.label


@pytest.mark.parametrize("enabled", [True, False])
def test_querying_drives_keeps_a_capability(enabled: bool, tmp_path: Path) -> None:
    """CAP_SYS_ADMIN, which the kernel wants for it, is kept for --collector.faults.nvme-smart and not without."""
    if not multi.supported():
        pytest.skip("this kernel has no multi-uprobe links (Linux 6.6): the capability is kept anyway")
    flags = (
        "--collector.disable-defaults",
        "--collector.faults",
        *(["--collector.faults.nvme-smart"] if enabled else []),
    )
    exporter = Exporter(tmp_path, *flags).await_ready()
    try:
        assert {enabled} == {
            bool(int(mask, 16) >> CAPABILITIES["CAP_SYS_ADMIN"] & 1) for mask in exporter.status("CapEff")
        }
        source = 'accel_node_fault_source_available{source="nvme_smart"}'
        exporter.await_(lambda: 'source="nvme"' in exporter.get("/metrics")[1])
        if enabled:
            exporter.await_(lambda: exporter.value(source) is not None)
        else:
            assert exporter.value(source) is None
    finally:
        exporter.end()


def test_the_table_has_what_did_not_fire() -> None:
    """A row with a fault that did not fire its alert does not pass."""
    outcome = Outcome([], {number: 1.0 for number in range(len(CASES)) if number}, {0: "GpuLost did not fire"})
    lines = fault_table.table(outcome).splitlines()
    assert lines[-1].startswith(OWN_SIGHT)
    assert ["Faulty GPU"] == [line[:32].strip() for line in lines if " pass" not in line]
    assert "GpuLost did not fire" in lines[0]
