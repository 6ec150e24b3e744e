"""Libraries that only pass calls on to another one that is probed too: their calls would count twice.

Evidence is that a process has mapped both. A process can map what it likes, so the evidence holds for processes of its
user only (exporter.bpf.process_user): others may use the same library alone, and their calls count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from exporter.bpf.library import Library
from exporter.bpf.native import BpfError
from exporter.bpf.probed_library import ProbedLibrary
from exporter.bpf.process_user import NOBODY, User

MOST = 1024
"""Files that are remembered, and users of each; beyond that all are forgotten, and found again when a process maps both
libraries."""
_PID_BITS = 32

PassesOn = Callable[[Library, Library], Collection[str]]
"""Returns which symbols of the first library pass calls on to the second one, where a process has mapped both."""

_File = tuple[tuple[int, int], bytes]

log = logging.getLogger(__name__)


class Rows(Protocol):
    """The part of exporter.bpf.maps.Map that is needed."""

    def set(self, key: int, value: int) -> None: ...
    def delete(self, key: int) -> bool: ...


class PassingProcesses:
    """The maps `passing` and `passing_processes` of an object: calls of these processes in a library are left out."""

    def __init__(self, passing: Rows, processes: Rows) -> None:
        self._passing, self._processes = passing, processes
        self._kept: dict[int, set[int]] = {}

    def keep(self, library: int, pids: Collection[int]) -> None:
        """Leave out the calls of just these processes in the library of this number."""
        kept = self._kept.setdefault(library, set())
        for pid in kept - set(pids):
            self._passing.delete(library << _PID_BITS | pid)
            kept.discard(pid)
        for pid in set(pids) - kept:
            try:
                self._passing.set(library << _PID_BITS | pid, 1)
            except BpfError as error:
                log.warning("calls that a library passes on count twice: %s", error)
                break
            kept.add(pid)
        self._processes.set(library, len(kept))
        if not kept:
            del self._kept[library]


@dataclass(frozen=True, slots=True)
class Passed:
    """The symbols of a library that pass calls on, the path of the library that they are passed on to, and the users
    that have shown that.
    """

    symbols: frozenset[str] = frozenset()
    to: str = ""
    users: frozenset[User] = frozenset()


NOTHING = Passed()


class Passing:
    """Symbols of each file that pass calls on, and the processes in which they do.

    `processes` has those that are left out by the programs, where other processes use the same library alone; None if
    the programs leave none out. `lose` gets the processes that were counted in a library that is left out from now on,
    without another one being mapped.
    """

    def __init__(
        self,
        passes_on: PassesOn,
        user_of: Callable[[int], User],
        processes: PassingProcesses | None = None,
        lose: Callable[[Collection[int]], None] = lambda pids: None,
    ) -> None:
        self._passes_on, self._user_of, self._processes, self._lose = passes_on, user_of, processes, lose
        self.found: dict[_File, Passed] = {}

    def of(self, library: Library) -> Passed:
        """Return what is known of a library."""
        return self.found.get(_file(library), NOTHING)

    def holds(self, pid: int, library: Library) -> bool:
        """Return whether it is known that the library passes calls on in processes of this one's user."""
        users = self.of(library).users
        return bool(users) and self._user_of(pid) in users

    def compare(self, pid: int, library: Library, other: Library) -> bool:
        """Note what a library passes on to another one in a process. Return whether that is new for its user."""
        symbols = frozenset(self._passes_on(library, other))
        user = self._user_of(pid) if symbols else NOBODY
        before = self.of(library)
        if user == NOBODY or (symbols <= before.symbols and user in before.users):
            return False
        if len(self.found) >= MOST:
            self.found.clear()
        users = before.users if len(before.users) < MOST else frozenset[User]()
        self.found[_file(library)] = Passed(before.symbols | symbols, other.path, users | {user})
        return True

    def at_first(self, library: Library, beside: Iterable[ProbedLibrary]) -> frozenset[str]:
        """Return the symbols that get no probes at first, as the process that the library was found in passes them on.

        `beside` has the other libraries of that process. While the symbols were probed, calls would count twice.
        """
        for it in beside:
            self.compare(library.found_in, library, it.hooked.library)
        return self.of(library).symbols if self.holds(library.found_in, library) else frozenset()

    def left_out(self, probed: ProbedLibrary, pid: int, present: Collection[ProbedLibrary]) -> frozenset[str]:
        """Return the symbols of a library that are to have no probes, now that one of its users has mapped more.

        These are all that pass calls on, from new evidence in the process on until somebody uses the library alone.
        """
        library = probed.hooked.library
        others = [it for it in present if it is not probed]
        shown = [self.compare(pid, library, it.hooked.library) for it in others if pid in it.users]
        if not self.of(library).users:  # as of most libraries
            return frozenset()
        if self._user_of(pid) == NOBODY:  # the process has ended
            return probed.left_out
        found = {it for it in (probed.users if any(shown) else [pid]) if self.holds(it, library)} - probed.passing
        probed.passing |= found
        alone = found.difference(*(it.users for it in others if self._passes_on(library, it.hooked.library)))
        alone -= {pid}  # what it has mapped besides may not have been announced yet
        if alone and not probed.left_out:
            self._lose(alone)
        used = any(self._user_of(it) != NOBODY for it in probed.users.keys() - probed.passing)
        return self.of(library).symbols if not used and (any(shown) or probed.left_out) else frozenset()

    def leave(self, probed: ProbedLibrary, pids: Collection[int]) -> None:
        """Forget processes that have ended."""
        if not probed.passing.isdisjoint(pids):
            probed.passing.difference_update(pids)
            for number in probed.hooked.numbers:
                self.keep(number, probed.passing)

    def keep(self, number: int, pids: Collection[int]) -> None:
        """Leave out the calls of just these processes in the library of this number."""
        if self._processes:
            self._processes.keep(number, pids)


def _file(library: Library) -> _File:
    return library.identity, library.digest
