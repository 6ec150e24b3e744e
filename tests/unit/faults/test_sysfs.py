"""Faults in sysfs: PCIe, memory controllers, sensors, drives."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from exporter.faults import machine, metrics, pci, sensors
from exporter.faults.counts import MOST_OF_GROUP
from exporter.faults.ledger import Fault, FaultLedger
from exporter.faults.transitions import Transitions
from exporter.infiniband import metrics as rdma
from exporter.model import Labels, Metric, Sample
from tests.unit.infiniband.trees import write

GPU, NIC, ROOT, SWITCH = "0000:18:00.0", "0000:19:00.0", "0000:00:01.0", "0000:17:00.0"


def aer(path: Path, correctable: int, nonfatal: int, fatal: int) -> None:
    """As the kernel prints them since 5.0."""
    write(path / "aer_dev_correctable", f"RxErr 0\nBadTLP {correctable}\nTOTAL_ERR_COR {correctable}")
    write(path / "aer_dev_nonfatal", f"Undefined 0\nTOTAL_ERR_NONFATAL {nonfatal}")
    write(path / "aer_dev_fatal", f"Undefined 0\nTOTAL_ERR_FATAL {fatal}")


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    """A machine with a GPU and a NIC below a switch, a console chip, and a device without readable files."""
    switch = tmp_path / "devices/pci0000:00" / ROOT / SWITCH
    links = tmp_path / "bus/pci/devices"
    links.mkdir(parents=True)
    for path, kind, vendor in (
        (switch / GPU, "0x030200", "0x10de"),
        (switch / NIC, "0x020700", "0x15b3"),
        (switch.parent, "0x060400", "0x8086"),
        (switch, "0x060400", "0x10b5"),
        (tmp_path / "devices/pci0000:00/0000:00:02.0", "0x030000", "0x1a03"),
        (tmp_path / "devices/pci0000:00/0000:00:03.0", "0x010802", "0x144d"),
    ):
        write(path / "class", kind)
        write(path / "vendor", vendor)
        (links / path.name).symlink_to(path)
    for path in (switch / GPU, switch / NIC, switch):
        aer(path, 3, 0, 0)
        write(path / "current_link_width", "16")
        write(path / "max_link_width", "16")
        write(path / "current_link_speed", "32.0 GT/s PCIe")
    return tmp_path


def values(samples: Iterable[Sample], metric: Metric) -> dict[str, object]:
    return {" ".join(it.labels.values()): it.value for it in samples if it.metric is metric}


def test_devices(sys: Path) -> None:
    """GPUs, NICs, drives and the ports above them, each once; a console chip is none of them."""
    found = {it.bus_id: (it.kind, it.root_port) for it in pci.devices(sys)}

    expected = {ROOT: ("port", ROOT), SWITCH: ("port", ROOT), GPU: ("gpu", ROOT), NIC: ("nic", ROOT)}
    assert expected | {"0000:00:03.0": ("nvme", "")} == found


def test_virtual_functions(sys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual function has errors of its own and no link, and takes no device's place, however many there are."""
    monkeypatch.setattr(pci, "MOST_DEVICES", 8)
    nic = (sys / "bus/pci/devices" / NIC).resolve()
    for number in range(1, 20):
        path = nic.parent / f"0000:01:{number // 8:02x}.{number % 8}"
        for name, text in (("class", "0x020700"), ("current_link_width", "0"), ("current_link_speed", "Unknown")):
            write(path / name, text)
        write(path / "max_link_width", "16")
        aer(path, 1, 0, 0)
        (path / "physfn").symlink_to(nic)
        (sys / "bus/pci/devices" / path.name).symlink_to(path)
    found = {it.bus_id: it for it in pci.devices(sys)}

    assert {"gpu", "nic"} == {found[it].kind for it in (GPU, NIC)}
    virtual = [it for it in found.values() if it.bus_id.startswith("0000:01:")]
    assert 5 == len(virtual)
    assert [] == list(pci.link(virtual[0]))
    assert 1 == pci.errors(virtual[0])["correctable"]
    assert [16, 16, 32.0] == [it.value for it in pci.link(found[NIC])]


