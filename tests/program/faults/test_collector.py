"""The collector: a kernel log of ours and a sysfs of ours, as a scrape shows them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.collectors.faults import FLAGS, Faults, configure
from exporter.collectors.xid import create
from exporter.faults import metrics
from exporter.faults.xid.metrics import XIDS
from exporter.kmsg.kernel_log import KernelLog, KmsgSettings
from exporter.model import Metric
from exporter.nvml.snapshot import Gpu, GpuIdentity, GpuSnapshot, Readings
from exporter.options import SettingsError
from exporter.profile import Profile
from exporter.reduction import Reduction
from exporter.views import prometheus
from tests.nodes import make_node
from tests.support import PATIENCE, until
from tests.unit.cuda.fakes import FakeProcesses

NIC_LINE = "3,{},{},-;mlx5_core 0000:5e:00.0: print_health:427: synd 0x8: unrecoverable hardware error\n"
NIC_FAULT = ("nic", "0000:5e:00.0", "nic_unrecoverable")


@pytest.fixture
def roots(tmp_path: Path) -> dict[str, Path]:
    """An empty machine with a kernel log."""
    for name in ("sys", "proc"):
        (tmp_path / name).mkdir()
    (tmp_path / "kmsg").write_text("")
    return {"proc": tmp_path / "proc", "sys": tmp_path / "sys", "kmsg": tmp_path / "kmsg"}


@pytest.fixture
def make(roots: dict[str, Path]) -> Iterator[Callable[..., Faults]]:
    made: list[Faults] = []

    def start(**settings: Any) -> Faults:
        chosen = {flag.name: flag.default for flag in FLAGS} | {"interval": 1.0}
        chosen |= {"shutdown-file": str(roots["proc"] / "scheduled")} | settings
        kmsg = KmsgSettings(str(roots["kmsg"]))
        node = make_node(chosen, kmsg=kmsg, proc=roots["proc"], sys=roots["sys"])
        made.append(Faults(node))
        made[-1].start()
        return made[-1]

    yield start
    for it in made:
        it.close()


def values(collector: Faults) -> dict[tuple[str, ...], Any]:
    """Return the values of the collector's samples, by name and label values without empty ones."""
    return {(prometheus.name(it.metric), *filter(None, it.labels.values())): it.value for it in collector.collect()}


