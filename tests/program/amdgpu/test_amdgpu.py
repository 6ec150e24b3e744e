"""AMD GPUs are read from trees of files as the kernel's documentation of amdgpu has them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.amdgpu import sysfs
from exporter.collectors import amdgpu as module
from exporter.model import Unavailable
from exporter.resolve.process import ProcessTable
from exporter.views import prometheus
from tests.nodes import make_node
from tests.support import PATIENCE, until
from tests.unit.amdgpu.trees import BUS, FILES, Tree

pytestmark = pytest.mark.evidence(feature="AMD GPUs", on="stand-in")

GPU = f'card="card1",pci_bus_id="{BUS}"'
Collect = Callable[..., module.Amdgpu]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def collector(tree: Tree) -> Iterator[Collect]:
    made: list[module.Amdgpu] = []

    def make(**settings: float) -> module.Amdgpu:
        values = {flag.name: flag.default for flag in module.FLAGS} | settings
        made.append(module.create(make_node(values, ProcessTable(), sys=tree.sys)))
        made[-1].start()
        return made[-1]

    yield make
    for it in made:
        it.close()


def page(collector: module.Amdgpu) -> dict[str, str]:
    lines = prometheus.render(collector.collect()).text.decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if line.startswith(("gpu_amd", "accel_exporter_amdgpu")))


def test_a_gpu(tree: Tree, collector: Collect) -> None:
    """Everything that the files have, in base units, and nothing else."""
    tree.card()
    found = page(collector())
    identity = 'name="AMD Instinct MI300X OAM",pci_bus_id="0000:c1:00.0",pci_device_id="0x74a1",serial="692251001234"'
    assert found == {
        f'gpu_amd_info{{card="card1",{identity},unique_id="8b1c2d3e4f506172",vbios="113-M3000100-102"}}': "1",
        f"gpu_amd_suspended{{{GPU}}}": "0",
        'gpu_amd_busy_ratio{card="card1",engine="gpu",pci_bus_id="0000:c1:00.0"}': "0.87",
        'gpu_amd_busy_ratio{card="card1",engine="vram",pci_bus_id="0000:c1:00.0"}': "0.31",
        'gpu_amd_memory_limit_bytes{card="card1",memory="vram",pci_bus_id="0000:c1:00.0"}': "206141652992",
        'gpu_amd_memory_usage_bytes{card="card1",memory="vram",pci_bus_id="0000:c1:00.0"}': "103070826496",
        'gpu_amd_memory_limit_bytes{card="card1",memory="vis_vram",pci_bus_id="0000:c1:00.0"}': "206141652992",
        'gpu_amd_memory_usage_bytes{card="card1",memory="vis_vram",pci_bus_id="0000:c1:00.0"}': "103070826496",
        'gpu_amd_memory_limit_bytes{card="card1",memory="gtt",pci_bus_id="0000:c1:00.0"}': "1013309239296",
        'gpu_amd_memory_usage_bytes{card="card1",memory="gtt",pci_bus_id="0000:c1:00.0"}': "14090240",
        f"gpu_amd_pcie_replays_total{{{GPU}}}": "23",
        'gpu_amd_power_watts{card="card1",kind="average",pci_bus_id="0000:c1:00.0"}': "689.0",
        f"gpu_amd_power_limit_watts{{{GPU}}}": "750.0",
        f'gpu_amd_temperature_celsius{{{GPU},sensor="edge"}}': "-5.0",
        f'gpu_amd_temperature_celsius{{{GPU},sensor="junction"}}': "76.0",
        f'gpu_amd_temperature_celsius{{{GPU},sensor="mem"}}': "64.5",
        'gpu_amd_clock_hertz{card="card1",clock="sclk",pci_bus_id="0000:c1:00.0"}': "2100000000",
        'gpu_amd_ras_errors_total{block="umc",card="card1",error_type="uncorrected",pci_bus_id="0000:c1:00.0"}': "2",
        'gpu_amd_ras_errors_total{block="umc",card="card1",error_type="corrected",pci_bus_id="0000:c1:00.0"}': "7",
        'gpu_amd_ras_errors_total{block="umc",card="card1",error_type="deferred",pci_bus_id="0000:c1:00.0"}': "5",
        'gpu_amd_ras_errors_total{block="gfx",card="card1",error_type="uncorrected",pci_bus_id="0000:c1:00.0"}': "0",
        'gpu_amd_ras_errors_total{block="gfx",card="card1",error_type="corrected",pci_bus_id="0000:c1:00.0"}': "0",
        'accel_exporter_amdgpu_success{card="card1"}': "1",
    }


def test_others_are_left_out(tree: Tree, collector: Collect) -> None:
    """Connectors, render nodes and cards of other drivers are none of these GPUs."""
    tree.card("card0", "0000:03:00.0", driver="ast")
    tree.card("card1-DP-1", "0000:c4:00.0")
    tree.card("renderD128", "0000:c5:00.0")
    tree.card("card10", "0000:c3:00.0")
    tree.card("card2", "0000:c2:00.0")
    assert ["card2", "card10"] == sysfs.cards(tree.sys)


def test_none(tree: Tree, collector: Collect) -> None:
    """Without a GPU the collector is unavailable; one that appears later is read."""
    made = collector()
    with pytest.raises(Unavailable, match="no GPU of the driver amdgpu"):
        list(made.collect())
    tree.card()
    assert f"gpu_amd_suspended{{{GPU}}}" in page(made)


def test_a_suspended_gpu_is_not_woken(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read that would wake it: its sensors and errors."""
    tree.card(**{"power/runtime_status": "suspended"})
    content, opened = sysfs.content, []

    def recording(path: Path) -> str:
        opened.append(path)
        return content(path)

    monkeypatch.setattr(sysfs, "content", recording)
    names = {it.metric.name for it in sysfs.read(tree.sys / "class/drm/card1")}
    assert names == {"gpu.amd.info", "gpu.amd.suspended", "gpu.amd.memory.usage", "gpu.amd.memory.limit"}
    assert len(opened) == 12
    assert not [it for it in opened if it.parent.name in ("ras", "hwmon3") or "busy" in it.name or "replay" in it.name]


