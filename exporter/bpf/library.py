"""A mapped file that holds wanted functions, opened so that it stays usable whatever happens to its name."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from exporter.bpf import usdt
from exporter.bpf.elf import Elf, Function
from exporter.bpf.mappings import File
from exporter.bpf.mappings import Mapping as MappedFile
from exporter.bpf.usdt import Site

_DELETED = " (deleted)"


class Gone(Exception):
    """The mapping is not there any more, or another file is mapped there by now."""


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
    """Those any interest wants, by name."""
    imports: frozenset[str] = frozenset()
    """Names of functions it leaves to others to define, of those any interest asks for."""
    usdt: Mapping[str, tuple[Site, ...]] = field(default_factory=dict)
    """The sites of probes it was built with, by `provider:name`, of those any interest asks for."""


class Closeable(Protocol):
    def close(self) -> None: ...


class Interest(Protocol):
    """Someone who wants certain functions observed. Called from one thread; what it raises is logged, no more."""

    @property
    def symbols(self) -> Collection[str]:
        """The function names; a file that defines any of them is a library of interest. Read once, at start."""
        ...

    def attach(self, library: Library) -> Closeable:
        """Starts observing a library, in whichever processes map it; called once for each real file."""
        ...

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        """A process uses an attached library. `from_first_call`: it mapped it after attaching was complete."""
        ...

    def processes_ended(self, pids: Collection[int]) -> None:
        """The last threads of processes are gone; all ends that were noticed together come together.

        They used a library, or may have for too short a time to be looked at.
        """
        ...

    def processes_replaced(self, pids: Collection[int]) -> None:
        """Other programs run under these pids (exec); `process_started` follows for those that use a library too."""
        ...


@runtime_checkable
class ImportInterest(Interest, Protocol):
    """An interest in the callers of functions too."""

    @property
    def imports(self) -> Collection[str]:
        """Function names; a file that leaves any of them to others to define is of interest. Read once, at start."""
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
    """The functions whose callers an interest wants."""
    return interest.imports if isinstance(interest, ImportInterest) else ()


def examine(
    proc: Path,
    mapping: MappedFile,
    wanted: Collection[str],
    imported: Collection[str] = (),
    traced: Collection[str] = (),
) -> tuple[Library, int] | None:
    """The library behind a mapping and the descriptor that keeps it.

    None if it neither defines any of the wanted functions nor imports any of the others nor has any probe of `traced`.

    Raises Gone, OSError when it may not be read, and ElfError when it is malformed.
    """
    link = proc / str(mapping.pid) / "map_files" / f"{mapping.start:x}-{mapping.end:x}"
    try:
        shown = os.fsencode(link.readlink())
        _check(link.stat(), mapping.file)
        descriptor = os.open(link, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise Gone from error
    try:
        _check(os.fstat(descriptor), mapping.file)
        with Elf(os.dup(descriptor)) as elf:
            functions, imports, probes = elf.functions(wanted), elf.imports(imported), usdt.find(elf, traced)
            if functions or imports or probes:
                path = shown.decode(errors="replace").removesuffix(_DELETED)
                held, identity = f"/proc/self/fd/{descriptor}", mapping.file.identity
                return Library(identity, path, held, elf.machine, elf.build_id, functions, imports, probes), descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _check(found: os.stat_result, file: File) -> None:
    """Device and number may be an overlay's; size and time are the real file's."""
    if not stat.S_ISREG(found.st_mode) or (found.st_size, found.st_mtime_ns) != (file.size, file.modified):
        raise Gone
