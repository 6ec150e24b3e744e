"""Messages between the exporter and the worker of a custom probe: one JSON object a line.

The worker imports this module: standard library of Python 3.9 only.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class WorkerConfig:
    """The settings of a worker. It reads `maps` each `interval` seconds, and the records of `buffers`.

    `pid_fields` has, by map, the field of the key that is a pid: rows of processes that ended are deleted after
    `retention_seconds`. `source` and `channel` are descriptors: of the C text, and of the socket for descriptors.
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
    pid_fields: dict[str, str]
    retention_seconds: float
    proc: str = "/proc"


class WorkerMessage:
    """A message of the worker."""


@dataclass(frozen=True)
class Shape:
    """A map as the C file declares it. `key` and `value` are kinds (number, string, other) by field; None: a number."""

    kind: str
    entries: int
    key: dict[str, str] | None
    value: dict[str, str] | None

    @property
    def fills(self) -> bool:
        """Return whether a full map takes no new key. An LRU map drops an old key for a new one."""
        return "Hash" in self.kind and "Lru" not in self.kind


@dataclass(frozen=True)
class Started(WorkerMessage):
    """The probe is compiled and loaded; the descriptors of `programs`, and of the map of USDT arguments, were sent.

    `programs` are all that were loaded, those of tracepoints too. `tracepoints` has, by tracepoint, why it is not
    attached; empty: it is.
    """

    programs: list[str]
    shapes: dict[str, Shape]
    tracepoints: dict[str, str]


@dataclass(frozen=True)
class RowsMessage(WorkerMessage):
    """The rows of a map: [key, value] for each, either a number or the list of its fields."""

    map: str
    rows: list[list[Any]]
    entries: int
    left_out: int


@dataclass(frozen=True)
class Read(WorkerMessage):
    """The end of a reading of all maps: records lost so far by buffer, and records beyond the limit so far."""

    lost: dict[str, int] = field(default_factory=dict)
    limited: int = 0


@dataclass(frozen=True)
class Records(WorkerMessage):
    """Records of a buffer, each the list of its fields in the order of its shape."""

    buffer: str
    rows: list[list[Any]]


@dataclass(frozen=True)
class Failed(WorkerMessage):
    """The worker ends: the reason, and the output of the compiler or the verifier."""

    reason: str
    details: str = ""


_KINDS: dict[str, Callable[..., WorkerMessage]] = {
    kind.__name__: kind for kind in (Started, RowsMessage, Read, Records, Failed)
}


def encode(message: Started | RowsMessage | Read | Records | Failed) -> bytes:
    """Return the message as a line."""
    return json.dumps([type(message).__name__, asdict(message)], separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> WorkerMessage:
    """Return the message of a line. Raises ValueError for a line that is no message."""
    try:
        kind, fields = json.loads(line)
        if kind == Started.__name__:
            fields["shapes"] = {name: Shape(**shape) for name, shape in fields["shapes"].items()}
        return _KINDS[kind](**fields)
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a message: {line[:80]!r}") from error
