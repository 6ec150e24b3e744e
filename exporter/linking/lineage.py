"""The processes above a process that run the same program or started it."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from exporter.process_end import has_ended

MOST_GENERATIONS, MOST = 16, 2048
_INIT = 1
_STAT_BYTES = 4096
_STAT = re.compile(rb"\) \S (\d+) (?:\S+ ){17}(\d+) ", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Lineage:
    """The ancestors of a process below init, the nearest first."""

    started: int
    """Start time in clock ticks after boot."""
    above: tuple[int, ...]
    relatives: int
    """Number of them, from the nearest on, that run the same executable file as the process."""


class Lineages:
    """Lineages by pid, each read once, because the kernel gives a process another parent if its parent ends.

    Safe from any thread.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._lock = threading.Lock()
        self._known: OrderedDict[int, Lineage] = OrderedDict()

    def note(self, pid: int) -> None:
        """Read the lineage of a process that lives now, unless that of its pid is known."""
        with self._lock:
            known = pid in self._known
        if not known:
            self.of(pid)

    def of(self, pid: int) -> Lineage | None:
        """Return the lineage of a process as first read; None if it had ended then."""
        parent = self._parent(pid)
        with self._lock:
            known = self._known.get(pid)
        if known and (parent is None or parent[1] == known.started):
            return known
        if parent is None:
            return None
        made = self._read(pid, *parent)
        with self._lock:
            self._known[pid] = made
            self._known.move_to_end(pid)
            while len(self._known) > MOST:
                self._known.popitem(last=False)
        return made

    def _read(self, pid: int, parent: int, started: int) -> Lineage:
        above: list[int] = []
        program, relatives = self._program(pid), 0
        while parent > _INIT and len(above) < MOST_GENERATIONS:
            if relatives == len(above) and program and self._program(parent) == program:
                relatives += 1
            above.append(parent)
            found = self._parent(parent)
            if found is None:
                break
            parent = found[0]
        return Lineage(started, tuple(above), relatives)

    def _program(self, pid: int) -> str:
        """Return the path of the executable file, which is not looked at; nothing where it cannot be read."""
        try:
            return str(Path(f"{self._proc}/{pid}/exe").readlink())
        except OSError:
            return ""

    def _parent(self, pid: int) -> tuple[int, int] | None:
        """Return the parent and the start time of a process; None if there is none."""
        try:
            file = os.open(f"{self._proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            stat = os.read(file, _STAT_BYTES)
        except OSError:
            return None
        finally:
            os.close(file)
        found = _STAT.match(stat, stat.rfind(b") "))
        return (int(found[1]), int(found[2])) if found else None


def server_of(pid: int, servers: Collection[int], lineages: Lineages) -> int | None:
    """Return the server that a process may work for: itself, or the nearest one above it.

    Without one it is the only server below the nearest ancestor that runs the same program and has servers below it:
    processes that one program has started work together. None where there is no server, or more than one.
    """
    if pid in servers:
        return pid
    own = lineages.of(pid)
    if own is None:
        return None
    for ancestor in own.above:
        if ancestor in servers:
            return ancestor
    for ancestor in own.above[: own.relatives]:
        below = [it for it in servers if (lineage := lineages.of(it)) and ancestor in lineage.above]
        if len(below) > 1:
            below = [it for it in below if not has_ended(it)]
        if below:
            return below[0] if len(below) == 1 else None
    return None
