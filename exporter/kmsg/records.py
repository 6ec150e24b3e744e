"""One record of the kernel log as /dev/kmsg prints it (Documentation/ABI/testing/dev-kmsg)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
_MOST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Record:
    """`time_ns` is of the kernel's own clock, close to CLOCK_MONOTONIC; `replayed` records are older than the reader.

    `facility` is 0 for what the kernel itself said: the kernel gives another to what processes write. A message of
    several lines is one record whose text has line feeds.
    """

    level: int
    facility: int
    sequence: int
    time_ns: int
    text: str
    replayed: bool = False


def parse(line: bytes, replayed: bool = False) -> Record:
    """The record of a line, as `6,352,6074560580,-;text`. Raises ValueError when it is none."""
    head, semicolon, text = line.partition(b";")
    fields = head.split(b",", 4)
    if not semicolon or len(fields) < 3 or not all(field.isdigit() for field in fields[:3]):
        raise ValueError(f"no record of the kernel log: {line[:80]!r}")
    priority, sequence, microseconds = (int(field) for field in fields[:3])
    if max(priority, sequence, microseconds * 1000) > _MOST:
        raise ValueError(f"no record of the kernel log: {line[:80]!r}")
    said = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), text).decode("utf-8", "backslashreplace")
    return Record(priority & 7, priority >> 3, sequence, microseconds * 1000, said, replayed)