@pytest.mark.parametrize(
    "content", ["", "-1", "1e9", "0x10", "9" * 21, str(1 << 63), "101 %", "N/A", "\0", "\udcff", "5 5"]
)
def test_what_is_no_number(tree: Tree, content: str) -> None:
    """A file with anything else gives no sample, and the others theirs."""
    device = tree.card()
    wrong = content.encode("utf-8", "surrogateescape")
    for file in ("gpu_busy_percent", "mem_info_vram_used", "pcie_replay_count", "hwmon/hwmon3/power1_cap"):
        (device / file).write_bytes(wrong)
    (device / "ras/umc_err_count").write_bytes(b"ue: " + wrong)
    samples = sysfs.read(tree.sys / "class/drm/card1")
    found = {
        (it.metric.name, it.labels.get("memory") or it.labels.get("engine") or it.labels.get("block")) for it in samples
    }
    assert ("gpu.amd.busy", "gpu") not in found and ("gpu.amd.busy", "vram") in found
    assert ("gpu.amd.memory.usage", "vram") not in found and ("gpu.amd.memory.limit", "vram") in found
    assert ("gpu.amd.ras.errors", "umc") not in found and ("gpu.amd.ras.errors", "gfx") in found
    assert not {"gpu.amd.pcie.replays", "gpu.amd.power.limit"} & {name for name, _ in found}


def test_files_that_are_not_there(tree: Tree) -> None:
    """An old driver, or one without RAS and hwmon: what is absent is absent."""
    device = tree.card()
    for file in FILES:
        if file not in ("mem_info_vram_used", "gpu_busy_percent"):
            (device / file).unlink()
    names = [it.metric.name for it in sysfs.read(tree.sys / "class/drm/card1")]
    assert sorted(names) == ["gpu.amd.busy", "gpu.amd.info", "gpu.amd.memory.usage", "gpu.amd.suspended"]


def test_momentary_power(tree: Tree) -> None:
    """If the driver has no average power, the momentary power is labelled so."""
    device = tree.card(**{"hwmon/hwmon3/power1_input": "41000000"})
    (device / "hwmon/hwmon3/power1_average").unlink()
    [power] = [it for it in sysfs.read(tree.sys / "class/drm/card1") if it.metric.name == "gpu.amd.power"]
    assert ("momentary", 41.0) == (power.labels["kind"], power.value)


def test_a_gpu_that_does_not_answer(tree: Tree, collector: Collect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that blocks has no series beyond the deadline, and the others theirs."""
    tree.card()
    tree.card("card2", "0000:c2:00.0")
    go, read = threading.Event(), sysfs.read

    def blocking(path: Path) -> object:
        if path.name == "card2":
            go.wait(60)
        return read(path)

    monkeypatch.setattr(sysfs, "read", blocking)
    made = collector(deadline=0.1)
    assert made._readers._readers["card1"].read_once.wait(PATIENCE)  # a busy machine may take longer than 0.1 s
    found = page(made)
    go.set()
    assert ("1", "0") == tuple(found[f'accel_exporter_amdgpu_success{{card="{it}"}}'] for it in ("card1", "card2"))
    assert f"gpu_amd_suspended{{{GPU}}}" in found
    assert not [line for line in found if "card2" in line and line.startswith("gpu_amd")]
    assert ["card2 is not seen: reading it takes more than 0.1 s and has not ended"] == list(made.problems())
    until(lambda: 'gpu_amd_suspended{card="card2",pci_bus_id="0000:c2:00.0"}' in page(made), "read at last")


def test_a_gpu_that_is_removed(tree: Tree, collector: Collect) -> None:
    """Series of a GPU that is removed end with the next scrape."""
    tree.card()
    tree.card("card2", "0000:c2:00.0")
    made = collector()
    assert [it for it in page(made) if "card2" in it]
    (tree.sys / "class/drm/card2").unlink()
    assert not [it for it in page(made) if "card2" in it]
