"""Finds the functions of providers in a thread of its own, one file after the other.

A process that uses RDMA maps every provider that is installed. Providers of present devices are first: on a slow
machine a program may have ended before the last file is read. Each user has a share of the time, and files beyond the
share wait.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from exporter import process_memory
from exporter.bpf.elf import Elf, ElfError
from exporter.bpf.file_worker import WORKER, FileArgument, TooLong
from exporter.bpf.library import Library, file_of
from exporter.bpf.shares import Shares, User
from exporter.bpf.trust import may_name
from exporter.verbs.code.live import are_one
from exporter.verbs.code.providers import ProviderFunctions, ProviderNames, find, may_describe

MAX_KNOWN = 256
_MOST_BYTES = 1 << 24
"""Size of a file that is recognised when another process uses it."""
_MAPS_BYTES = 1 << 23
"""Of /proc/PID/maps, some 65,000 lines."""
_MOST_FILES = 64
"""Mapped libraries of a process that are compared with the provider."""
WAIT_SECONDS = 1.0
_PROVIDER = re.compile(r"lib([a-z0-9_]+?)(?:-rdmav\d+)?\.so")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """A library to search, and the process that uses it."""

    library: Library
    pid: int
    user: User


class Analysis:
    """The thread that searches, and its queue. `done` receives every result, in this thread.

    `shares` has the time of each user.
    """

    def __init__(
        self, proc: Path, sys: Path, shares: Shares, done: Callable[[Library, ProviderFunctions], None]
    ) -> None:
        self._proc, self._sys, self._shares, self._done = proc, sys, shares, done
        self._changing = threading.Condition()
        self._requests: dict[int, Request] = {}
        self.running = False
        self._known: dict[tuple[str, ...], ProviderFunctions] = {}

    def want(self, library: Library, pid: int) -> None:
        """Request the functions of a library, together with the libibverbs of a process that uses the library."""
        user = self._shares.user(pid)
        with self._changing:
            self._requests[id(library)] = Request(library, pid, user)
            self._changing.notify()
            if not self.running:
                self.running = True
                threading.Thread(target=self._run, name="verbs analysis", daemon=True).start()

    def forget(self, library: Library) -> None:
        """Drop the request for a library that nobody uses any more."""
        with self._changing:
            self._requests.pop(id(library), None)
            self._changing.notify()

    def _run(self) -> None:
        while request := self._next():
            try:
                with self._shares.charge(request.user):
                    found = self._find(request)
                self._done(request.library, found)
            except Exception:
                log.exception("the search for functions in %s failed", request.library.path)

    def _next(self) -> Request | None:
        """Return the next request: of present devices first, of these the one of the user with most time left.

        Waits while no user has time left. Returns None, and the thread ends, when there are no more requests.
        """
        present = devices(self._sys)
        with self._changing:
            while self._requests:
                left = {key: self._shares.left(it.user) for key, it in self._requests.items()}
                ready = [key for key in self._requests if left[key] > 0]
                if ready:
                    order = {key: (not serves(self._requests[key].library.path, present), -left[key]) for key in ready}
                    return self._requests.pop(min(ready, key=order.__getitem__))
                self._changing.wait(WAIT_SECONDS)
            self.running = False
            return None

    def _find(self, request: Request) -> ProviderFunctions:
        provider = file_of(request.library)
        verbs, names = self.seen(request, provider)
        try:
            contents: str = WORKER.call(digest, provider, verbs)
            key = contents, names.provider, names.verbs
            if key in self._known:
                return self._known[key]
            found = self._read(provider, verbs, names)
            if contents:
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                self._known[key] = found
            return found
        except (OSError, ElfError) as error:
            return ProviderFunctions({}, {"post_send": f"The file cannot be read: {error}."})

    def seen(self, request: Request, provider: FileArgument) -> tuple[FileArgument | None, ProviderNames]:
        """Return the libibverbs of a process, and the names that it and the provider have there.

        Nothing is believed of a process that may have mounted any file at any path.
        """
        if not may_name(self._proc, request.pid, request.library.owner):
            return None, ProviderNames()
        device, name = request.library.identity[0], ""
        wanted = Path(request.library.path).name
        mapped = sorted(_mapped(self._proc, request.pid), key=lambda file: file[1] != wanted)
        for path, shown in mapped[:_MOST_FILES]:
            with suppress(OSError, ElfError):
                if WORKER.call(is_copy, provider, FileArgument(str(path), device=device)):
                    name = shown
                    break
        for path, shown in mapped:
            if shown.startswith("libibverbs.so"):
                return FileArgument(str(path), device=device), ProviderNames(name, shown)
        return None, ProviderNames(name)

    def _read(self, provider: FileArgument, verbs: FileArgument | None, names: ProviderNames) -> ProviderFunctions:
        try:
            found: ProviderFunctions = WORKER.call(find, provider, verbs, names)
        except TooLong as error:  # a second attempt would take as long
            return ProviderFunctions({}, {"post_send": f"The file is not read: {error}."})
        return found


def digest(provider: Elf, verbs: Elf | None) -> str:
    """Return a hash of the contents of the files that decide which functions are found, empty for large ones.

    A build id would not do: any file may claim any.
    """
    files = [provider, verbs] if verbs and may_describe(verbs, provider) else [provider]
    if any(os.fstat(it.fileno()).st_size > _MOST_BYTES for it in files):
        return ""
    total = hashlib.blake2b(digest_size=16)
    for file in files:
        total.update(hashlib.blake2b(os.pread(file.fileno(), _MOST_BYTES, 0)).digest())
    return total.hexdigest()


def is_copy(provider: Elf, other: Elf) -> bool:
    """Return whether two files are the same one, or copies of it of one owner."""
    return are_one(provider, other) and os.fstat(provider.fileno()).st_uid == os.fstat(other.fileno()).st_uid


def devices(sys: Path) -> frozenset[str]:
    """Return the names of RDMA devices, and of the drivers of their hardware: rxe0, mlx5_core, bnxt_en."""
    found = set()
    with suppress(OSError):
        for device in (sys / "class/infiniband").iterdir():
            found.add(device.name)
            with suppress(OSError):
                found.add((device / "device/driver").readlink().name)
    return frozenset(found)


def serves(library: str, present: frozenset[str]) -> bool:
    """Return whether a provider looks like that of a device: libmlx5-rdmav34.so of mlx5_core.

    Only the order of the search depends on the result.
    """
    found = _PROVIDER.match(Path(library).name)
    return bool(found) and any(it.startswith(found[1].split("_")[0]) for it in present if found)


def _mapped(proc: Path, pid: int) -> list[tuple[Path, str]]:
    """Return the libraries of which a process has mapped code: a path for opening, and the name of the file."""
    found: dict[str, tuple[Path, str]] = {}
    folder = process_memory.living(proc, pid)
    with suppress(OSError):
        maps = process_memory.read(proc, pid, "maps", _MAPS_BYTES).decode(errors="replace")
        for line in maps.split("\n"):
            parts = line.split(maxsplit=5)
            if len(parts) == 6 and "x" in parts[1] and ".so" in (shown := parts[5].strip()):
                start, _, end = parts[0].partition("-")
                path = folder / "map_files" / f"{int(start, 16):x}-{int(end, 16):x}"
                found.setdefault(shown, (path, Path(shown).name))
    return list(found.values())
