"""A mapped file that holds wanted functions, opened so that it stays usable whatever happens to its name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

from exporter import process_memory
from exporter.background.patience import Unanswered
from exporter.bpf import usdt
from exporter.bpf.dynamic import soname
from exporter.bpf.elf import Elf, Function
from exporter.bpf.file_worker import WORKER, FileArgument, FileWorker, OpenFile
from exporter.bpf.mappings import Mapping as MappedFile
from exporter.bpf.trial_program import MACHINES
from exporter.bpf.usdt import Site

GPU_SYMBOLS = ("cuInit", "hipInit")
"""Functions of the CUDA driver's library and of HIP's, and of no other: a process that maps one of them uses a GPU."""
_DELETED = " (deleted)"


class Vanished(Exception):
    """The mapping is not there any more, or not to be seen now, or another file is mapped there by now."""


class Wait(Exception):
    """The file is to be read later, in so many seconds: its user's files have taken their share of the time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(frozen=True)
class Library:
    """A shared library or program that defines or imports at least one wanted function."""

    identity: tuple[int, int]
    """st_dev and st_ino of the real file, below any overlay."""
    path: str
    """As its first user sees it, in that process's mount namespace; cleaned of what is not UTF-8. Not for opening."""
    open_path: str
    """For opening and attaching; lasts as long as the library is attached to."""
    machine: int
    build_id: str
    functions: Mapping[str, Function]
    """The functions that any interest wants, by name."""
    imports: frozenset[str] = frozenset()
    """Names of functions that it imports, of those that any interest wants."""
    usdt: Mapping[str, tuple[Site, ...]] = field(default_factory=dict)
    """The sites of probes it was built with, by `provider:name`, of those that any interest wants."""
    owner: int = -1
    """The user id of the file's owner; negative where that is not known."""
    soname: str = ""
    """The name that the file gives itself (DT_SONAME); empty where it has none."""
    found_in: int = 0
    """The process in which it was found first."""

    @cached_property
    def digest(self) -> bytes:
        """A digest of what was found in the file, of which the build id is only what the file claims."""
        found = sorted((it.name, it.offset, it.size) for it in self.functions.values())
        parts = (self.machine, self.build_id, found, sorted(self.imports), sorted(self.usdt.items(), key=str))
        return hashlib.blake2b(repr(parts).encode(errors="replace"), digest_size=16).digest()


class Closeable(Protocol):
    def close(self) -> None: ...


class Interest(Protocol):
    """An observer of certain functions. Called from one thread; exceptions of its methods are logged, no more."""

    @property
    def symbols(self) -> Collection[str]:
        """The function names; a file that defines any of them is a library of interest. Read once, at start."""
        ...

    def attach(self, library: Library) -> Closeable:
        """Starts observing a library, in whichever processes map it; called once for each real file."""
        ...

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        """A process uses an attached library. `from_first_call`: it was mapped after attaching was complete."""
        ...

    def processes_ended(self, pids: Collection[int]) -> None:
        """The last threads of processes are gone; all ends that were noticed together come together.

        They used a library, or may have for too short a time to be looked at.
        """
        ...

    def processes_replaced(self, pids: Collection[int]) -> Collection[int]:
        """Other programs run under these pids (exec). `process_started` follows if they use a library too.

        Returns the pids with calls since `process_started`, or with calls but without `process_started`. An exec is
        noticed late, so that the last of these calls may be calls of the program that runs now.
        """
        ...


@runtime_checkable
class ImportInterest(Interest, Protocol):
    """An interest in the callers of functions too."""

    @property
    def imports(self) -> Collection[str]:
        """Function names; a file that leaves any of them to others to define is of interest. Read once, at start."""
        ...


@runtime_checkable
class KeepingInterest(Interest, Protocol):
    """An interest that keeps what processes hold, which is not known any more when their calls are not observed."""

    def library_given_up(self, library: Library) -> None:
        """A library is about to be detached from although processes use it."""
        ...


@runtime_checkable
class UsdtInterest(Interest, Protocol):
    """An interest in probes that files were built with too."""

    @property
    def usdt(self) -> Collection[str]:
        """Probes as `provider:name`; a file that has any of them is of interest. Read once, at start."""
        ...


def usdt_of(interest: Interest) -> Collection[str]:
    """The probes built into files that an interest wants."""
    return interest.usdt if isinstance(interest, UsdtInterest) else ()


def imports_of(interest: Interest) -> Collection[str]:
    """The functions of which an interest wants the callers."""
    return interest.imports if isinstance(interest, ImportInterest) else ()


@dataclass(frozen=True, slots=True)
class Contents:
    """Wanted contents of a file; the fields are those of Library."""

    machine: int
    build_id: str
    functions: Mapping[str, Function]
    imports: frozenset[str]
    usdt: Mapping[str, tuple[Site, ...]]
    soname: str


@dataclass(frozen=True, slots=True)
class Examined:
    """A library, held by a descriptor that is to be closed."""

    library: Library
    held: OpenFile


def file_of(library: Library) -> FileArgument:
    """A library as an argument of a call in the process that reads files."""
    return FileArgument(library.open_path, device=library.identity[0])


def examine(
    proc: Path,
    mapping: MappedFile,
    wanted: Collection[str],
    imported: Collection[str] = (),
    traced: Collection[str] = (),
    within: float | None = None,
    worker: FileWorker = WORKER,
) -> Examined | None:
    """The library behind a mapping.

    None if it neither defines any of the wanted functions nor imports any of the others nor has any probe of `traced`.
    Raises Vanished, OSError when it may not be read, ElfError when it is malformed, and TakesLonger when the search
    takes more than `within` seconds.
    """
    link = process_memory.living(proc, mapping.pid) / "map_files" / f"{mapping.start:x}-{mapping.end:x}"
    identity = mapping.file.identity
    # Device and number may be an overlay's; size and time are the real file's.
    file = FileArgument(str(link), mapping.file.size, mapping.file.modified, identity[0])
    try:
        shown = os.fsencode(process_memory.patiently(proc, mapping.pid, lambda _: link.readlink()))
        found, held = worker.call_and_hold(search, file, wanted, imported, traced, within=within)
    except (FileNotFoundError, ProcessLookupError, Unanswered) as error:
        raise Vanished from error
    if found is None:
        os.close(held.descriptor)
        return None
    path = shown.decode(errors="replace").removesuffix(_DELETED)
    there = f"/proc/{os.getpid()}/fd/{held.descriptor}"
    contents = found.machine, found.build_id, found.functions, found.imports, found.usdt
    return Examined(Library(identity, path, there, *contents, held.owner, found.soname, mapping.pid), held)


def search(elf: Elf, wanted: list[str], imported: list[str], traced: list[str]) -> Contents | None:
    """Return what of these names a file defines, imports, or has probes of; None if nothing at all.

    None too where the file is of another architecture, as an emulator (qemu-user) maps them: this machine's breakpoint
    would be wrong code there.
    """
    if elf.machine != MACHINES.get(os.uname().machine, elf.machine):
        return None
    functions, imports, probes = elf.functions(wanted), elf.imports(imported), usdt.find(elf, traced)
    if not (functions or imports or probes):
        return None
    return Contents(elf.machine, elf.build_id, functions, imports, probes, soname(elf))
