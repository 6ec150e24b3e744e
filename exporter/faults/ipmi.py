"""Sensor states of the management controller (BMC), read by FreeIPMI's ipmi-sensors in a child process.

The program only reads. Its flags select the kernel's driver (OPENIPMI), because by default the program would search I/O
memory for the controller. FreeIPMI decides which reading is critical (freeipmi_interpret_sensor.conf(5)).
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from exporter import bare
from exporter.background.child import ChildProcess
from exporter.background.poller import Poller
from exporter.faults import categories as rows
from exporter.faults import metrics
from exporter.model import Sample

PROGRAM = "ipmi-sensors"
DEVICE = Path("/dev/ipmi0")
ROUND_SECONDS = 240.0
"""Time limit of one round over all sensors. The first round also reads the sensors' descriptions (SDR)."""
MOST_SENSORS = 1024
_MOST_LINES = 2 * MOST_SENSORS
_MOST_NAME, _MOST_REASON = 64, 200
_READ_SECONDS = 0.2
"""Longest wait for output before the exporter's end is checked for."""
_ROW = re.compile(r"[0-9]{1,6},", re.ASCII)
_PLACES = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_STATES = {"Nominal": 0, "Warning": 1, "Critical": 2}
_FLAGS = (
    *("--comma-separated-output", "--no-header-output", "--quiet-readings", "--output-event-bitmask"),
    *("--output-sensor-state", "--entity-sensor-names", "--ignore-not-available-sensors"),
    *("--sdr-cache-recreate", "--quiet-cache"),
)
TYPES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("Temperature", "Voltage", "Current", "Fan", "Cooling Device"), rows.CHASSIS),
        **dict.fromkeys(("Chassis", "Module/Board", "Battery"), rows.CHASSIS),
        **dict.fromkeys(("Power Supply", "Power Unit"), rows.POWER),
        **dict.fromkeys(("Slot/Connector", "Add In Card", "Cable/Interconnect", "Critical Interrupt"), rows.EXPANSION),
        "Processor": rows.CPU,
        "Memory": rows.MEMORY,
        "Drive Slot": rows.SSD,
    }
)
"""The types of sensors that are read, as FreeIPMI prints them, and the category of each type's faults.

Types that do not stop a job are left out: opened lids, buttons, full event logs.
"""


def command(host: str, config: str, cache: str) -> list[str]:
    """Return the command line of ipmi-sensors for the controller `host`, or for the kernel's driver when it is empty.

    `config` is FreeIPMI's configuration file, or empty for FreeIPMI's default. `cache` is a folder for the sensors'
    descriptions, which take long to read. Raises FileNotFoundError when ipmi-sensors is not installed.
    """
    places = os.pathsep.join((os.environ.get("PATH", ""), *_PLACES))
    program = shutil.which(PROGRAM, path=places)
    if program is None:
        raise FileNotFoundError(
            errno.ENOENT, "is not installed (freeipmi-tools of Debian, freeipmi elsewhere)", PROGRAM
        )
    way = [f"--hostname={host}" if host else "--driver-type=OPENIPMI", *([f"--config-file={config}"] if config else [])]
    kinds = ",".join(kind.replace("/", "_").replace(" ", "_") for kind in TYPES)
    return [program, *way, *_FLAGS, f"--sensor-types={kinds}", f"--sdr-cache-directory={cache}"]


def samples(lines: Iterable[str]) -> Iterator[Sample]:
    """Parse the lines of ipmi-sensors, one sensor each: record, name, type, state, event. Skips other lines.

    A repeated name gets its record's number appended; sensors with a state unknown to FreeIPMI are left out.
    """
    seen: set[str] = set()
    for line in lines:
        record, _, rest = line.partition(",")
        name, *columns = rest.rsplit(",", 3)
        if len(columns) != 3 or not record.isdecimal():
            continue
        kind, state, _ = columns
        if kind not in TYPES or state not in _STATES:
            continue
        name = "".join(it for it in name if it.isprintable())[:_MOST_NAME] or "unknown"
        name = f"{name} #{record}" if name in seen else name
        if len(seen) < MOST_SENSORS and name not in seen:
            seen.add(name)
            yield metrics.IPMI.sample(_STATES[state], {"sensor": name, "type": kind, "category": TYPES[kind]})


class Ipmi(Poller[list[Sample]]):
    """The management controller, polled every `interval` seconds."""

    def __init__(self, interval: float, host: str = "", config: str = "") -> None:
        super().__init__("ipmi", self.query, interval, patience=2 * interval + ROUND_SECONDS)
        self._host, self._config, self._cache = host, config, ""

    def close(self, seconds: float = 2.0) -> None:
        """Stop polling and kill a running ipmi-sensors, without waiting for the controller."""
        super().close(seconds)
        if self._cache:
            shutil.rmtree(self._cache, ignore_errors=True)

    def query(self) -> list[Sample]:
        """Return the states of the sensors. Raises OSError with FreeIPMI's message, or when it is not installed."""
        self._cache = self._cache or tempfile.mkdtemp(prefix="accel-exporter-")
        if found := list(samples(self._run_program(command(self._host, self._config, self._cache)))):
            return found
        raise OSError(errno.ENODATA, "reported no sensor", PROGRAM)

    def _run_program(self, words: list[str]) -> list[str]:
        """Return the lines that the program prints. Raises OSError with the program's message when it fails."""
        child = ChildProcess("", words[-1], command=bare.command(words[:-1]), with_errors=True)
        try:
            lines = self._output(child)
            status = child.wait(1)
        finally:
            child.kill()
        if status != 0:
            message = next((line for line in reversed(lines) if not _ROW.match(line)), "")
            reason = message.rpartition(f"{PROGRAM}: ")[2][:_MOST_REASON] or f"ended with status {status}"
            raise OSError(errno.EIO, reason, PROGRAM)
        return lines

    def _output(self, child: ChildProcess) -> list[str]:
        until = time.monotonic() + ROUND_SECONDS
        lines: list[str] = []
        while len(lines) <= _MOST_LINES:
            if self.closing.is_set() or time.monotonic() > until:
                raise TimeoutError(errno.ETIMEDOUT, f"did not end within {ROUND_SECONDS:.0f} s", PROGRAM)
            try:
                received = child.lines(_READ_SECONDS)
            except ValueError as error:
                raise OSError(errno.EPROTO, f"printed {error}", PROGRAM) from None
            if received is None:
                return lines
            lines += (line.decode("utf-8", "replace").strip() for line in received)
        raise OSError(errno.EPROTO, f"printed more than {_MOST_LINES} lines", PROGRAM)
