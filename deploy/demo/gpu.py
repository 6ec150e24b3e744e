"""The demo's GPU: NVML's stand-in and its scenario, and the keys that change it."""

from __future__ import annotations

import os
import select
import termios
import time
import tty
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

XID_EVENT = 8
"""nvmlEventTypeXidCriticalError."""
LIVELY = {
    "gpu.utilization": "63~25",
    "gpu.power_mw": "412000~160000",
    "gpu.temperature": "58~9",
    "gpu.gpm.2": "61~22",
    "gpu.gpm.5": "48~20",
}

PROCESS = f"compute {5 << 30} 57 34"
"""NVML's report of the synthetic job: bytes held, with a context, and its utilization in percent."""


class Gpu:
    """One GPU of the stand-in, which reads its scenario again whenever it changes."""

    def __init__(self, scenario: Path, lines: Mapping[str, object] = LIVELY) -> None:
        self._scenario, self._lines, self._xids = scenario, dict(lines), 0
        self._write()

    def environment(self, standins: Path) -> Mapping[str, str]:
        """In which a program sees this GPU."""
        return {"ACCEL_NVML_SCENARIO": str(self._scenario), "LD_LIBRARY_PATH": str(standins / "nvml")}

    def uses(self, pid: int, what: str = PROCESS) -> None:
        """Lets a process compute on the GPU: `what` is its kind, bytes and shares."""
        self._lines["gpu0.process.0"] = f"{pid} {what}"
        self._write()

    def xid(self, number: int) -> None:
        """The driver reports an Xid."""
        self._xids += 1
        self._lines[f"event.{self._xids}"] = f"0 {XID_EVENT} {number}"
        self._write()

    def _write(self) -> None:
        new = self._scenario.with_suffix(".new")
        new.write_text("".join(f"{key} = {value}\n" for key, value in self._lines.items()))
        new.rename(self._scenario)


class Keys:
    """Keys of a terminal as they are pressed; elsewhere none. Ctrl-C stays an interrupt."""

    def __init__(self, source: IO[str]) -> None:
        self._source = source
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        if self._source.isatty():
            self._before = termios.tcgetattr(self._source)
            tty.setcbreak(self._source, termios.TCSANOW)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._before is not None:
            termios.tcsetattr(self._source, termios.TCSANOW, self._before)

    def pressed(self, key: str, seconds: float) -> bool:
        """Waits so long; True, and at once, when the key is pressed meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._before is None:
                time.sleep(left)
            elif select.select([self._source], [], [], left)[0] and os.read(self._source.fileno(), 1) == key.encode():
                return True
        return False
