"""Processes that begin to use a file while its functions are probed in windows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from exporter.governor.estimates import ProcessTally

LOOK_SECONDS = 1.0
"""Time between two looks at the cost of processes of which all calls are counted."""
_PART, _AT_ONCE, _MOST = 0.1, 2.0, 2.5
"""Part of the time that meeting newcomers takes; seconds that it takes at once, as for a job of many processes; and the
most that are made up for. On a node where many short processes start, some are met up to 5 s late, or never."""
_PATIENCE, _LOOKS = 2, 5
"""Looks in a row over the bound before a newcomer goes to windows, as for the file; and looks after which it is no
newcomer any more. Starts of jobs are short."""


@dataclass(slots=True)
class Newcomer:
    """A process that is probed all the time until it is known what its probes cost."""

    first: ProcessTally
    """Tally from when on calls were counted."""
    before: ProcessTally
    """Tally at the last look, at this time:"""
    looked: float
    looks: int = 0
    over: int = 0
    """Looks in a row over the bound."""

    def look(self, now: ProcessTally, over: bool) -> bool:
        """Return whether the process cost too much for too long."""
        self.before, self.looks, self.over = now, self.looks + 1, self.over + 1 if over else 0
        return self.over >= _PATIENCE


@dataclass(slots=True)
class Newcomers:
    """Newcomers of one file. `clock` is in seconds."""

    clock: Callable[[], float]
    watched: dict[int, Newcomer] = field(default_factory=dict)
    """Newcomers that are looked at each second, by pid."""
    _met: frozenset[int] = frozenset()
    _left: set[int] = field(default_factory=set)
    _owed: float = 0.0
    _owed_at: float = 0.0
    """Seconds of meeting newcomers to be made up for by a pause, at this time."""

    def leave(self, pid: int) -> None:
        """Take note that a process has ended, or runs another program. From any thread."""
        self._left.add(pid)

    def left(self, pid: int) -> bool:
        """Return whether what runs under this pid is another process than before."""
        return pid in self._left

    def take_left(self) -> set[int]:
        """Return those that left since the last call: what runs under their pids is new."""
        left = {self._left.pop() for _ in range(len(self._left))}
        self._met -= left
        for pid in left:
            self.watched.pop(pid, None)
        return left

    def since(self, pids: Collection[int]) -> set[int]:
        """Return those of the file's processes that came since the last call, once there is time to meet them."""
        present = frozenset(pids)
        if present <= self._met or self._owes() > _AT_ONCE:
            return set()
        new, self._met = present - self._met, present
        return set(new)

    def took(self, seconds: float) -> None:
        """Take note that meeting some took so many seconds: others may have to wait."""
        self._owed, self._owed_at = min(_MOST, self._owes() + seconds), self.clock()

    def _owes(self) -> float:
        return max(0.0, self._owed - _PART * (self.clock() - self._owed_at))

    def begin(self, pids: Collection[int]) -> None:
        """Know these processes, as windows begin."""
        self._met = frozenset(pids)

    def watch(self, tallies: Mapping[int, ProcessTally]) -> None:
        """Look at these for some seconds."""
        self.watched.update({pid: Newcomer(it, it, self.clock()) for pid, it in tallies.items()})

    def due(self) -> Collection[int]:
        """Return those to be looked at now."""
        now = self.clock()
        return [pid for pid, it in self.watched.items() if now - it.looked >= LOOK_SECONDS]

    def looks(self, now: Mapping[int, ProcessTally]) -> Iterator[tuple[int, float, Newcomer]]:
        """Yield these newcomers, with the seconds since the last look. They are no newcomers after some looks."""
        time = self.clock()
        for pid in now.keys() & self.watched.keys():
            it = self.watched[pid]
            yield pid, time - it.looked, it
            it.looked = time
            if it.looks >= _LOOKS and not it.over:
                del self.watched[pid]

    def end(self, pids: Collection[int]) -> None:
        """Look at these no more."""
        for pid in pids:
            self.watched.pop(pid, None)
