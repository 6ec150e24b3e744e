"""Probes on OpenSSL in followed processes: what is read and written before it is encrypted (bpf/serving/tls.bpf.h)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from exporter.bpf import process_links, uprobe
from exporter.bpf.find_places import Places, find_places
from exporter.bpf.libbpf import BpfError, Link, Program
from exporter.bpf.library import Library
from exporter.bpf.naming import names
from exporter.bpf.probe_metrics import ATTACHED
from exporter.bpf.safety import Protection, protection
from exporter.bpf.uprobe import Point
from exporter.model import Sample

PROGRAMS = ("on_tls_call", "on_tls_read", "on_tls_written", "on_tls_shutdown", "on_tls_end")
"""The programs of the object that are loaded only for this."""
_READS, _WRITES, _SHUTDOWN = ("SSL_read", "SSL_read_ex"), ("SSL_write", "SSL_write_ex"), ("SSL_shutdown",)
_CALLS = (*_READS, *_WRITES, *_SHUTDOWN)
_ENDS = ("SSL_free", "SSL_clear")
_HOOKS = (
    ("on_tls_read", _READS, True),
    ("on_tls_written", _WRITES, True),
    ("on_tls_shutdown", _SHUTDOWN, True),
    ("on_tls_call", _CALLS, False),
    ("on_tls_end", _ENDS, False),
)
"""Programs, the functions that they run at, and whether at their returns, which come first: so each call that is seen
has its return.
"""
_REPORTS_SIZE = "_ex"
"""The end of the names of functions that write the number of bytes to their fourth argument: their cookie is 1."""
MOST = process_links.MOST
"""Processes of one library with links of their own; beyond these its functions are probed in every process."""

ALL = 0
"""Stands for every process that maps a library."""

log = logging.getLogger(__name__)


class Allowed(Protocol):
    """Signature of exporter.bpf.trial.Trial.returns_allowed."""

    def __call__(self, users: Collection[Protection]) -> tuple[bool, str]: ...


@dataclass
class _Used:
    """A library, the processes that map it, and the links: of one process by its id, of every process by ALL."""

    library: Library
    places: Places | None = None
    users: dict[int, Protection | None] = field(default_factory=dict)
    links: dict[int, list[Link]] = field(default_factory=dict)
    problem: str = ""
    failed: bool = False


class TlsProbes:
    """An interest in OpenSSL (exporter.bpf.library.Interest): probed only while a followed process maps it.

    Each such process has links of its own where the kernel can probe one process; else all that map the file are
    probed meanwhile. `follows` returns whether a process is followed. Safe from any thread.
    """

    symbols: Collection[str] = (*_CALLS, *_ENDS)

    def __init__(
        self,
        programs: Mapping[str, Program],
        follows: Callable[[int], bool],
        allowed: Allowed,
        proc: Path = Path("/proc"),
        each: bool | None = None,
    ) -> None:
        self._programs, self._follows, self._allowed, self._proc = programs, follows, allowed, proc
        self.each = process_links.supported() if each is None else each
        self._lock = threading.Lock()
        self.used: dict[int, _Used] = {}  # by id() of the library: its (dev, ino) may be used again

    def attach(self, library: Library) -> Link:
        """Take note of a library. Close the result to detach."""
        with self._lock:
            self.used[id(library)] = _Used(library)
        return Link(lambda: self._release(library))

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        with self._lock:
            if used := self.used.get(id(library)):
                used.users[pid] = protection(self._proc, pid)
                self._review(used)

    def processes_ended(self, pids: Collection[int]) -> None:
        with self._lock:
            for used in self.used.values():
                if [pid for pid in pids if used.users.pop(pid, self) is not self]:
                    self._review(used)

    def processes_replaced(self, pids: Collection[int]) -> Collection[int]:
        self.processes_ended(pids)
        return ()

    def followed(self) -> None:
        """Probe the processes that are followed since the last look."""
        with self._lock:
            for used in self.used.values():
                self._review(used)

    def collect(self) -> Iterator[Sample]:
        """Yield whether each function of each library is probed in all processes that are followed.

        Files of one name, as two containers have them, are one series: the worse of them.
        """
        attached: dict[tuple[str, str, str], bool] = {}
        with self._lock:
            called = names(used.library for used in self.used.values())
            for used in self.used.values():
                for symbol, place in used.places.found.items() if used.places else ():
                    key = symbol, called[id(used.library)], place.kind
                    attached[key] = attached.get(key, True) and not used.problem
        for (symbol, library, placement), value in attached.items():
            labels = {"probe": "serving", "symbol": symbol, "library": library, "placement": placement}
            yield ATTACHED.sample(int(value), labels)

    def problems(self) -> Iterator[str]:
        """Yield what is not probed, and why."""
        with self._lock:
            for used in self.used.values():
                if used.problem:
                    yield f"OpenSSL in {used.library.path}: {used.problem}"

    def _release(self, library: Library) -> None:
        with self._lock:
            used = self.used.pop(id(library), None)
            if used:
                for key in [*used.links]:
                    self._detach(used, key)

    def _review(self, used: _Used) -> None:
        """Attach to the processes that are followed, or in every one, and detach from others."""
        wanted = {pid for pid, protected in used.users.items() if protected and self._follows(pid)}
        used.problem = ""
        if not self.each or len(wanted) > MOST:
            users = [protected for protected in used.users.values() if protected]
            wanted = {ALL} if wanted and self._may_return(used, users) else set()
        for key in wanted - used.links.keys():
            if key == ALL or self._may_return(used, [it for it in [used.users[key]] if it]):
                self._attach(used, key)
        for key in used.links.keys() - wanted:
            self._detach(used, key)

    def _may_return(self, used: _Used, users: Collection[Protection]) -> bool:
        allowed, reason = self._allowed(users)
        if not allowed:
            used.problem = f"no return probes: {reason}"
        return allowed

    def _attach(self, used: _Used, key: int) -> None:
        """Attach to one process, or to ALL."""
        if used.places is None:
            used.places = find_places(used.library, [*self.symbols])
        links: list[Link] = []
        try:
            for program, symbols, returns in _HOOKS:
                points = [
                    Point(place.offset, int(symbol.endswith(_REPORTS_SIZE)))
                    for symbol, place in used.places.found.items()
                    if symbol in symbols
                ]
                if points:
                    links.append(self._attach_program(self._programs[program], used.library, points, key, returns))
        except BpfError as error:
            used.problem = str(error)
            if not used.failed:
                log.warning("TLS of a server is not followed: %s", error, extra={"library": used.library.path})
            used.failed = True
            _close(links)
            return
        used.links[key] = links

    @staticmethod
    def _attach_program(program: Program, library: Library, points: list[Point], key: int, returns: bool) -> Link:
        if key == ALL:
            return uprobe.attach(program, library.open_path, points, returns)
        return uprobe.attach_to(program, library.open_path, points, key, returns)

    @staticmethod
    def _detach(used: _Used, key: int) -> None:
        _close(used.links.pop(key))


def _close(links: list[Link]) -> None:
    """Close links, calls before returns: none is left waiting for its return."""
    for link in reversed(links):
        link.close()
