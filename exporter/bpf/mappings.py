"""The executable file mappings of processes: by a BPF iterator that sees real inodes, else from /proc."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

from exporter.bpf import iterators, object_path
from exporter.bpf.libbpf import Object
from exporter.bpf.native import BpfError
from exporter.bpf.stale import stale
from exporter.process_memory import living

_LISTING = "list executable mappings by a BPF iterator"
ONE_BY_ONE = 64
_TRIES = 3


class MappedFile(NamedTuple):
    """A file and its content, distinct from every other: also from one replaced in place or given an old number."""

    inode: int
    """The inode's address in the kernel (numbers repeat across btrfs subvolumes); 0 where it cannot be known."""
    number: int
    size: int
    modified: int
    """Nanoseconds since 1970."""
    device: int
    """As the kernel numbers it: major << 20 | minor."""
    generation: int

    @property
    def identity(self) -> tuple[int, int]:
        """Device as st_dev shows it, and inode number."""
        return os.makedev(self.device >> 20, self.device & 0xFFFFF), self.number

    @property
    def unchanging(self) -> tuple[int, ...]:
        """Return what stays the same when the content changes."""
        return self.inode, self.number, self.device, self.generation


class Mapping(NamedTuple):
    """One executable mapping of a regular file: struct mapping of bpf/mappings.bpf.c."""

    image: int
    """Changes when the process runs another program."""
    started: int
    """Start time of the process, CLOCK_MONOTONIC in nanoseconds."""
    start: int
    end: int
    inode: int
    number: int
    size: int
    modified: int
    device: int
    generation: int
    pid: int
    unused: int

    @property
    def file(self) -> MappedFile:
        return MappedFile._make(self[4:10])


class Lister(Protocol):
    """Lists mappings. What vanishes meanwhile, or may not be read, is left out."""

    name: str
    one_process: bool
    """True if the lister can list a single process; otherwise all processes are listed each time."""

    def everything(self) -> list[Mapping]: ...

    def of(self, pids: Collection[int]) -> list[Mapping]: ...

    def close(self) -> None: ...


class IteratorLister:
    """Lists by the BPF iterator: real inodes below overlays. Needs a kernel with BTF (BpfError elsewhere)."""

    name = "iterator"

    def __init__(self, path: Path | None = None) -> None:
        self._object = Object(path or object_path("mappings"))
        try:
            layout = self._object.types.struct("mapping")._fields_
            if tuple(name for name, _ in layout) != Mapping._fields:
                raise stale("mappings.bpf.o", "such struct mapping")
            self._row = struct.Struct("=" + "".join("Q" if ctypes.sizeof(kind) == 8 else "I" for _, kind in layout))
            self._link = self.create_link()
        except BaseException:
            self._object.close()
            raise
        self.one_process = True  # on Linux 6.1 or newer

    def everything(self) -> list[Mapping]:
        """BpfError when the kernel fails to list."""
        return self._rows(self._link)

    def of(self, pids: Collection[int]) -> list[Mapping]:
        if not self.one_process or len(pids) > ONE_BY_ONE:
            return [mapping for mapping in self.everything() if mapping.pid in pids]
        found = []
        for pid in pids:
            try:
                link = self.create_link(pid)
            except BpfError as error:
                if error.errno == errno.ESRCH:
                    continue
                self.one_process = False
                return self.of(pids)
            try:
                found += [mapping for mapping in self._rows(link) if mapping.pid == pid]
            finally:
                os.close(link)
        return found

    def close(self) -> None:
        os.close(self._link)
        self._object.close()

    def create_link(self, pid: int = 0) -> int:
        return iterators.link(self._object.programs["mappings"].fd, _LISTING, pid=pid)

    def _rows(self, link: int) -> list[Mapping]:
        return [Mapping._make(fields) for fields in self._row.iter_unpack(iterators.read(link, _LISTING))]


class ProcLister:
    """From /proc/PID/maps, for kernels without BTF.

    An overlay hides its real inode; there a file is known by number, size and modification time, which all overlays of
    one layer share.
    """

    name = "proc"
    one_process = True

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._tick = 10**9 // os.sysconf("SC_CLK_TCK")
        self.denied = 0

    def everything(self) -> list[Mapping]:
        return self.of([int(entry.name) for entry in self._proc.iterdir() if entry.name.isdigit()])

    def of(self, pids: Iterable[int]) -> list[Mapping]:
        found: list[Mapping] = []
        for pid in pids:
            try:
                found += self._mappings(pid)
            except PermissionError:
                self.denied += 1
            except (OSError, ValueError, IndexError):
                continue  # it ended
        return found

    def close(self) -> None:
        """Nothing is held open."""

    def _mappings(self, pid: int) -> list[Mapping]:
        started = self._started(self._proc / str(pid))
        for _ in range(_TRIES):
            folder = living(self._proc, pid)
            image = self._image(folder)
            overlays = self._overlays(folder)
            lines = (folder / "maps").read_bytes().splitlines()
            found = [self._mapping(folder, line, overlays) for line in lines]
            if self._image(folder) == image:
                return [Mapping._make((image, started, *mapping, pid, 0)) for mapping in found if mapping]
        return []

    def _image(self, folder: Path) -> int:
        """Return what each exec draws at random: where code, stack and heap start."""
        fields = _stat(folder)
        return hash((fields[23], fields[25], fields[44]))

    def _started(self, folder: Path) -> int:
        """Return when the process started, CLOCK_MONOTONIC in nanoseconds."""
        suspended = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
        return int(_stat(folder)[19]) * self._tick - suspended

    def _mapping(self, folder: Path, line: bytes, overlays: frozenset[bytes]) -> tuple[int, ...] | None:
        """Range and file of a line such as `7f0-7f1 r-xp 0000 fe:00 42 /a/name`; None if it is no executable file."""
        place, allowed, _, device, number, *_ = line.split(None, 5)
        if allowed[2:3] != b"x" or number == b"0":
            return None
        start, end = (int(part, 16) for part in place.split(b"-"))
        try:
            file = (folder / "map_files" / f"{start:x}-{end:x}").stat()
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(file.st_mode):
            return None
        major, minor = (int(part, 16) for part in device.split(b":"))
        shown = 0 if device in overlays else major << 20 | minor
        return start, end, 0, int(number), file.st_size, file.st_mtime_ns, shown, 0

    def _overlays(self, folder: Path) -> frozenset[bytes]:
        """Device numbers of overlay file systems the process sees, as its maps write them."""
        found = set()
        for line in (folder / "mountinfo").read_bytes().splitlines():
            fields, _, kind = line.partition(b" - ")
            if kind.startswith(b"overlay "):
                major, minor = (int(part) for part in fields.split()[2].split(b":"))
                found.add(b"%02x:%02x" % (major, minor))
        return frozenset(found)


def _stat(folder: Path) -> list[bytes]:
    """Return the fields of a process's stat from field 3 on (proc_pid_stat(5))."""
    return (folder / "stat").read_bytes().rpartition(b")")[2].split()
