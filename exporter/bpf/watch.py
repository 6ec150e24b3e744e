"""The kernel's records of every process as they happen: it mapped an executable file, was forked, or ran exec.

These are the side records of perf events (perf_event_open(2), PERF_RECORD_MMAP2, PERF_RECORD_FORK and
PERF_RECORD_COMM). Unlike function probes they exist wherever uprobes do, see exec, mmap and mprotect alike, and
unlike system call tracepoints they cost other system calls nothing. Records wait in a ring per CPU, so a busy reader
loses none until that is full.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import platform
import select
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from exporter.bpf.native import BpfError, failure, require_descriptors

LEAST_RING, MOST_RING = 1 << 16, 1 << 18
"""Bytes; a process that starts takes about 1 KiB. The kernel lets a user lock half a MiB for each CPU."""
ALL_RINGS = 1 << 23
"""Bytes, where the least is not more: on large nodes the processes are spread over many CPUs."""
ONLINE = Path("/sys/devices/system/cpu/online")

_SYSCALL = {"x86_64": 298, "aarch64": 241}
_ATTRIBUTES = struct.Struct("=IIQQQQQIIQQQQIiQQ")  # struct perf_event_attr up to PERF_ATTR_SIZE_VER5
_SOFTWARE, _DUMMY, _SAMPLE_TIME = 1, 9, 1 << 2
_MMAP, _TASK, _WATERMARK, _SAMPLE_ID_ALL, _MMAP2, _USE_CLOCKID = 1 << 8, 1 << 13, 1 << 14, 1 << 18, 1 << 23, 1 << 25
_COMM, _COMM_EXEC = 1 << 9, 1 << 24
_CLOSE_ON_EXEC = 1 << 3

_HEAD, _TAIL = 128, 129  # of 64-bit words, in struct perf_event_mmap_page
_HEADER, _PLACE, _TASKS, _NAME, _WORD = (struct.Struct(fields) for fields in ("=IHH", "=IIQ", "=IIIIQ", "=I", "=Q"))
_LOST, _NAMED, _FORK, _MAPPED = 2, 3, 7, 10
_BY_EXEC = 1 << 13
"""Of a header's misc field: a name that came with exec, not with prctl or a thread's setting of its name."""
_NO_FILE = bytes(24)
_FILE_NUMBER, _FILE_NAME = struct.Struct("=8xQ"), 32
"""In the file of a record: after the device is the inode number; after generation, prot and flags the name."""

_LOCKED = (
    "raise its limit (LimitMEMLOCK, ulimit -l) or kernel.perf_event_mlock_kb, which all perf events of a user share"
)

log = logging.getLogger(__name__)


class Mapped(NamedTuple):
    """Part of a file became executable memory of a process."""

    pid: int
    address: int
    file: bytes
    """Device, inode number, generation and name as they were shown: the same file may come under several."""
    time: int
    """CLOCK_MONOTONIC, nanoseconds."""


def file_of_record(file: bytes) -> tuple[int, bytes]:
    """Return the inode number of a record's file, 0 where there is none, and the last part of its name."""
    [number] = _FILE_NUMBER.unpack_from(file) if len(file) >= _FILE_NUMBER.size else (0,)
    return number, file[_FILE_NAME:].split(b"\0", 1)[0].rpartition(b"/")[2]


class Fork(NamedTuple):
    """A process (not a thread) was started by another one."""

    time: int
    pid: int
    parent: int


class Exec(NamedTuple):
    """A process runs another program from this time on."""

    time: int
    pid: int


@dataclass(slots=True)
class Batch:
    mapped: list[Mapped] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    execs: list[Exec] = field(default_factory=list)
    lost: int = 0


class Watch:
    """The records of all CPUs. Every descriptor is in `poll`, an epoll that others may share."""

    def __init__(self, poll: select.epoll, online: Path = ONLINE) -> None:
        """BpfError when the kernel refuses; then nothing is left open."""
        self._poll, self._online = poll, online
        self._rings: dict[int, _Ring] = {}
        require_descriptors(len(cpus_of(online.read_text())), "watch the processes of each CPU")
        try:
            self.follow_cpus()
        except BaseException:
            self.close()
            raise

    def follow_cpus(self) -> None:
        """Opens rings for CPUs that came online since; `drop` takes away those that went."""
        known = {ring.cpu for ring in self._rings.values()}
        cpus = cpus_of(self._online.read_text())
        for cpu in cpus:
            if cpu not in known:
                ring = _Ring(cpu, ring_bytes(len(cpus)))
                self._rings[ring.descriptor] = ring
                self._poll.register(ring.descriptor, select.EPOLLIN)

    def drop(self, descriptor: int) -> bool:
        """Forgets the ring of a CPU that went offline (its descriptor hung up); False if it is no ring."""
        ring = self._rings.pop(descriptor, None)
        if ring is not None:
            self._poll.unregister(descriptor)
            ring.close()
        return ring is not None

    def drain(self) -> Batch:
        """Everything that happened since the last call, in order for each CPU."""
        batch = Batch()
        for ring in self._rings.values():
            parse(ring.take(), batch)
        return batch

    def close(self) -> None:
        for descriptor in list(self._rings):
            self.drop(descriptor)


