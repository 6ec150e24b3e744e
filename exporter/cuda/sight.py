"""Of which processes all CUDA calls are seen, and of which the memory in use is known."""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from exporter.bpf.libbpf import Object
from exporter.bpf.library import Library
from exporter.cuda.activity import Activity
from exporter.cuda.functions import MEMORY
from exporter.cuda.metrics import SEEN_FROM_START
from exporter.cuda.standing import CudaStandingCalls
from exporter.ledger import Process
from exporter.model import Sample
from exporter.node import Processes
from exporter.resolve.process_gpus import UNKNOWN_DEVICE

if TYPE_CHECKING:
    from exporter.bpf.maps import Map
    from exporter.cuda.group_calls import Allocations

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decided:
    """The processes of which it is decided whether every call is seen, and those of which every call is."""

    pids: Collection[int]
    covered: Collection[int]

    def of(self, process: Process[Activity], is_whole: Callable[[int], bool]) -> Iterator[Sample]:
        """Yield the sample of a running process; `is_whole` returns whether nothing of one was left out."""
        if process.pid not in self.pids:
            return
        devices = process.activity.devices.keys() - {UNKNOWN_DEVICE}
        only = process.activity.gpus.get(0, {}) if len(devices) <= 1 else {}
        seen = process.pid in self.covered and is_whole(process.pid)
        yield SEEN_FROM_START.sample(int(seen), {**process.labels, **only})

    def of_replacing(self, pid: int, processes: Processes) -> Iterator[Sample]:
        """Yield the sample of a program that has replaced one: all its calls are among those of the one before, so it
        has no other series.
        """
        if pid not in self.covered:
            yield SEEN_FROM_START.sample(0, processes.labels(pid))


class Sight:
    """Processes by what is seen of them. The map `covered` has those of which every call was.

    `memory` are the functions that may be left out last, None where they never are.
    """

    def __init__(self, loaded: Object) -> None:
        self._object = loaded
        self._covered: Map = loaded.maps["covered"]
        self.memory: Allocations | None = None
        self._unseen: set[int] = set()
        self._joined: dict[int, set[str]] = {}
        """The libraries of a process that may have been called before they were attached to."""
        self._partial: set[int] = set()
        """Processes with copies or waits of which the return was not seen."""
        self._awaited: set[int] = set()
        """Processes of which all calls are seen, if they made none before they had links of their own."""
        self._placed: set[int] = set()
        """Processes of which every context was seen, although they are not covered."""
        self._decided: dict[int, float] = {}
        """By process, the last time (CLOCK_MONOTONIC) at which it was decided whether all its calls are seen."""

    @property
    def unknown(self) -> set[int]:
        """Return the processes of which the memory in use is not known."""
        return self._unseen | self._awaited

    def missed(self) -> set[int]:
        """Return the processes with calls on memory for which the table of calls in flight had no room."""
        if not self._object.globals()["memory_missed"]:
            return set()
        return {pid for pid, it in self._object.maps["processes"].items() if it.missed}

    def is_partial(self, pid: int) -> bool:
        """Return whether some copies or waits of a process are not counted."""
        return pid in self._partial

    def sees_contexts(self, pid: int) -> bool:
        """Return whether every context of a process was seen."""
        return pid in self._placed or self._covered.get(pid) is not None

    def decide(self, pid: int) -> None:
        """Take note that it is decided whether all calls of a process are seen."""
        self._decided[pid] = time.monotonic()

    def decided_at(self, pid: int) -> float | None:
        """Return the last time (CLOCK_MONOTONIC) of that."""
        return self._decided.get(pid)

    def decided(self) -> Decided:
        """Return the processes of which it is decided."""
        decided = set(self._decided)  # before: what is decided is in `covered`
        return Decided(decided, {pid for pid, _ in self._covered.items()})  # after: one that is replaced is not in both

    def start(self, pid: int, library: Library, from_first_call: bool, passed_by: Callable[[int], set[str]]) -> None:
        """Take note whether all calls of a process are seen: of each library, but those that only pass calls on."""
        if not from_first_call:
            self._joined.setdefault(pid, set()).add(library.path)
        if pid in self._unseen or self._joined.get(pid, set()) - passed_by(pid):
            self._covered.take([pid])
        elif from_first_call:
            self._cover(pid, library)

    def _cover(self, pid: int, library: Library) -> None:
        if not self._is_detached(library):
            self._covered.set(pid, 1)
        if self._is_detached(library):  # perhaps since just now
            self._covered.take([pid])
            self._placed.add(pid)
            self._awaited.add(pid)
            if self.memory and self.memory.has_links(pid):
                self.meet(pid)

    def _is_detached(self, library: Library) -> bool:
        return self.memory is not None and self.memory.is_detached(library)

    def meet(self, pid: int) -> None:
        """Decide whether all calls of a process with new links of its own are seen: none may have come before."""
        if pid not in self._awaited:
            return
        if pid in self._object.maps["calls"].sums("tgid"):
            self._unseen.add(pid)
        elif pid not in self._unseen:
            self._covered.set(pid, 1)
        self._awaited.discard(pid)

    def lose(self, pids: Collection[int]) -> None:
        """Mark processes with calls that are not seen for a while: their allocated memory is unknown from then on."""
        self._covered.take(pids)
        self._unseen.update(pids)

    def lose_counted(self, pids: Collection[int]) -> None:
        """Do the same for those with counts."""
        self.lose([pid for pid in pids if self._object.maps["processes"].get(pid) is not None])

    def lose_allocations(self, pids: Collection[int]) -> None:
        """Do the same as allocations and frees are not seen any more: nothing is known of any address either."""
        self._placed.update(pid for pid in pids if self._covered.get(pid) is not None)
        self.lose(pids)
        for pid in pids:
            self._object.programs["lose_allocations"].run(struct.pack("=Q", pid))

    def forget(self, pids: Collection[int]) -> None:
        """Forget processes that have ended, or run another program."""
        for known in (self._unseen, self._partial, self._awaited, self._placed):
            known.difference_update(pids)
        for pid in pids:
            self._joined.pop(pid, None)
            self._decided.pop(pid, None)
        if self.memory:
            self.memory.forget(pids)

    def miss_returns(self, group: str, pids: Collection[int]) -> None:
        """Mark processes with calls of which the return is not seen."""
        log.info("calls did not return before their return probes were removed", extra={"pids": sorted(pids)})
        if group == MEMORY:
            self.lose(pids)
        else:
            self._partial.update(pids)


class Waiting:
    """Calls that wait for return probes, as exporter.bpf.hook_group has them."""

    def __init__(self, loaded: Object, sight: Sight) -> None:
        self.of = CudaStandingCalls(loaded.maps).of
        self.incomplete = sight.miss_returns
