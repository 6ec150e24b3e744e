"""Names of code that a process has made at run time, from its /tmp/perf-PID.map: Node.js, Java, .NET, LLVM and CPython
write one where a setting has them do so (tools/perf/Documentation/jit-interface.txt of Linux).
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from contextlib import suppress

MOST_BYTES = 16 << 20
MOST_NAMES = 1 << 16
MOST_OF_ALL = 1 << 17
"""Names of all processes, after which no more are read: they share the memory of the child that unwinds."""
_LONGEST = 200
_LINE = re.compile(rb"(?:0x)?([0-9a-fA-F]{1,16}) (?:0x)?([0-9a-fA-F]{1,16}) (.+)")


class PerfMap:
    """The names in one file, which grows while the process runs."""

    def __init__(self) -> None:
        self._forget()

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self._names)

    def _forget(self) -> None:
        self._read, self._rest = 0, b""
        self._names: dict[int, tuple[int, str]] = {}
        self._starts: list[int] | None = None

    def update(self, descriptor: int) -> None:
        """Read what has been added, or all of a file that is shorter than it was. The descriptor stays the caller's."""
        with suppress(OSError):
            size = min(os.fstat(descriptor).st_size, MOST_BYTES)
            if size < self._read:
                self._forget()
            lines = (self._rest + os.pread(descriptor, size - self._read, self._read)).split(b"\n")
            self._read, self._rest = size, lines.pop()
            for line in lines:
                self._take(line)
            self._starts = None

    def name(self, address: int) -> str:
        """Return the name of the function that an address is in; empty where no line has it."""
        if self._starts is None:
            self._starts = sorted(self._names)
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return ""
        size, name = self._names[self._starts[at]]
        return name if address - self._starts[at] < size else ""

    def _take(self, line: bytes) -> None:
        """Take a line of start and size in hexadecimal digits and a name; the newest of a start counts."""
        found = _LINE.fullmatch(line)
        if found and (len(self._names) < MOST_NAMES or int(found[1], 16) in self._names):
            self._names[int(found[1], 16)] = int(found[2], 16), found[3][:_LONGEST].decode(errors="replace")
