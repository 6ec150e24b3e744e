"""What parent and child tell each other: one JSON object a line. Runs under the interpreter of either."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Order:
    """What a child is to do. `maps` are read each `interval` seconds, `buffers` are listened to.

    `mortal` names for maps the field of their key that is a pid: rows of processes that ended are deleted
    `kept_seconds` after. `source` and `channel` are descriptors: of the C text, and of the socket to send others over.
    """

    name: str
    parent: int
    source: int
    channel: int
    headers: str
    interval: float
    records_per_second: int
    multi: bool
    usdt: bool
    programs: list[str]
    tracepoints: list[list[str]]
    maps: list[str]
    buffers: list[str]
    mortal: dict[str, str]
    kept_seconds: float
    proc: str = "/proc"


class Message:
    """What a child tells."""


@dataclass(frozen=True)
class Shape:
    """A map as the C file declares it. Fields are names with kinds (number, string, other); a lone number has none."""

    kind: str
    entries: int
    key: dict[str, str] | None
    value: dict[str, str] | None

    @property
    def fills(self) -> bool:
        """Whether it takes no new key once it is full; an LRU map gives up an old one."""
        return "Hash" in self.kind and "Lru" not in self.kind


@dataclass(frozen=True)
class Started(Message):
    """It is compiled and loaded; the descriptors of `programs`, and of the map of USDT arguments, were sent.

    Those are all that were loaded, of tracepoints too. `tracepoints` gives for each why it is not attached, or nothing.
    """

    programs: list[str]
    shapes: dict[str, Shape]
    tracepoints: dict[str, str]


@dataclass(frozen=True)
class Rows(Message):
    """One map as it is now: [key, value] for each row, either a number or the list of its fields."""

    map: str
    rows: list[list[Any]]
    entries: int
    left_out: int


@dataclass(frozen=True)
class Read(Message):
    """All maps were read; what the buffers lost so far by buffer, and what was beyond the limit of records."""

    lost: dict[str, int] = field(default_factory=dict)
    limited: int = 0


@dataclass(frozen=True)
class Records(Message):
    """Records of a buffer, each the list of its fields in the order of its shape."""

    buffer: str
    rows: list[list[Any]]


@dataclass(frozen=True)
class Failed(Message):
    """It cannot go on: why, and the compiler's or the verifier's own words."""

    reason: str
    details: str = ""


_KINDS: dict[str, Callable[..., Message]] = {kind.__name__: kind for kind in (Started, Rows, Read, Records, Failed)}


def encode(message: Started | Rows | Read | Records | Failed) -> bytes:
    """A line."""
    return json.dumps([type(message).__name__, asdict(message)], separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Raises ValueError for what is none of the messages."""
    try:
        kind, fields = json.loads(line)
        if kind == Started.__name__:
            fields["shapes"] = {name: Shape(**shape) for name, shape in fields["shapes"].items()}
        return _KINDS[kind](**fields)
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a message: {line[:80]!r}") from error