def test_a_port_without_a_card(sys: Path) -> None:
    """A port with nothing below it has 0 lanes in use, which is no lack of knowledge."""
    [port] = [it for it in pci.devices(sys) if it.bus_id == SWITCH]
    write(port.path / "current_link_width", "0")
    write(port.path / "current_link_speed", "Unknown")
    assert [0, 16] == [it.value for it in pci.link(port)]


def test_errors_and_links(sys: Path) -> None:
    """Counts by severity, and lanes; values that a device does not report are left out."""
    by_id = {it.bus_id: it for it in pci.devices(sys)}

    assert {"correctable": 3, "nonfatal": 0, "fatal": 0} == pci.errors(by_id[GPU])
    assert {} == pci.errors(by_id[ROOT])
    assert [16, 16, 32.0] == [it.value for it in pci.link(by_id[GPU])]
    write(by_id[GPU].path / "current_link_width", "63")
    write(by_id[GPU].path / "aer_dev_fatal", "TOTAL_ERR_FATAL " + "9" * 30)
    assert [32.0] == [it.value for it in pci.link(by_id[GPU])]
    assert {"correctable": 3, "nonfatal": 0} == pci.errors(by_id[GPU])


def test_no_pci(tmp_path: Path) -> None:
    """A machine without PCI is an error."""
    with pytest.raises(OSError, match="bus/pci/devices"):
        pci.devices(tmp_path)


def test_edac(tmp_path: Path) -> None:
    """Errors by module under its label, and those that no module is named for."""
    controller = tmp_path / "devices/system/edac/mc/mc0"
    for name, text in (
        ("ce_count", "7"),
        ("ue_count", "1"),
        ("dimm0/dimm_label", "CPU_SrcID#0_DIMM#0"),
        ("dimm0/dimm_ce_count", "5"),
        ("dimm0/dimm_ue_count", "1"),
        ("dimm1/dimm_label", ""),
        ("dimm1/dimm_ce_count", "x"),
    ):
        write(controller / name, text)

    found = values(sensors.edac(tmp_path), metrics.EDAC)

    assert {
        "mc0 CPU_SrcID#0_DIMM#0 corrected": 5,
        "mc0  corrected": 2,
        "mc0 CPU_SrcID#0_DIMM#0 uncorrected": 1,
    } == found


def test_modules_of_one_label(tmp_path: Path) -> None:
    """Modules that the firmware gives one label count apart: else each reading of the two was a fault of new errors."""
    controller = tmp_path / "devices/system/edac/mc/mc0"
    for dimm, errors in (("dimm0", 5), ("dimm1", 0)):
        write(controller / dimm / "dimm_label", "DIMM")
        write(controller / dimm / "dimm_ue_count", errors)
    added: list[tuple[Fault, int]] = []
    transitions = Transitions(lambda fault, times: added.append((fault, times)))
    for _ in range(3):
        found = list(sensors.edac(tmp_path))
        transitions.observe(found, 1.0)

    assert {"DIMM dimm0": 5, "DIMM dimm1": 0} == {it.labels["dimm"]: it.value for it in found}
    assert [] == added


def test_an_alarm_that_cannot_be_read(tmp_path: Path) -> None:
    """An alarm that cannot be read is not 0."""
    chip = tmp_path / "class/hwmon/hwmon0"
    write(chip / "temp1_alarm", 1)
    os.mkfifo(chip / "temp2_alarm")

    assert [("temp1", 1)] == [(it.labels["sensor"], it.value) for it in sensors.hwmon(tmp_path)]


@pytest.mark.parametrize("folder", ["", "devices/system/edac/mc"])
def test_no_edac(tmp_path: Path, folder: str) -> None:
    """Without a driver nothing is claimed of memory errors."""
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)

    with pytest.raises(FileNotFoundError):
        list(sensors.edac(tmp_path))


