"""Of which processes all NCCL calls are seen, and of which some were missed. The programs of bpf/nccl/ read it, since
the numbers of calls are right only without gaps.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

from exporter.bpf.libbpf import Object
from exporter.bpf.library import Library
from exporter.bpf.process_links import LINKED_MARK
from exporter.nccl.activity import in_flight

if TYPE_CHECKING:
    from exporter.bpf.maps import Map

NONE_YET, NONE_NOW, OPEN = range(3)
"""As in enum gap_state of bpf/nccl/nccl.h."""
_STATE, _WINDOW = range(2)
"""Keys of the map gap_state."""
log = logging.getLogger(__name__)


class Files(Protocol):
    """The part of exporter.nccl.left_out.LeftOut that is used here."""

    def is_bounded(self, library: object) -> bool:
        """Return whether collectives of a library may ever be left out."""

    def is_detached(self, library: object) -> bool:
        """Return whether collectives of a library are seen only in processes with links of their own."""

    def has_links(self, pid: int) -> bool:
        """Return whether a process has links of its own."""

    def forget(self, pids: Collection[int]) -> None: ...


class Sight:
    """Processes by what is seen of them. Safe from any thread.

    The map `covered` has those of which every call was seen, `gaps` an odd number for those of which collectives are
    left out now. `returns` returns whether calls are seen to return, `lost` gets a process of which calls are left out
    from now on.
    """

    def __init__(self, loaded: Object, returns: Callable[[], bool], lost: Callable[[int], None]) -> None:
        self._object, self._returns, self._lost = loaded, returns, lost
        self._covered: Map = loaded.maps["covered"]
        self._gaps: Map = loaded.maps["gaps"]
        self._state: Map = loaded.maps["gap_state"]
        self.files: Files | None = None
        self._lock = threading.Lock()
        self._rows: dict[int, int] = {}
        self._bounded: set[int] = set()
        """Processes with a library of which collectives may be left out."""
        self._unseen: set[int] = set()
        """Processes that may have made calls before they were attached to."""
        self._partial: set[int] = set()
        """Processes of which calls were left out, or were not seen to return."""
        self._awaited: set[int] = set()
        """Processes of which all calls are seen, if they made none before they had links of their own."""
        self._windows = 0

    def knows(self, pid: int) -> bool:
        """Return whether a process was taken note of."""
        return pid in self._rows

    def is_exempt(self, pid: int) -> bool:
        """Return whether collectives of a process are never left out, as its libraries pass calls on or are unknown."""
        return pid in self._rows and pid not in self._bounded

    def is_left_out(self, pid: int) -> bool:
        """Return whether collectives of a process may be left out now."""
        return self._rows.get(pid, 0) % 2 == 1

    def is_partial(self, pid: int) -> bool:
        """Return whether some calls of a process were not seen, or not all of what they did."""
        return pid in self._partial or pid in self._unseen or pid in self._awaited

    def have_called(self, pids: Collection[int]) -> Collection[int]:
        """Return which of these processes may have called a collective."""
        if not self._returns():
            return pids
        maps = self._object.maps
        made = {pid for pid, it in maps["held"].items() if it.communicators}
        return made | maps["calls"].sums("tgid", "calls").keys()

    def start(self, pid: int, library: Library, from_first_call: bool) -> None:
        """Take note of a process that uses a library: whether all its calls are seen."""
        with self._lock:
            self._put(pid, self._rows.get(pid, 0))
            if not from_first_call:
                self._unseen.add(pid)
            if self.files and self.files.is_bounded(library):
                self._bounded.add(pid)
            if self.files and self.files.is_detached(library) and not self.files.has_links(pid):
                self._begin_gap(pid)
                self._awaited.add(pid)
            elif pid not in self._unseen | self._partial:
                self._covered.set(pid, 1)
            else:
                self._covered.take([pid])

    def begin_gaps(self) -> None:
        """Have programs look for gaps, before the first one."""
        self._state.set(_STATE, OPEN)

    def end_gaps(self) -> None:
        """Take note that nothing is left out any more."""
        self._state.set(_STATE, NONE_NOW)

    def begin_window(self) -> None:
        """Have programs distinguish a window from those before."""
        self._windows = self._windows % ((1 << 32) - 1) + 1
        self._state.set(_WINDOW, self._windows)

    def lose(self, pids: Collection[int]) -> None:
        """Mark processes of which collectives may be left out from now on; before the first one is."""
        with self._lock:
            for pid in pids:
                self._begin_gap(pid)
                self._partial.add(pid)
                self._awaited.discard(pid)

    def regain(self, pids: Collection[int]) -> None:
        """Mark processes of which all calls are seen from now on."""
        with self._lock:
            for pid in pids:
                self._partial.update({pid} & self._awaited)
                self._awaited.discard(pid)
                self._end_gap(pid)

    def meet(self, pid: int) -> None:
        """Do the same for one with new links of its own: if it made no call before, all of its calls are seen."""
        with self._lock:
            if pid in self._awaited and pid not in self.have_called([pid]):
                self._awaited.discard(pid)
                if pid not in self._unseen:
                    self._covered.set(pid, 1)
            elif pid in self._awaited:
                self._awaited.discard(pid)
                self._partial.add(pid)
            self._end_gap(pid)

    def miss_returns(self, group: str, pids: Collection[int]) -> None:
        """Mark processes with calls that are not seen to return: whether these were refused is not known."""
        log.info("calls did not return before their return probes were removed", extra={"pids": sorted(pids)})
        with self._lock:
            for pid in pids:
                self._partial.add(pid)
                if not self.is_left_out(pid):
                    self._begin_gap(pid)
                    self._end_gap(pid)

    def forget(self, pids: Collection[int]) -> None:
        """Forget processes that have ended, or run another program."""
        with self._lock:
            for known in (self._unseen, self._partial, self._awaited, self._bounded):
                known.difference_update(pids)
            for pid in pids:
                if self._rows.pop(pid, None) is not None:
                    self._gaps.delete(pid)
        if self.files:
            self.files.forget(pids)

    def _begin_gap(self, pid: int) -> None:
        self._covered.take([pid])
        if not self.is_left_out(pid):
            self._put(pid, self._rows.get(pid, 0) + 1)
            self._object.programs["lose_calls"].run(struct.pack("=Q", pid))
            self._lost(pid)

    def _end_gap(self, pid: int) -> None:
        if self.is_left_out(pid):
            self._put(pid, self._rows[pid] + 1)

    def _put(self, pid: int, row: int) -> None:
        self._gaps.set(pid, row)
        self._rows[pid] = row


class Waiting:
    """Calls that wait for return probes, as exporter.bpf.hook_group has them."""

    def __init__(self, loaded: Object, sight: Sight) -> None:
        self._maps = loaded.maps
        self.incomplete = sight.miss_returns

    def of(self, library: int, linked: bool) -> Collection[int]:
        """Return the processes with such calls in the library of this number."""
        return {
            pid
            for pid, call in in_flight(self._maps)
            if call.cookie.library == library and bool(call.returning & LINKED_MARK) == linked
        }
