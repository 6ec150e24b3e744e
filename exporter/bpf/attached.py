"""A library that probes are attached to."""

from __future__ import annotations

from dataclasses import dataclass, field

from exporter.bpf.file_worker import OpenFile
from exporter.bpf.library import Closeable, Interest, Library
from exporter.bpf.mappings import MappedFile
from exporter.bpf.overwrites import UNFOLLOWED
from exporter.bpf.shares import User


@dataclass(eq=False, slots=True)
class Attached:
    """A library that at least one interest is attached to, and the processes that use it. Links are only added."""

    library: Library
    file: MappedFile
    held: OpenFile
    user: User
    """The user that the place is counted to."""
    links: list[tuple[Interest, Closeable]]
    complete_ns: int
    """Time at which the last link was attached, CLOCK_MONOTONIC in nanoseconds."""
    users: set[int] = field(default_factory=set)
    idle_since: float = 0.0
    watch: int = UNFOLLOWED
    """The number of the file in exporter.bpf.overwrites."""
    detached: bool = False
    """True once the file was overwritten: no probe is attached any more, though processes may still map the file."""
