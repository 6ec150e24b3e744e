"""The process that may look into others: opens their memory and mapped files, and hands both to the one that unwinds.

It never looks at what is in them. Only processes that the exporter has admitted are opened.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from exporter.bpf import privileges
from exporter.stacks import debug_files

ADMIT, END, STACK, FLUSH, AGAIN = b"A", b"E", b"S", b"F", b"N"
"""First bytes of messages of the exporter."""
REFRESH, DEBUG = b"R", b"D"
"""Messages of the process that unwinds: the mappings of a process again; a file of debug information."""
MOST_BYTES = 1 << 17
"""Of a message."""
MOST_FILES = 1500
"""Open at once; the child that has so many ends, and its successor begins with none."""
_USER = re.compile(r"^Uid:\t\d+\t(\d+)", re.MULTILINE)
_OWN_NUMBER = re.compile(r"^NSpid:.*\t(\d+)$", re.MULTILINE)
_MOST_MAPPINGS, _MOST_MAPS = 8192, 8 << 20
_AT_ONCE = 32
"""Mappings in a message: each may have a name of 512 characters, which take six bytes where they are not ASCII."""


class Mapping(NamedTuple):
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
            privileges.drop(privileges.OPENING)
        poll = select.poll()
        for end in (self._unwinder, self._exporter):
            poll.register(end, select.POLLIN)
        with contextlib.suppress(EOFError, ConnectionError):
            while len(self._files) < MOST_FILES:
                for ready, _ in poll.poll():
                    if ready == self._unwinder.fileno():
                        self._answer(_received(self._unwinder))
                    else:
                        self.pass_on(_received(self._exporter))

    def pass_on(self, message: bytes) -> None:
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
        elif kind == DEBUG and (wanted := debug_files.request(rest)):
            self._open_debug_file(wanted)

    def _open_debug_file(self, wanted: debug_files.Request) -> None:
        """Send the first file that is where debug information is installed, in the root of an admitted process."""
        self._exporter.sendall(json.dumps({"opening": wanted.pid}).encode())
        places = debug_files.places(wanted) if wanted.pid in self._admitted else ()
        descriptor = next((it for place in places if (it := open_in_root(wanted.pid, place)) >= 0), -1)
        try:
            found = [descriptor] if descriptor >= 0 else []
            answer = json.dumps({"pid": wanted.pid, "number": wanted.number}).encode()
            socket.send_fds(self._unwinder, [DEBUG + answer], found)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _open(self, pid: int) -> None:
        """Send what a process has mapped, with its memory and the files that were not sent before.

        The exporter knows of it before: a file system may not answer.
        """
        self._exporter.sendall(json.dumps({"opening": pid}).encode())
        try:
            memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
            mappings = list(executable(pid))
        except (OSError, ValueError):
            self._send({"pid": pid, "last": True, "gone": True}, [])
            return
        parts = [mappings[at : at + _AT_ONCE] for at in range(0, len(mappings), _AT_ONCE)] or [[]]
        process = [memory, open_perf_map(pid)]
        try:
            for n, part in enumerate(parts):
                self._send_part(pid, part, [] if n else process, n == len(parts) - 1)
        finally:
            for descriptor in process:
                if descriptor >= 0:
                    os.close(descriptor)

    def _send_part(self, pid: int, part: list[Mapping], process: list[int], last: bool) -> None:
        """Send some mappings; the first ones with the memory and the perf map, of which one may be missing (-1)."""
        ours = [it for it in process if it >= 0]
        descriptors = ours[:]
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
            given = {"memory": bool(process), "perf_map": len(ours) > 1}
            self._send({"pid": pid, "last": last, "maps": maps, "files": files} | given, descriptors)
        finally:
            for descriptor in descriptors[len(ours) :]:
                os.close(descriptor)

    def _file(self, pid: int, mapping: Mapping) -> tuple[int, int]:
        """Return the number of a mapped file, and a descriptor if the file is new, else -1; (-1, -1) if it is none."""
        try:
            place = os.open(f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}", os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return -1, -1
        try:
            found = os.fstat(place)
            key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if key in self._files:
                return self._files[key], -1
            descriptor = _readable(place)
            self._files[key] = number = len(self._files)
            return number, descriptor
        except OSError:
            return -1, -1
        finally:
            os.close(place)

    def _send(self, answer: dict[str, object], descriptors: list[int]) -> None:
        socket.send_fds(self._unwinder, [ADMIT + json.dumps(answer).encode()], descriptors)


def _readable(place: int) -> int:
    """Return a descriptor to read a file that O_PATH has found. Raises OSError, also where it is no regular file."""
    if not stat.S_ISREG(os.fstat(place).st_mode):
        raise OSError("not a regular file")  # opening a device may act on it
    return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)


def open_in_root(pid: int, names: Sequence[str]) -> int:
    """Return a descriptor of a regular file below the root that a process has, -1 if there is none.

    No link is followed: it would be one of the process, and lead to what is of the exporter's root.
    """
    with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
        place = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_CLOEXEC)
        opened.callback(os.close, place)
        for name in names:
            place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            opened.callback(os.close, place)
        return _readable(place)
    return -1


def open_perf_map(pid: int) -> int:
    """Return a descriptor of a process's /tmp/perf-PID.map, -1 if there is none, or it belongs to another user.

    The process may have made another user's file appear there, with a hard link or a mount. PID is the number that the
    process has for itself, the last of NSpid; its effective user is the second of Uid (proc_pid_status(5)).
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return -1
    user, number = _USER.search(status), _OWN_NUMBER.search(status)
    descriptor = open_in_root(pid, ["tmp", f"perf-{number[1] if number else pid}.map"])
    if descriptor < 0 or (user and int(user[1]) == os.fstat(descriptor).st_uid):
        return descriptor
    os.close(descriptor)
    return -1


def _received(end: socket.socket) -> bytes:
    message = end.recv(MOST_BYTES)
    if not message:
        raise EOFError
    return message


def executable(pid: int) -> Iterator[Mapping]:
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
        yield Mapping(start, end, int(offset, 16), name)