def test_hwmon(tmp_path: Path) -> None:
    """A sensor is in alarm when any of its limits is passed; without limits it is not shown."""
    chip = tmp_path / "class/hwmon/hwmon3"
    for name, text in (
        ("name", "psu"),
        ("temp1_crit_alarm", "0"),
        ("temp1_max_alarm", "1"),
        ("temp1_label", "inlet"),
        ("fan2_alarm", "0"),
        ("temp2_input", "41000"),
    ):
        write(chip / name, text)

    assert {"psu_hwmon3 fan2": 0, "psu_hwmon3 inlet": 1} == values(sensors.hwmon(tmp_path), metrics.ALARM)


def test_nvme(tmp_path: Path) -> None:
    """A controller is live or in some other state."""
    write(tmp_path / "class/nvme/nvme0/state", "live")
    write(tmp_path / "class/nvme/nvme1/state", "dead")

    assert {"nvme0 live": 1, "nvme1 dead": 0} == values(sensors.nvme(tmp_path), metrics.NVME_LIVE)


def test_boot(tmp_path: Path) -> None:
    """The sample has the start time of the kernel, and the id of the boot."""
    write(tmp_path / "sys/kernel/random/boot_id", "1ef20d6d-1d1f-4d49-ad44-b323a7176f73")
    write(tmp_path / "stat", "cpu 1 2 3\nbtime 1700000000\nprocesses 9")

    assert {"1ef20d6d-1d1f-4d49-ad44-b323a7176f73": 1700000000} == values(machine.boot(tmp_path), metrics.BOOT)
    write(tmp_path / "sys/kernel/random/boot_id", "x" * 36)
    assert [] == list(machine.boot(tmp_path))


def test_shutdown(tmp_path: Path) -> None:
    """A scheduled shutdown is shown while it is; anything else in the file is not."""
    scheduled = tmp_path / "scheduled"
    assert [] == list(machine.shutdown(scheduled))
    write(scheduled, "USEC=1700000000500000\nWARN_WALL=1\nMODE=reboot")
    assert {"reboot": 1700000000.5} == values(machine.shutdown(scheduled), metrics.SHUTDOWN)
    write(scheduled, "USEC=x\nMODE=reboot")
    assert [] == list(machine.shutdown(scheduled))


def test_what_the_machine_has(tmp_path: Path) -> None:
    """CPUs that run, and memory that the kernel has; what is no such file is not guessed at."""
    write(tmp_path / "devices/system/cpu/online", "0-2,4,8-11")
    write(tmp_path / "meminfo", "MemTotal:       24630020 kB\nMemFree:        9 kB")
    assert {"": 8} == values(machine.processors(tmp_path), metrics.CPUS)
    assert {"": 24630020 * 1024} == values(machine.memory(tmp_path), metrics.MEMORY)
    write(tmp_path / "devices/system/cpu/online", "all of them")
    write(tmp_path / "meminfo", "MemTotal: lots")
    for read in (machine.processors, machine.memory):
        with pytest.raises(OSError, match="no list of CPUs|has no MemTotal"):
            list(read(tmp_path))


def test_reports(tmp_path: Path) -> None:
    """A file is what somebody reports, since the time in it or its last change; links, pipes and folders are none."""
    write(tmp_path / "host_maintenance.gce", "1700000000")
    write(tmp_path / "power_supply.PSU1", "input lost")
    os.utime(tmp_path / "power_supply.PSU1", (1600000000, 1600000000))
    (tmp_path / "ssd.link").symlink_to(tmp_path / "host_maintenance.gce")
    (tmp_path / "ssd.folder").mkdir()
    os.mkfifo(tmp_path / "ssd.pipe")
    write(tmp_path / ".host_maintenance.gce.new", "")

    expected = {"host_maintenance gce": 1700000000, "power_supply PSU1": 1600000000}
    assert expected == values(machine.reports(tmp_path), metrics.REPORT)
    write(tmp_path / "powersupply.PSU1", "")
    with pytest.raises(OSError, match="is not named CATEGORY.COMPONENT"):
        list(machine.reports(tmp_path))