def all_bytes(online: Path = ONLINE) -> int:
    """Return the memory that the rings of all CPUs lock; 0 where the CPUs are unknown."""
    try:
        cpus = len(cpus_of(online.read_text()))
    except OSError:
        return 0
    return cpus * (mmap.PAGESIZE + ring_bytes(cpus))


def ring_bytes(cpus: int) -> int:
    """Size of each CPU's ring, a power of two."""
    return 1 << max(LEAST_RING, min(MOST_RING, ALL_RINGS // max(1, cpus))).bit_length() - 1


class _Ring:
    def __init__(self, cpu: int, size: int) -> None:
        self.cpu, self._size = cpu, size
        self.descriptor = _open(cpu)
        try:
            self._memory = mmap.mmap(self.descriptor, mmap.PAGESIZE + size)
        except OSError as error:
            os.close(self.descriptor)
            attempted = f"map the event ring of CPU {cpu}"
            if error.errno == errno.EPERM:  # the kernel made its other checks when the event was opened
                raise BpfError(errno.EPERM, f"{attempted}: too much locked memory: {_LOCKED}") from error
            raise failure(error.errno or errno.EINVAL, attempted) from error
        self._words = memoryview(self._memory)[: mmap.PAGESIZE].cast("Q")
        self._data = memoryview(self._memory)[mmap.PAGESIZE :]

    def take(self) -> bytes:
        """The records that came since the last call of this."""
        tail, head = self._words[_TAIL], self._words[_HEAD]
        if head == tail:
            return b""
        os.getppid()  # between reading the head and the data: a system call orders reads on any CPU
        first, size = tail % self._size, head - tail
        data = bytes(self._data[first : first + size])
        data += bytes(self._data[: size - len(data)])
        self._words[_TAIL] = head
        return data

    def close(self) -> None:
        self._words.release()
        self._data.release()
        self._memory.close()
        os.close(self.descriptor)


def parse(data: bytes, batch: Batch) -> None:
    """Adds whole records, one after the other."""
    at, last = 0, len(data) - _HEADER.size
    header, place, word = _HEADER.unpack_from, _PLACE.unpack_from, _WORD.unpack_from
    while at <= last:
        kind, misc, length = header(data, at)
        if length < _HEADER.size:
            return
        if kind == _MAPPED:
            file = data[at + 40 : at + length - 8]  # from the device to the name; prot and flags among them do no harm
            if not file.startswith(_NO_FILE):
                pid, _, address = place(data, at + 8)
                batch.mapped.append(Mapped(pid, address, file, *word(data, at + length - 8)))
        elif kind == _FORK:
            pid, parent, _, _, time = _TASKS.unpack_from(data, at + 8)
            if pid != parent:
                batch.forks.append(Fork(time, pid, parent))
        elif kind == _NAMED and misc & _BY_EXEC:
            [pid], [time] = _NAME.unpack_from(data, at + 8), word(data, at + length - 8)
            batch.execs.append(Exec(time, pid))
        elif kind == _LOST:
            batch.lost += word(data, at + 16)[0]
        at += length


def _open(cpu: int) -> int:
    flags = _MMAP | _MMAP2 | _COMM | _COMM_EXEC | _TASK | _WATERMARK | _SAMPLE_ID_ALL | _USE_CLOCKID
    wake_at_once, monotonic = 1, 1
    unused = (0,) * 6
    attributes = _ATTRIBUTES.pack(
        _SOFTWARE, _ATTRIBUTES.size, _DUMMY, 0, _SAMPLE_TIME, 0, flags, wake_at_once, *unused, monotonic, 0, 0
    )
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    every_process, no_group = ctypes.c_long(-1), ctypes.c_long(-1)
    number = ctypes.c_long(_SYSCALL[platform.machine()])
    result: int = call(number, attributes, every_process, ctypes.c_long(cpu), no_group, ctypes.c_long(_CLOSE_ON_EXEC))
    if result < 0:
        raise failure(ctypes.get_errno(), f"watch the processes of CPU {cpu} (perf_event_open)")
    return result


def cpus_of(text: str) -> list[int]:
    """The numbers in a kernel list such as 0-3,8."""
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return [cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)]
