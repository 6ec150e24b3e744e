"""Learning where functions of providers are from the pointers in objects of processes.

The BPF programs read the pointers (bpf/verbs/live.bpf.h, bpf/verbs/learn.bpf.h); which functions of a file they are
is decided from the file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from exporter.bpf.elf import ElfError
from exporter.bpf.library import Library
from exporter.bpf.maps import Map
from exporter.bpf.shares import Shares, User
from exporter.verbs.code import extended, live
from exporter.verbs.code.live import POINTERS
from exporter.verbs.code.providers import ProviderFunctions
from exporter.verbs.functions import CQ_CALLS, QP_CALLS
from exporter.verbs.probed import Provider
from exporter.verbs.records import ExtendedCalls, LiveFunctions

_MOST_SETS = 16
"""Sets of pointers of one process that are examined: the process may change them as it likes."""
_MOST_USERS = 1 << 14

Addresses = Mapping[str, int]
"""Addresses of functions in a process, by the names of the pointers; 0 is none."""


def of_context(functions: LiveFunctions) -> Addresses:
    """Return the addresses in a struct live_functions."""
    return {op: getattr(functions, op) for op in POINTERS}


def of_object(calls: ExtendedCalls, of_cq: int) -> Addresses:
    """Return the addresses in a struct extended_calls, of a queue pair or a completion queue."""
    return dict(zip(CQ_CALLS if of_cq else QP_CALLS, calls.functions, strict=False))


class Pointers:
    """The pointers that were read in each process so far."""

    def __init__(self, maps: Mapping[str, Map]) -> None:
        self._maps = maps

    def contexts(self, pid: int) -> Iterator[Addresses]:
        """Yield the functions of each context of a process."""
        yield from [of_context(value) for key, value in self._maps["live_functions"].items() if key.tgid == pid]

    def objects(self, pid: int) -> Iterator[Addresses]:
        """Yield the calls of queue pairs and completion queues of a process."""
        calls = self._maps["extended_calls"].items()
        yield from [of_object(value, key.of_cq) for key, value in calls if key.tgid == pid]

    def observed(self) -> None:
        """Note that all calls read so far are probed from now on: queue pairs made after this are seen whole."""
        self._maps["extended_since"].set(0, time.monotonic_ns())


class _Search(Protocol):
    """The functions of a module that finds functions by their addresses."""

    def offsets_in(self, library: Library, pid: int, addresses: Addresses, proc: Path) -> dict[str, int]: ...

    def learn(self, library: Library, offsets: Mapping[str, int]) -> ProviderFunctions: ...


class Learning:
    """Finds functions of providers by their addresses in processes, each user within a share of the time.

    Processes of a user without time left are postponed. Safe from any thread; holds no lock while it searches.
    """

    def __init__(self, shares: Shares, proc: Path) -> None:
        self._shares, self._proc = shares, proc
        self._lock = threading.Lock()
        self.examined: dict[int, set[tuple[int, ...]]] = {}
        self._postponed: set[int] = set()

    def functions(
        self, pid: int, addresses: Addresses, providers: Collection[Provider]
    ) -> Iterator[tuple[Provider, ProviderFunctions]]:
        """Yield what is found of the functions that a context of the process calls, where that was not certain."""
        user = self._shares.user(pid)
        if not self._may_search(pid, user):
            return
        with self._lock:
            unsure = [provider for provider in providers if pid in provider.users and not provider.whole]
            examined = self.examined.setdefault(pid, set()) if unsure else set()
            if not unsure or len(examined) >= _MOST_SETS or tuple(addresses.values()) in examined:
                return
            examined.add(tuple(addresses.values()))
        for provider in unsure:
            with self._shares.charge(user):
                found = self._found(live, provider, pid, addresses, POINTERS)
            if found is not None:
                yield provider, found

    def calls(
        self, pid: int, addresses: Addresses, providers: Collection[Provider]
    ) -> Iterator[tuple[Provider, ProviderFunctions]]:
        """Yield what is found of the calls that a queue pair or completion queue of the process has."""
        user = self._shares.user(pid)
        if not self._may_search(pid, user):
            return
        for provider in [provider for provider in providers if pid in provider.users]:
            with self._shares.charge(user):
                found = self._found(extended, provider, pid, addresses, ("ibv_wr_start",))
            if found is not None:
                yield provider, found

    def restart(self, pid: int) -> None:
        """Forget which pointers of a process were examined."""
        with self._lock:
            self.examined.pop(pid, None)

    def forget(self, pids: Collection[int]) -> None:
        """Drop what is kept of processes that use no provider any more."""
        with self._lock:
            self._postponed.difference_update(pids)
            for pid in pids:
                self.examined.pop(pid, None)

    def postponed(self) -> set[int]:
        """Return the processes that were postponed since the last call."""
        with self._lock:
            postponed, self._postponed = self._postponed, set()
            return postponed

    def _may_search(self, pid: int, user: User) -> bool:
        """Return whether the user has time left; else postpone the process."""
        if self._shares.may_spend(user):
            return True
        with self._lock:
            if len(self._postponed) < _MOST_USERS:
                self._postponed.add(pid)
        return False

    def _found(
        self, search: _Search, provider: Provider, pid: int, addresses: Addresses, names: Collection[str]
    ) -> ProviderFunctions | None:
        """Return the functions at these addresses; None if they are known, another file's, or the process has ended.

        `names` are refused where the file cannot be read.
        """
        try:
            offsets = search.offsets_in(provider.library, pid, addresses, self._proc)
            if offsets.items() <= provider.known:
                return None
            return search.learn(provider.library, offsets)
        except (FileNotFoundError, ProcessLookupError):
            return None  # the process has ended; the next one is examined
        except (OSError, ElfError) as error:
            return ProviderFunctions({}, dict.fromkeys(names, f"The file cannot be read: {error}."))
