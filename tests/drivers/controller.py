"""A management controller of OpenIPMI's simulator: reached over the network, or as a machine's own by QEMU.

Its sensor data records are written here, as the IPMI specification 2.0 has them (43.1 full, 43.2 compact).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support import free_port, until

SIMULATOR = "ipmi_sim"
_ADDRESS = 0x20
_THRESHOLD, _SPECIFIC = 0x01, 0x6F
"""Event types: a reading with limits, or states of this very type of sensor (42.1)."""
_UPPER_CRITICAL = 4


@dataclass(frozen=True)
class Sensor:
    """One of the machine. `kind` is its type (table 42-3); of its states, bit `bad` is critical, `good` always set."""

    name: str
    kind: int
    entity: tuple[int, int]
    bad: int
    good: int | None = None
    event: int = _SPECIFIC

    def record(self, number: int) -> bytes:
        """The sensor data record; `number` is that of the sensor and of the record."""
        head = bytes((_ADDRESS, 0, number, *self.entity, 0x67, 0x40, self.kind, self.event))
        masks = bytes((0xFF, 0x7F) * 3)
        if self.event == _THRESHOLD:
            kind, rest = 0x01, bytes((0, 1, 0, 0, 1)) + bytes(22)
        else:
            kind, rest = 0x02, bytes((0xC0,)) + bytes(10)
        name = self.name.encode("ascii")
        body = head + masks + rest + bytes((0xC0 | len(name),)) + name
        return bytes((number, 0, 0x51, kind, len(body))) + body


INLET = Sensor("Inlet Temp", 0x01, (0x07, 1), _UPPER_CRITICAL, event=_THRESHOLD)
FAN = Sensor("FAN1", 0x04, (0x1D, 1), 1, event=_THRESHOLD)
CPU = Sensor("CPU0 Status", 0x07, (0x03, 1), 8, 7)
SUPPLIES = tuple(Sensor("Status", 0x08, (0x0A, number), 3, 0) for number in (1, 2))
DIMM = Sensor("DIMM A1", 0x0C, (0x20, 1), 1, 6)
BAY = Sensor("Bay 0", 0x0D, (0x1A, 1), 1, 0)
SLOT = Sensor("Riser", 0x21, (0x0B, 3), 0, 2)
LID = Sensor("Intrusion", 0x05, (0x17, 1), 0)
SENSORS = (INLET, FAN, CPU, *SUPPLIES, DIMM, BAY, SLOT, LID)
USER, PASSWORD = "observer", "not-secret"
ANSWERS_WITHIN_MS = 10_000
"""Of FreeIPMI for the simulator, which a busy machine may stop for seconds."""


class Controller:
    """Runs the simulator: all sensors are ok, but the lid is open."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        lan, self.serial = free_port(), free_port()
        self.host = f"127.0.0.1:{lan}"
        self.config = folder / "freeipmi.conf"
        self.configure(f"session-timeout {ANSWERS_WITHIN_MS}")
        (folder / "lan.conf").write_text(_configuration(lan, self.serial))
        (folder / "commands").write_text("\n".join(_commands()) + "\n")
        (folder / "state").mkdir(exist_ok=True)
        self._output = (folder / "output").open("w+")
        self._process = subprocess.Popen(
            [SIMULATOR, "-p", "-c", folder / "lan.conf", "-f", folder / "commands", "-s", folder / "state"],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._await_prompt()
        self.fails(LID)

    def configure(self, line: str, password: str = PASSWORD) -> None:
        """Write the configuration of FreeIPMI, with this line."""
        self.config.write_text(f"username {USER}\npassword {password}\n{line}\n")

    def fails(self, sensor: Sensor) -> None:
        """The sensor becomes critical."""
        self._set(sensor, sensor.bad, 1)

    def recovers(self, sensor: Sensor) -> None:
        self._set(sensor, sensor.bad, 0)

    def end(self) -> None:
        """Ends the simulator: the controller answers no more, and nobody has to wait long for it."""
        self.configure("session-timeout 2000")
        self._process.kill()
        self._process.wait()
        assert self._process.stdin
        self._process.stdin.close()
        self._output.close()

    def _set(self, sensor: Sensor, bit: int, value: int) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"sensor_set_bit {_ADDRESS} 0 {SENSORS.index(sensor) + 1} {bit} {value} 0\n")
        self._process.stdin.flush()

    def _await_prompt(self) -> None:
        printed = Path(self._output.name)

        def prompted() -> bool:
            assert self._process.poll() is None, printed.read_text()
            return printed.read_text(errors="replace").endswith("> ")

        until(prompted, printed.read_text, 120)


def missing() -> str:
    """Return the missing programs that the tests need, as a sentence; empty if all are installed."""
    packages = {SIMULATOR: "openipmi", "ipmi-sensors": "freeipmi-tools"}
    path = f"{os.environ['PATH']}:/usr/sbin"
    lacking = [package for program, package in packages.items() if not shutil.which(program, path=path)]
    return f"{', '.join(lacking)} (Debian package) is not installed" if lacking else ""


def _configuration(lan: int, serial: int) -> str:
    levels = ("callback", "user", "operator", "admin")
    return "\n".join(
        (
            'name "bmc"',
            f"serial 15 127.0.0.1 {serial} codec VM",
            f"set_working_mc {_ADDRESS:#x}",
            "startlan 1",
            f"addr 127.0.0.1 {lan}",
            "priv_limit admin",
            *(f"allowed_auths_{level} md5" for level in levels),
            "endlan",
            f'user 2 true "{USER}" "{PASSWORD}" admin 10 md5',
            "",
        )
    )


def _commands() -> list[str]:
    lines = [f"mc_setbmc {_ADDRESS:#x}", f"mc_add {_ADDRESS:#x} 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02"]
    for number, sensor in enumerate(SENSORS, 1):
        record = " ".join(f"{byte:#04x}" for byte in sensor.record(number))
        lines.append(f"main_sdr_add {_ADDRESS:#x} {record}")
        lines.append(f"sensor_add {_ADDRESS:#x} 0 {number} {sensor.kind:#x} {sensor.event:#x}")
        masks = " ".join(("111111111111111",) * 4)
        lines.append(f"sensor_set_event_support {_ADDRESS:#x} 0 {number} enable scanning per-state {masks}")
        if sensor.good is not None:
            lines.append(f"sensor_set_bit {_ADDRESS:#x} 0 {number} {sensor.good} 1 0")
    return [*lines, f"mc_enable {_ADDRESS:#x}"]
