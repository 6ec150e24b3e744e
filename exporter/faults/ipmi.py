"""What the management controller (BMC) says of the machine's sensors: FreeIPMI's ipmi-sensors asks it, as a child.

The program reads and changes nothing. It is told to go through the kernel's driver (OPENIPMI): left to itself it would
look for the controller in I/O memory. What reading is critical, FreeIPMI says (freeipmi_interpret_sensor.conf(5)).
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
from exporter.child import ChildProcess
from exporter.faults import categories as rows
from exporter.faults import metrics
from exporter.faults.asked import Asked
from exporter.model import Sample

PROGRAM = "ipmi-sensors"
DEVICE = Path("/dev/ipmi0")
ROUND_SECONDS = 240.0
"""A controller that took longer to tell all its sensors is not waited for. The first round also reads what they are."""
MOST_SENSORS = 1024
_MOST_LINES = 2 * MOST_SENSORS
_MOST_NAME, _MOST_REASON = 64, 200
_GLANCE = 0.2
"""Seconds in which it is noticed that the exporter ends."""
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
"""The types of sensors that are asked for, as FreeIPMI prints them, and the row that each tells of.

What does not stop a job is left out: opened lids, buttons, full event logs.
"""


def command(host: str, config: str, cache: str) -> list[str]:
    """How the program is called: for a controller in the network, or by the kernel's driver where `host` is empty.

    `config` is FreeIPMI's configuration file, its own one where empty. `cache` is a folder for what the sensors are,
    which takes long to read. Raises FileNotFoundError where there is no such program.
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
    """The sensors that the program printed, a line each: record, name, type, state, event. Others are passed over.

    A name that comes again gets its record's number; sensors whose state FreeIPMI does not know are left out.
    """
    seen: set[str] = set()
    for line in lines:
        record, _, rest = line.partition(",")
        name, *told = rest.rsplit(",", 3)
        if len(told) != 3 or not record.isdecimal() or told[0] not in TYPES or told[1] not in _STATES:
            continue
        name = "".join(it for it in name if it.isprintable())[:_MOST_NAME] or "unknown"
        name = f"{name} #{record}" if name in seen else name
        if len(seen) < MOST_SENSORS and name not in seen:
            seen.add(name)
            labels = {"sensor": name, "type": told[0], "category": TYPES[told[0]]}
            yield metrics.IPMI.sample(_STATES[told[1]], labels)


class Ipmi(Asked):
    """The controller, asked every `interval` seconds."""

    def __init__(self, interval: float, host: str = "", config: str = "") -> None:
        super().__init__("ipmi", interval, 2 * interval + ROUND_SECONDS)
        self._host, self._config, self._cache = host, config, ""

    def close(self) -> None:
        """Ends the question that is under way; the controller is not waited for."""
        super().close()
        if self._thread.ident is not None:
            self._thread.join(2)
        if self._cache:
            shutil.rmtree(self._cache, ignore_errors=True)

    def ask(self) -> list[Sample]:
        """What it says of its sensors. Raises OSError with FreeIPMI's own words, or if that is not installed."""
        self._cache = self._cache or tempfile.mkdtemp(prefix="accel-exporter-")
        if found := list(samples(self._ask(command(self._host, self._config, self._cache)))):
            return found
        raise OSError(errno.ENODATA, "told of no sensor", PROGRAM)

    def _ask(self, words: list[str]) -> list[str]:
        """What the program prints. Raises OSError with its own words when it fails."""
        child = ChildProcess("", words[-1], command=bare.command(words[:-1]), with_errors=True)
        try:
            lines = self._read(child)
            status = child.wait(1)
        finally:
            child.kill()
        if status != 0:
            said = next((line for line in reversed(lines) if not _ROW.match(line)), "")
            reason = said.rpartition(f"{PROGRAM}: ")[2][:_MOST_REASON] or f"ended with status {status}"
            raise OSError(errno.EIO, reason, PROGRAM)
        return lines

    def _read(self, child: ChildProcess) -> list[str]:
        until = time.monotonic() + ROUND_SECONDS
        lines: list[str] = []
        while len(lines) <= _MOST_LINES:
            if self._closing.is_set() or time.monotonic() > until:
                raise TimeoutError(errno.ETIMEDOUT, f"did not end within {ROUND_SECONDS:.0f} s", PROGRAM)
            try:
                received = child.lines(_GLANCE)
            except ValueError as error:
                raise OSError(errno.EPROTO, f"printed {error}", PROGRAM) from None
            if received is None:
                return lines
            lines += (line.decode("utf-8", "replace").strip() for line in received)
        raise OSError(errno.EPROTO, f"printed more than {_MOST_LINES} lines", PROGRAM)
