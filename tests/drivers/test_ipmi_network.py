"""FreeIPMI queries OpenIPMI's simulator of a management controller over the network: neither is written here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.faults import categories as rows
from exporter.faults.ipmi import Ipmi
from tests.drivers import controller
from tests.drivers.controller import SENSORS, SUPPLIES, Controller
from tests.support import until

pytestmark = pytest.mark.evidence(feature="management controller (IPMI)", on="real software")

NAMES = {
    "System Board Inlet Temp": ("Temperature", rows.CHASSIS),
    "Fan FAN1": ("Fan", rows.CHASSIS),
    "Processor CPU0 Status": ("Processor", rows.CPU),
    "Power Supply 1 Status": ("Power Supply", rows.POWER),
    "Power Supply 2 Status": ("Power Supply", rows.POWER),
    "Memory Device DIMM A1": ("Memory", rows.MEMORY),
    "Disk Drive Bay Bay 0": ("Drive Slot", rows.SSD),
    "Add-in Card Riser": ("Slot/Connector", rows.EXPANSION),
}
"""The names that FreeIPMI prints. The lid is not read."""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Controller]:
    if lacking := controller.missing():
        pytest.skip(lacking)
    made = Controller(tmp_path / "controller")
    yield made
    made.end()


def states(sensors: Ipmi) -> dict[str, object]:
    sensors.poll()
    return {it.labels["sensor"]: it.value for it in sensors.newest()}


def await_states(sensors: Ipmi, wanted: dict[str, int]) -> None:
    """The simulator takes its commands in its own time."""
    until(lambda: states(sensors) == wanted, lambda: states(sensors))


def test_every_sensor(machine: Controller) -> None:
    """Nominal, then critical, then nominal again: temperatures, fans, supplies, CPUs, memory, bays and slots."""
    sensors = Ipmi(300, machine.host, str(machine.config))
    assert dict.fromkeys(NAMES, 0) == states(sensors)
    assert NAMES == {it.labels["sensor"]: (it.labels["type"], it.labels["category"]) for it in sensors.newest()}
    for sensor in SENSORS:
        machine.fails(sensor)
    await_states(sensors, dict.fromkeys(NAMES, 2))
    for sensor in SENSORS:
        machine.recovers(sensor)
    await_states(sensors, dict.fromkeys(NAMES, 0))


def test_one_of_two_supplies(machine: Controller) -> None:
    """Two sensors of one name are distinguished by their entities."""
    sensors = Ipmi(300, machine.host, str(machine.config))
    machine.fails(SUPPLIES[1])
    await_states(sensors, {**dict.fromkeys(NAMES, 0), "Power Supply 2 Status": 2})


def test_a_sensor_left_out(machine: Controller) -> None:
    """One that is always critical is left out by FreeIPMI's own configuration."""
    number = SENSORS.index(SUPPLIES[1]) + 1
    with machine.config.open("a") as file:
        file.write(f"ipmi-sensors-exclude-record-ids {number}\n")
    found = states(Ipmi(300, machine.host, str(machine.config)))
    assert NAMES.keys() - {"Power Supply 2 Status"} == found.keys()


def test_the_wrong_password(machine: Controller) -> None:
    """The error of FreeIPMI is the reason shown."""
    machine.configure("session-timeout 5000", password="wrong")  # all of it passes
    sensors = Ipmi(300, machine.host, str(machine.config))
    sensors.poll()
    with pytest.raises(OSError, match="password invalid|password verification"):
        sensors.newest()


def test_a_controller_that_has_ended(machine: Controller) -> None:
    """States read before the end of the controller are not shown any more."""
    sensors = Ipmi(300, machine.host, str(machine.config))
    assert states(sensors)
    machine.end()
    sensors.poll()
    with pytest.raises(OSError, match="timeout|invalid parameters"):  # by when FreeIPMI notices
        sensors.newest()
