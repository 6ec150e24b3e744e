"""Reports of Linux' own drivers on simulated hardware in a virtual machine: a management controller and a drive.

The machine's KCS interface leads to OpenIPMI's simulator; the NVMe drive is QEMU's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.drivers import controller
from tests.drivers.controller import FAN, SUPPLIES, Controller
from tests.rdma import rig
from tests.rdma.rig import REPOSITORY, Host, Limit

ADDRESS = "127.0.0.1:19445"
FLAGS = " ".join(
    (
        *("--collector.disable-defaults", "--collector.faults", "--collector.faults.interval=1"),
        *("--collector.faults.ipmi", "--collector.faults.ipmi-interval=1", "--collector.faults.nvme-smart"),
    )
)
RELIABILITY_DEGRADED = 4
SECONDS = 240.0
"""A round takes some twenty under emulation."""

pytestmark = pytest.mark.timeout(3600)


@dataclass(frozen=True)
class Machine:
    """A virtual machine with an exporter in it, a drive that warns, and its management controller."""

    host: Host
    controller: Controller

    def scrape(self) -> str:
        return self.host.get(ADDRESS)

    def await_(self, seen: Callable[[str], bool]) -> str:
        limit = Limit(self.host, SECONDS)
        while not seen(page := self.scrape()):
            lines = [line for line in page.splitlines() if "ipmi" in line]
            assert not limit.passed, "\n".join(lines)
            time.sleep(1)
        return page


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if missing := rig.missing() or controller.missing():
        if os.environ.get("REQUIRE_RDMA") == "1":
            pytest.fail(f"REQUIRE_RDMA=1, but {missing}")
        pytest.skip(f"{missing}; make test-drivers gets it")
    made = Controller(Path(tmp_path_factory.mktemp("controller")))
    # QEMU 7.2 crashes on a controller that is there before the interface: `reconnect` connects later.
    devices = f"-chardev socket,id=line,host=127.0.0.1,port={made.serial},reconnect=1"
    devices += " -device ipmi-bmc-extern,id=bmc,chardev=line -device isa-ipmi-kcs,bmc=bmc"
    devices += " -drive if=none,id=disk,driver=null-co,size=16M"
    devices += f" -device nvme,drive=disk,serial=drive,smart_critical_warning={RELIABILITY_DEGRADED}"
    try:
        with rig.machine("c", devices) as host:
            host.run("modprobe -a ipmi_devintf ipmi_si nvme; until [ -c /dev/nvme0 ]; do sleep 0.5; done", 120)
            host.run("until [ -c /dev/ipmi0 ]; do sleep 0.5; done", 120)
            host.begin(f"{REPOSITORY}/.venv/bin/accel-exporter --web.listen-address={ADDRESS} {FLAGS}")
            host.await_answer(ADDRESS, "/-/ready", SECONDS)
            yield Machine(host, made)
    finally:
        made.end()


def state(page: str, sensor: str) -> str:
    """The state of a sensor on the page; empty without one."""
    found = [
        line for line in page.splitlines() if line.startswith("accel_node_ipmi_sensor_state{") and f'"{sensor}"' in line
    ]
    return found[0].rpartition(" ")[2] if found else ""


@pytest.mark.evidence(feature="management controller (IPMI)", on="real kernel, emulated hardware")
def test_sensors(machine: Machine) -> None:
    """As root and with few capabilities the exporter has all sensors of the machine from its driver."""
    page = machine.await_(lambda page: bool(state(page, "Fan FAN1")))
    assert 8 == page.count("\naccel_node_ipmi_sensor_state{")
    assert 'accel_node_fault_source_available{source="ipmi"} 1' in page
    assert "0" == state(page, "Power Supply 2 Status")


@pytest.mark.evidence(feature="management controller (IPMI)", on="real kernel, emulated hardware")
def test_a_fault(machine: Machine) -> None:
    """A supply that fails and a fan that stops are faults, once each, and are over when they are."""
    machine.await_(lambda page: bool(state(page, "Fan FAN1")))
    machine.controller.fails(SUPPLIES[1])
    machine.controller.fails(FAN)
    page = machine.await_(
        lambda page: (
            ("2", "2") == (state(page, "Power Supply 2 Status"), state(page, "Fan FAN1"))
            and 'component="Fan FAN1"' in page
        )
    )
    counted = [line for line in page.splitlines() if line.startswith("accel_node_fault_total{") and "ipmi_" in line]
    assert 2 == len(counted) and all(line.endswith(" 1") for line in counted), counted
    machine.controller.recovers(SUPPLIES[1])
    machine.await_(lambda page: "0" == state(page, "Power Supply 2 Status"))


@pytest.mark.evidence(feature="SMART logs of drives", on="real kernel, emulated hardware")
def test_a_drive(machine: Machine) -> None:
    """The drive's SMART log, read with the kernel's ioctl: its warning is a fault from before the exporter."""
    page = machine.await_(lambda page: "accel_node_nvme_critical_warning{" in page)
    values = {name: value for name, _, value in (line.rpartition(" ") for line in page.splitlines())}
    assert RELIABILITY_DEGRADED == float(values['accel_node_nvme_critical_warning{device="nvme0"}'])
    assert 0 == float(values['accel_node_nvme_used_ratio{device="nvme0"}'])
    assert 1 == float(values['accel_node_nvme_live{device="nvme0",state="live"}'])
    assert 1 == float(values['accel_node_fault_source_available{source="nvme_smart"}'])
    [replayed] = [it for it in values if it.startswith("accel_node_fault_replayed{") and "nvme_critical_warning" in it]
    assert 'component="nvme0"' in replayed and "1" == values[replayed]


def test_somebody_else(machine: Machine) -> None:
    """FreeIPMI refuses the device to any user but root, also where the kernel does not: `doctor` counts on that."""
    machine.host.run("chmod 666 /dev/ipmi0")
    query = "ipmi-sensors --driver-type=OPENIPMI --sdr-cache-directory=/tmp"
    command = machine.host.begin(f"setpriv --reuid=65534 --regid=65534 --clear-groups env PATH=$PATH:/usr/sbin {query}")
    command.wait(60, statuses=(1,))
    assert "permission denied" in command.printed


def test_a_controller_that_does_not_answer_any_more(machine: Machine) -> None:
    """There are no series of its sensors any more."""
    machine.await_(lambda page: bool(state(page, "Fan FAN1")))
    machine.controller.end()
    page = machine.await_(lambda page: 'accel_node_fault_source_available{source="ipmi"} 0' in page)
    assert "accel_node_ipmi_sensor_state{" not in page
