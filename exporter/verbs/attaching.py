"""Attaches to RDMA providers: which functions to probe is found when the first process uses one.

Targets finds libibverbs by its symbols and providers by what they import of it; what a provider's functions are depends
on the libibverbs that its process has mapped too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

from exporter.bpf.apart import WORKER
from exporter.bpf.btf import Btf
from exporter.bpf.elf import Elf, ElfError
from exporter.bpf.hooks import Hook
from exporter.bpf.libbpf import Link
from exporter.bpf.library import Library
from exporter.bpf.probe import Probes
from exporter.bpf.safety import Protection
from exporter.bpf.uprobe import close_all
from exporter.verbs import control, doctor
from exporter.verbs.providers import Found, ProviderNames, find
from exporter.verbs.tables import SET_OPS
from exporter.verbs.windows import Windows

_VERSIONS = 8
"""Of one function in a provider that are probed at most."""
_ATTEMPTS = 10
_MOST_LINES = 1 << 16
_MOST_USERS = 1 << 14

log = logging.getLogger(__name__)


def table(types: Btf) -> dict[str, list[Hook]]:
    """What runs at which function, poll_cq apart: libibverbs' own, and every version of a provider's post_send
    and post_recv."""
    post = [Hook("post_send_enter"), Hook("post_send_return", returns=True)]
    receive = [Hook("post_recv_enter"), Hook("post_recv_return", returns=True)]
    return control.hooks(types) | dict.fromkeys(names("post_send"), post) | dict.fromkeys(names("post_recv"), receive)


def names(op: str) -> list[str]:
    """What the versions of a provider's function are called here."""
    return [op, *(f"{op}#{number}" for number in range(2, _VERSIONS + 1))]


@dataclass
class _Provider:
    library: Library
    derived: Library | None = None
    """The same file with the functions found in it."""
    link: Link | None = None
    said: str = ""
    attempts: int = 0
    users: dict[int, Protection | None] = field(default_factory=dict)


class Attaching:
    """An interest for Targets, in front of the probes and the windows. `protection` as of Probes."""

    def __init__(self, probes: Probes, windows: Windows, protection: Callable[[int], Protection | None], proc: Path):
        self.symbols: Collection[str] = frozenset(control.FUNCTIONS)
        self.imports: Collection[str] = frozenset({SET_OPS})
        self._probes, self._windows, self._protection, self._proc = probes, windows, protection, proc
        self._lock = threading.RLock()
        self._providers: dict[int, _Provider] = {}

    def attach(self, library: Library) -> Link:
        links = []
        if SET_OPS in library.imports:
            with self._lock:
                self._providers[id(library)] = _Provider(library)
            links.append(Link(lambda: self._release(library)))
        if library.functions:
            links.append(self._probes.attach(library))
        return Link(partial(close_all, links))

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        with self._lock:
            provider = self._providers.get(id(library))
            if provider and len(provider.users) < _MOST_USERS:
                provider.users[pid] = self._protection(pid)
                self._try(provider, pid)
                if provider.derived:
                    self._probes.process_started(pid, provider.derived, from_first_call)
                    self._windows.review(provider.derived)
        if library.functions:
            self._probes.process_started(pid, library, from_first_call)

    def process_ended(self, pid: int) -> None:
        self._forget(pid)
        self._probes.process_ended(pid)

    def process_replaced(self, pid: int) -> None:
        self._forget(pid)
        self._probes.process_replaced(pid)

    def retry(self) -> None:
        """Looks again at providers whose process had not mapped libibverbs yet."""
        with self._lock:
            for provider in self._providers.values():
                if provider.derived or provider.attempts >= _ATTEMPTS:
                    continue
                for pid in [*provider.users][:1]:
                    self._try(provider, pid)
                if derived := provider.derived:
                    for pid in provider.users:
                        self._probes.process_started(pid, derived, from_first_call=False)

    def users(self, derived: Library) -> list[Protection]:
        """What the processes that use a provider run under; an unknown one counts for nothing."""
        found = [it for it in list(self._providers.values()) if it.derived is derived]  # no lock: windows hold theirs
        return [protected for it in found for protected in list(it.users.values()) if protected]

    def says(self) -> Iterator[str]:
        """What of providers is not found, and why; for people to read."""
        with self._lock:
            yield from [provider.said for provider in self._providers.values() if provider.said]

    def _try(self, provider: _Provider, pid: int) -> None:
        if provider.derived:
            return
        provider.attempts += 1
        found = self._find(provider.library, pid)
        whole, said, do = doctor.says(provider.library.path, found)
        provider.said = "" if whole else f"{said}; {do}"
        functions = {
            name: replace(function, name=name)
            for op in ("post_send", "post_recv", "poll_cq")
            for name, function in zip(names(op), found.functions.get(op, ()), strict=False)
        }
        if "post_send" not in functions:
            return
        provider.derived = replace(provider.library, functions=functions, imports=frozenset())
        self._windows.add(provider.derived, [name for name in functions if name in names("poll_cq")])
        provider.link = self._probes.attach(provider.derived)
        log.info("probing an RDMA provider", extra={"library": provider.library.path})

    def _find(self, library: Library, pid: int) -> Found:
        provided = Path(library.path).name
        try:
            with Elf.open(library.open_path) as provider:
                for path, verbs_path in self._verbs(pid):
                    with Elf.open(path) as verbs:
                        names = ProviderNames(provided, Path(verbs_path).name)
                        return cast(Found, WORKER.call(find, provider, verbs, names))
                return cast(Found, WORKER.call(find, provider, None, ProviderNames(provided)))
        except (OSError, ElfError) as error:
            return Found({}, {"post_send": f"The file cannot be read: {error}."})

    def _verbs(self, pid: int) -> Iterator[tuple[Path, str]]:
        """The libibverbs that a process has mapped: a path for opening, and what it is called."""
        try:
            with (self._proc / str(pid) / "maps").open(errors="replace") as lines:
                for _, line in zip(range(_MOST_LINES), lines, strict=False):
                    parts = line.split(maxsplit=5)
                    if len(parts) == 6 and Path(parts[5].strip()).name.startswith("libibverbs.so"):
                        start, _, end = parts[0].partition("-")
                        path = self._proc / str(pid) / "map_files" / f"{int(start, 16):x}-{int(end, 16):x}"
                        yield path, parts[5].strip()
        except OSError:
            return

    def _forget(self, pid: int) -> None:
        with self._lock:
            for provider in self._providers.values():
                known = pid in provider.users
                provider.users.pop(pid, None)
                if known and provider.derived:
                    self._windows.review(provider.derived)

    def _release(self, library: Library) -> None:
        with self._lock:
            provider = self._providers.pop(id(library), None)
        if provider and provider.derived and provider.link:
            self._windows.remove(provider.derived)
            provider.link.close()
