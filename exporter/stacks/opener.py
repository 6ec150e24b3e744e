"""The process that may look into others: opens their memory and mapped files, and hands both to the one that unwinds.

It never looks at what is in them. Only processes that the exporter has admitted are opened.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from exporter.bpf import privileges
from exporter.bpf.reader import OPENING
from exporter.stacks.record import MOST_BYTES

ADMIT, END, STACK, FLUSH, AGAIN, REFRESH = b"A", b"E", b"S", b"F", b"N", b"R"
"""First bytes of messages: of the exporter, the last one of the process that unwinds."""
MOST_FILES = 1500
"""Open at once; the child that has so many ends, and its successor begins with none."""
_MOST_MAPPINGS, _MOST_MAPS = 8192, 8 << 20
_AT_ONCE = 32
"""Mappings in a message: each may have a name of 512 characters, which take six bytes where they are not ASCII."""


class _Mapping(NamedTuple):
    start: int
    end: int
    offset: int
    path: str


class Opener:
    """Passes messages from `exporter` on to `unwinder`, with descriptors where they are of processes."""

    def __init__(self, exporter: socket.socket, unwinder: socket.socket) -> None:
        self._exporter, self._unwinder = exporter, unwinder
        self._admitted: set[int] = set()
        self._files: dict[tuple[int, ...], int] = {}

    def run(self) -> None:
        """Pass messages on until one side has gone, or too many files are open."""
        with contextlib.suppress(OSError):
            privileges.drop(OPENING)
        poll = select.poll()
        for end in (self._unwinder, self._exporter):
            poll.register(end, select.POLLIN)
        with contextlib.suppress(EOFError, ConnectionError):
            while len(self._files) < MOST_FILES:
                for ready, _ in poll.poll():
                    if ready == self._unwinder.fileno():
                        self._answer(_received(self._unwinder))
                    else:
                        self._pass_on(_received(self._exporter))

    def _pass_on(self, message: bytes) -> None:
        kind, rest = message[:1], message[1:]
        if kind == ADMIT:
            self._admitted.add(int(rest))
            self._open(int(rest))
            return
        if kind == END:
            self._admitted.discard(int(rest))
        self._unwinder.sendall(message)

    def _answer(self, message: bytes) -> None:
        kind, rest = message[:1], message[1:]
        if kind == REFRESH and rest.isdigit() and int(rest) in self._admitted:
            self._open(int(rest))
        elif kind == REFRESH:
            self._send({"pid": int(rest or 0), "last": True, "gone": True}, [])

    def _open(self, pid: int) -> None:
        """Send what a process has mapped, with its memory and the files that were not sent before.

        The exporter knows of it before: a file system may not answer.
        """
        self._exporter.sendall(json.dumps({"opening": pid}).encode())
        try:
            memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
            mappings = list(_executable(pid))
        except (OSError, ValueError):
            self._send({"pid": pid, "last": True, "gone": True}, [])
            return
        parts = [mappings[at : at + _AT_ONCE] for at in range(0, len(mappings), _AT_ONCE)] or [[]]
        try:
            for n, part in enumerate(parts):
                self._send_part(pid, part, memory if not n else -1, n == len(parts) - 1)
        finally:
            os.close(memory)

    def _send_part(self, pid: int, part: list[_Mapping], memory: int, last: bool) -> None:
        descriptors = [memory] if memory >= 0 else []
        maps: list[tuple[int, int, int, int]] = []
        files: list[tuple[int, str]] = []
        try:
            for mapping in part:
                number, descriptor = self._file(pid, mapping)
                if descriptor >= 0:
                    descriptors.append(descriptor)
                    files.append((number, mapping.path))
                if number >= 0:
                    maps.append((mapping.start, mapping.end, mapping.offset, number))
            self._send({"pid": pid, "memory": memory >= 0, "last": last, "maps": maps, "files": files}, descriptors)
        finally:
            for descriptor in descriptors[int(memory >= 0) :]:
                os.close(descriptor)

    def _file(self, pid: int, mapping: _Mapping) -> tuple[int, int]:
        """Return the number of a mapped file, and a descriptor if the file is new, else -1; (-1, -1) if it is none."""
        try:
            place = os.open(f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}", os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return -1, -1
        try:
            found = os.fstat(place)
            if not stat.S_ISREG(found.st_mode):  # opening a device may act on it
                return -1, -1
            key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if key in self._files:
                return self._files[key], -1
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
            descriptor = os.open(f"/proc/self/fd/{place}", flags)
            self._files[key] = number = len(self._files)
            return number, descriptor
        except OSError:
            return -1, -1
        finally:
            os.close(place)

    def _send(self, answer: dict[str, object], descriptors: list[int]) -> None:
        socket.send_fds(self._unwinder, [ADMIT + json.dumps(answer).encode()], descriptors)


def _received(end: socket.socket) -> bytes:
    message = end.recv(MOST_BYTES)
    if not message:
        raise EOFError
    return message


def _executable(pid: int) -> Iterator[_Mapping]:
    """Yield the executable mappings of files: lines such as `7f0-7f1 r-xp 0000 fe:00 42 /a/name` (proc_pid_maps(5))."""
    with Path(f"/proc/{pid}/maps").open("rb") as file:
        lines = file.read(_MOST_MAPS).splitlines()
    count = 0
    for line in lines:
        place, allowed, offset, _, inode, *path = line.split(None, 5)
        if allowed[2:3] != b"x" or inode == b"0" or count >= _MOST_MAPPINGS:
            continue
        count += 1
        start, end = (int(part, 16) for part in place.split(b"-"))
        name = (path[0] if path else b"").decode(errors="replace")[:512].removesuffix(" (deleted)")
        yield _Mapping(start, end, int(offset, 16), name)