def write_line(roots: dict[str, Path], sequence: int) -> None:
    """The kernel writes a line about the NIC, now."""
    with roots["kmsg"].open("a") as file:
        file.write(NIC_LINE.format(sequence, time.monotonic_ns() // 1000))


def test_kernel_log(make: Callable[..., Faults], roots: dict[str, Path]) -> None:
    """A line from before the start does not count as new; a line after the start does, with its time."""
    write_line(roots, 1)
    collector = make()
    key = NIC_FAULT
    until(lambda: values(collector).get(("accel_node_fault_replayed", *key)) == 1)
    assert 0 == values(collector)["accel_node_fault_total", *key]
    before = time.time()
    write_line(roots, 2)
    write_line(roots, 3)
    until(lambda: values(collector)["accel_node_fault_total", *key] == 2)

    assert before - 5 < values(collector)["accel_node_fault_last_timestamp_seconds", *key] < time.time() + 5


def test_former_names(make: Callable[..., Faults], roots: dict[str, Path]) -> None:
    """With the flag each accel_node_* series is there as node_* too, same in all else; without it none is."""
    write_line(roots, 1)
    without, collector = make(), make(**{"former-names": True})
    for each in (without, collector):
        until(lambda at=each: ("accel_node_fault_replayed", *NIC_FAULT) in values(at))
        until(lambda at=each: ("accel_node_fault_source_available", "hwmon") in values(at))
    assert not [name for name, *_ in values(without) if name.startswith("node_")]

    page = prometheus.render(collector.collect()).text.decode().splitlines()
    series = {line for line in page if line.startswith("accel_node_")}
    assert len(series) > 5
    assert series == {f"accel_{line}" for line in page if line.startswith("node_")}
    types = {line for line in page if line.startswith("# TYPE accel_node_")}
    assert types == {line.replace(" node_", " accel_node_") for line in page if line.startswith("# TYPE node_")}
    for profile in (Profile.FLEET, Profile.NODE):
        reduced = [it.metric.name for it in Reduction(profile).apply(list(collector.collect()))]
        assert [it for it in reduced if it.startswith("accel.node.")] == [
            f"accel.{it}" for it in reduced if it.startswith("node.")
        ]


def test_one_reader(roots: dict[str, Path]) -> None:
    """The Xids and the other faults of the log come from one reader, whichever collector starts first or ends last."""
    chosen = {flag.name: flag.default for flag in FLAGS}
    node = make_node(
        chosen, FakeProcesses(), kmsg=KmsgSettings(str(roots["kmsg"])), proc=roots["proc"], sys=roots["sys"]
    )
    collectors = (Faults(node), create(node))
    for collector in collectors:
        collector.start()
    assert node.kernel_log.reader and node.kernel_log.reader.caught_up.wait(20)
    readers = [it.name for it in threading.enumerate() if it.name == "kmsg"]
    with roots["kmsg"].open("a") as file:
        file.write("3,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.\n")
    write_line(roots, 2)
    key = ("accel_node_fault_total", "nic", "0000:5e:00.0", "nic_unrecoverable")
    until(lambda: values(collectors[0]).get(key) == 1)
    found = values(collectors[0])
    collectors[0].close()
    write_line(roots, 3)
    with roots["kmsg"].open("a") as file:
        file.write("3,4,1,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.\n")
    until(lambda: 2 in [it.value for it in collectors[1].collect() if it.metric is XIDS])
    collectors[1].close()

    assert ["kmsg"] == readers
    assert 1 == found["accel_node_fault_total", "faulty_gpu", "00000000:3B:00.0", "xid_79"]
    rows = {it.labels["signal"]: it.value for it in node.faults.samples() if it.metric is metrics.FAULTS}
    assert {"xid_79": 2, "nic_unrecoverable": 1} == rows
    until(lambda: "kmsg" not in {it.name for it in threading.enumerate()}, "the reader ends")


def test_a_reload(roots: dict[str, Path]) -> None:
    """Collectors that take the place of others at a reload count neither old records nor a lasting state again."""
    alarm = roots["sys"] / "class/hwmon/hwmon0"
    alarm.mkdir(parents=True)
    for name, text in (("name", "psu"), ("fan1_alarm", "1"), ("fan1_input", "0")):
        (alarm / name).write_text(text + "\n")
    write_line(roots, 1)
    chosen = {flag.name: flag.default for flag in FLAGS} | {"interval": 1.0}
    kmsg = KmsgSettings(str(roots["kmsg"]))
    node = make_node(chosen, FakeProcesses(), kmsg=kmsg, proc=roots["proc"], sys=roots["sys"])
    xid = "3,{},1,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.\n"

    def counted(metric: Metric) -> dict[str, Any]:
        return {it.labels["signal"]: it.value for it in node.faults.samples() if it.metric is metric}

    for reload in range(3):
        collectors = (Faults(node), create(node))
        for collector in collectors:
            collector.start()
        reader = node.kernel_log.reader
        assert reader and reader.caught_up.wait(60)
        with roots["kmsg"].open("a") as file:
            file.write(xid.format(2 * reload + 2))
        write_line(roots, 2 * reload + 3)
        until(lambda live=reload + 1: counted(metrics.FAULTS).get("nic_unrecoverable") == live, counted(metrics.FAULTS))
        until(lambda at=collectors[0]: ("accel_node_hwmon_alarm", "psu_hwmon0", "fan1") in values(at))
        for collector in collectors:
            collector.close()
        node = replace(node, kernel_log=KernelLog(kmsg, node.clock.wall_ns))

    assert {"xid_79": 3, "nic_unrecoverable": 3, "sensor_alarm": 0} == counted(metrics.FAULTS)
    assert {"xid_79": 0, "nic_unrecoverable": 1, "sensor_alarm": 1} == counted(metrics.FAULTS_REPLAYED)


def test_sysfs(make: Callable[..., Faults], roots: dict[str, Path]) -> None:
    """A fatal PCIe error that comes while we look is a fault of that device; the count from before is none."""
    device = roots["sys"] / "bus/pci/devices/0000:18:00.0"
    device.mkdir(parents=True)
    for name, text in (("class", "0x030200"), ("vendor", "0x10de"), ("aer_dev_fatal", "TOTAL_ERR_FATAL 1")):
        (device / name).write_text(text + "\n")
    collector = make()
    until(lambda: ("accel_node_pci_aer_errors_total", "0000:18:00.0", "gpu", "fatal") in values(collector))
    assert ("accel_node_fault_total", "io_expansion_board", "0000:18:00.0", "pcie_fatal") not in values(collector)
    (device / "new").write_text("TOTAL_ERR_FATAL 3\n")
    (device / "new").rename(device / "aer_dev_fatal")  # at once: the collector reads meanwhile
    until(lambda: values(collector).get(("accel_node_fault_total", "io_expansion_board", "0000:18:00.0", "pcie_fatal")))

    assert 2 == values(collector)["accel_node_fault_total", "io_expansion_board", "0000:18:00.0", "pcie_fatal"]


def test_absent_sources(make: Callable[..., Faults]) -> None:
    """A source that this node lacks is unavailable, not silent, and the page has the reason."""
    collector = make()
    until(lambda: ("accel_node_fault_source_available", "edac") in values(collector))
    found = values(collector)

    assert 0 == found["accel_node_fault_source_available", "edac"] == found["accel_node_fault_source_available", "pci"]
    assert (
        1
        == found["accel_node_fault_source_available", "kernel_log"]
        == found["accel_node_fault_source_available", "shutdown"]
    )
    assert ("accel_node_fault_source_available", "diagnostic") not in found
    assert any("faults of edac are not seen" in it for it in collector.problems())


def test_no_kernel_log(make: Callable[..., Faults], roots: dict[str, Path]) -> None:
    """Without the kernel log the rest works."""
    roots["kmsg"].unlink()
    collector = make()
    until(lambda: ("accel_node_fault_source_available", "hwmon") in values(collector))

    assert 0 == values(collector)["accel_node_fault_source_available", "kernel_log"]
    assert "there is no" in next(collector.problems())


def test_management_controller(make: Callable[..., Faults], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the first answer nothing is known; a sensor that is critical then is a replayed fault, one that becomes
    critical later is a new fault."""
    program, answer = tmp_path / "ipmi-sensors", tmp_path / "answer"
    os.mkfifo(answer)
    program.write_text(f"#!/bin/sh\ncat {answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    collector = make(ipmi=True, **{"ipmi-interval": 1.0})
    source, state = ("accel_node_fault_source_available", "ipmi"), "accel_node_ipmi_sensor_state"
    until(lambda: ("accel_node_fault_source_available", "hwmon") in values(collector))
    assert source not in values(collector)

    answer.write_text("1,PS1,Power Supply,Critical,0009h\n2,FAN1,Fan,Nominal,0000h\n")
    until(lambda: source in values(collector))
    answer.write_text("1,PS1,Power Supply,Critical,0009h\n2,FAN1,Fan,Critical,0000h\n")
    until(lambda: values(collector).get((state, "FAN1", "Fan", "server_chassis")) == 2)
    found = values(collector)

    assert (1, 2) == (found[source], found[state, "PS1", "Power Supply", "power_supply"])
    assert 1 == found["accel_node_fault_replayed", "power_supply", "PS1", "ipmi_power_supply"]
    assert 1 == found["accel_node_fault_total", "server_chassis", "FAN1", "ipmi_chassis"]


def test_active_test(make: Callable[..., Faults], tmp_path: Path) -> None:
    """The time of the last test of the GPUs is that of the stamp; without a stamp there is none."""
    stamp = tmp_path / "passed"
    collector = make(**{"diagnostic-stamp": str(stamp)})
    until(lambda: values(collector).get(("accel_node_fault_source_available", "diagnostic")) == 0)
    stamp.touch()
    os.utime(stamp, (1700000000, 1700000000))
    until(lambda: values(collector).get(("accel_node_diagnostic_last_pass_timestamp_seconds",)) == 1700000000)


def test_nvml(make: Callable[..., Faults]) -> None:
    """An error or a bad state that NVML reports of a GPU is a fault when it comes; earlier counts are none."""
    collector = make(interval=3600.0)
    assert collector.poller.read_once.wait(PATIENCE)  # from now on it looks here alone
    key = ("gpu_hbm3_memory", "GPU-1", "gpu_hbm_uncorrected")
    good = {"ecc_uncorrected_volatile_dram": 2, "remapped_rows_failure": 0, "recovery_action": 0}
    collector.node.gpus.serve(lambda: snapshot("ok", good), lambda seconds: True)
    collector.poller.poll()
    assert not [it for it in values(collector) if it[0] == "accel_node_fault_total"]
    bad = {"ecc_uncorrected_volatile_dram": 5, "remapped_rows_failure": 1, "recovery_action": 1}
    collector.node.gpus.serve(lambda: snapshot("ok", bad), lambda seconds: True)
    collector.poller.poll()
    collector.node.gpus.serve(lambda: snapshot("lost", {}), lambda seconds: True)
    collector.poller.poll()
    collector.poller.poll()
    found = values(collector)

    assert 3 == found["accel_node_fault_total", *key]
    for category, signal in (
        ("gpu_hbm3_memory", "gpu_row_remap_failed"),
        ("faulty_gpu", "gpu_recovery_asked"),
        ("faulty_gpu", "gpu_lost"),
    ):
        assert 1 == found["accel_node_fault_total", category, "GPU-1", signal]
    assert not [it for it in found if it[0].startswith(("hw_", "gpu_"))]


def snapshot(state: str, read: dict[str, int]) -> GpuSnapshot:
    sets = {"fast": Readings(0.0, read)} if read else {}
    return GpuSnapshot("running", gpus=(Gpu(GpuIdentity("GPU-1", 0, "H100", "00000000:18:00.0"), state, sets),))


def test_other_controllers() -> None:
    """FreeIPMI would query many controllers; their sensors would be taken for this node's."""
    values = {flag.name: flag.default for flag in FLAGS}
    for many in ("bmc1,bmc2", "bmc1 bmc2", "bmc[1-2]", "10.0.0.[1,3-5]:623", "bmc[7]"):
        with pytest.raises(SettingsError, match=r"collector.faults.ipmi-host: give one controller"):
            configure(values | {"ipmi-host": many})
    for one in ("", "bmc1", "10.0.0.1:623", "fe80::1", "[fe80::1]:623"):
        assert configure(values | {"ipmi-host": one})
