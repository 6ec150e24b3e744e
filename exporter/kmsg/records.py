"""Records of the kernel log as /dev/kmsg prints them (Documentation/ABI/testing/dev-kmsg)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
_MOST = 2**63 - 1
_OF_PROCESS = re.compile(rb".{0,15}\[\d+\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the kernel log. A message of several lines is one record: its text has line feeds.

    `time_ns` are nanoseconds of the kernel's own clock, close to CLOCK_MONOTONIC. `replayed` records are older than
    the reader. `facility` is 0 for messages of the kernel itself; the kernel gives another one to messages that
    processes write. A `continued` record is the rest of a message, printed in parts, between which another one came.
    """

    level: int
    facility: int
    sequence: int
    time_ns: int
    text: str
    replayed: bool = False
    continued: bool = False


def parse(line: bytes, replayed: bool = False) -> Record:
    """Returns the record of a line such as `6,352,6074560580,-;text`. Raises ValueError for a line of another form."""
    head, semicolon, text = line.partition(b";")
    fields = head.split(b",", 4)
    if not semicolon or len(fields) < 3 or not all(field.isdigit() for field in fields[:3]):
        raise ValueError(f"no record of the kernel log: {line[:80]!r}")
    priority, sequence, microseconds = (int(field) for field in fields[:3])
    if max(priority, sequence, microseconds * 1000) > _MOST:
        raise ValueError(f"no record of the kernel log: {line[:80]!r}")
    message = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), text).decode("utf-8", "backslashreplace")
    continued = fields[3:4] in ([b"c"], [b"+"])
    return Record(priority & 7, priority >> 3, sequence, microseconds * 1000, message, replayed, continued)


def begins_with_process(message: bytes) -> bool:
    """Returns whether a message begins with the name and pid of a process, as of one that crashed: `COMM[PID]: `.

    The name is any user's, 15 bytes at most with any but a null; so is the rest where it names a file.
    """
    return bool(_OF_PROCESS.match(message))