def counter(value: int, labels: Labels | None = None) -> Sample:
    return metrics.AER.sample(value, {"pci_bus_id": GPU, "type": "fatal", **(labels or {})})


def reported(*rounds: list[Sample]) -> list[tuple[str, str, int, bool]]:
    """The faults found in the samples of each round: signal, component, occurrences, and whether replayed."""
    faults: list[tuple[str, str, int, bool]] = []
    transitions = Transitions(
        lambda fault, times: faults.append((fault.signal, fault.component, times, fault.replayed))
    )
    for number, samples in enumerate(rounds):
        transitions.observe(samples, float(number))
    return faults


def seen(*rounds: list[Sample]) -> list[tuple[str, str, int]]:
    """The reported faults that count as new."""
    return [(signal, component, times) for signal, component, times, old in reported(*rounds) if times and not old]


def test_counters() -> None:
    """A counter's increase is its number of faults; the first value is from before, and a fall is a reset."""
    assert [("pcie_fatal", GPU, 2)] == seen([counter(5)], [counter(5)], [counter(7)], [counter(7)])
    assert [("pcie_fatal", GPU, 1)] == seen([counter(5)], [counter(1)])
    assert [] == seen([counter(1, {"type": "correctable"})], [counter(9, {"type": "correctable"})])


def test_alarms() -> None:
    """A bad state is a fault when it comes, and again only after it was good."""
    on, off = (metrics.ALARM.sample(value, {"chip": "psu", "sensor": "inlet"}) for value in (1, 0))

    assert [("sensor_alarm", "psu inlet", 1)] * 2 == seen([off], [on], [on], [off], [off], [on])


def test_a_state_in_place_of_another() -> None:
    """Each bit of a drive's warning is a fault when it comes, also where a greater one goes at the same time."""
    rounds = ([metrics.NVME_WARNING.sample(value, {"device": "nvme0"})] for value in (0, 2, 1, 1, 5, 4, 0))
    assert [("nvme_critical_warning", "nvme0", 1)] * 3 == seen(*rounds)


def test_a_state_that_lasts() -> None:
    """A state that was bad in the first reading is not new; while it lasts, each reading reports it 0 times."""
    on, off = (metrics.ALARM.sample(value, {"chip": "psu", "sensor": "inlet"}) for value in (1, 0))
    dead = metrics.NVME_LIVE.sample(0, {"device": "nvme0", "state": "dead"})
    alarm = ("sensor_alarm", "psu inlet")

    assert [(*alarm, 1, True), (*alarm, 0, False)] == reported([on], [on], [off], [off])
    assert [(*alarm, 1, False), (*alarm, 0, False)] == reported([off], [on], [on], [off], [off])
    assert [("nvme_not_live", "nvme0", 1, True), ("nvme_not_live", "nvme0", 0, False)] == reported([dead], [dead])


def test_links() -> None:
    """A link that was active and is not is a fault; one that never was is none."""
    up, down, never = (
        rdma.STATE.sample(it, {"device": name, "port": "1"}) for it, name in ((4, "a"), (1, "a"), (1, "b"))
    )

    looks = ([up, never], [down, never], [down, never], [up, never], [down, never])
    assert [("rdma_link_down", "a 1", 1)] * 2 == seen(*looks)
    assert {"a 1"} == {component for _, component, *_ in reported(*looks)}


def test_ledger_is_bounded() -> None:
    """However many components fail, the series are few, and nothing is lost."""
    ledger = FaultLedger()
    for number in range(3000):
        ledger.add(Fault("ssd", f"nvme{number}", "nvme_timeout", float(number)))
    samples = list(ledger.samples())

    faults = [it for it in samples if it.metric is metrics.FAULTS]
    assert len(faults) == MOST_OF_GROUP + 1
    assert 3000 == sum(int(str(it.value)) for it in faults)
    assert {"category": "ssd", "component": "", "signal": "nvme_timeout", "overflow": "true"} == faults[-1].labels
