"""Records of the kernel log as /dev/kmsg prints them (Documentation/ABI/testing/dev-kmsg)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
_MOST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the kernel log. A message of several lines is one record: its text has line feeds.

    `time_ns` are nanoseconds of the kernel's own clock, close to CLOCK_MONOTONIC. `replayed` records are older than
    the reader. `facility` is 0 for messages of the kernel itself; the kernel gives another one to messages that
    processes write.
    """

    level: int
    facility: int
    sequence: int
    time_ns: int
    text: str
    replayed: bool = False


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
    return Record(priority & 7, priority >> 3, sequence, microseconds * 1000, message, replayed)
