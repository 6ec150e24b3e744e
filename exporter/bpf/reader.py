"""The child of exporter.bpf.file_worker, in two processes: one opens files, the other reads them.

The one that opens may look into other users' processes and never looks at what is in a file; the one that reads has no
right but to read what it is given. Whichever waits for a file system that does not answer, or is killed, the exporter
goes on.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import socket
import stat
import struct
import sys
import time
from typing import Any

from exporter.bpf import confined, privileges
from exporter.bpf.elf import Elf, ElfError, TakesLonger
from exporter.bpf.messages import declared, decode, encode

LENGTH = struct.Struct("=Q")
HELLO = struct.Struct("=id")
"""Pid of the process that reads, and how many times slower than an ordinary one this machine is."""
ANSWER = struct.Struct("=Qq")
"""Length of the answer, and the user id of the first file's owner; the descriptor of that file may be beside it."""
MOST_BYTES = 8 << 20
MOST_FILES = 4
_LONGEST_REASON = 300
_CALLED = (
    "exporter.bpf.find_places",
    "exporter.bpf.symbol_coverage",
    "exporter.nccl.layouts",
    "exporter.verbs.code.analysis",
    "exporter.verbs.code.extended",
    "exporter.verbs.code.live",
    "capstone.arm64",
    "capstone.x86",
)
"""Modules that calls need: without capabilities a user may be unable to read a Python in another's home."""
_NOMINAL_SECONDS = 0.004
"""CPU time of the work of `slowness` on a processor of 2020, in seconds."""
_SLOWEST = 200.0


def main(descriptor: str, idle: str) -> None:
    ours, theirs = socket.socketpair()
    with socket.socket(fileno=int(descriptor)) as parent:
        slow = slowness()
        reader = os.fork()
        if not reader:
            parent.close()
            ours.close()
            _read(theirs, slow)
            return
        theirs.close()
        with contextlib.suppress(OSError):
            privileges.drop(privileges.OPENING)
        parent.sendall(HELLO.pack(reader, slow))
        with contextlib.suppress(EOFError, ConnectionError, TimeoutError):
            _open(parent, ours, float(idle))


def receive(connection: socket.socket) -> bytes:
    """A message with its length before it. EOFError when the other side is gone, ValueError when it is too long."""
    (length,) = LENGTH.unpack(exactly(connection, LENGTH.size))
    return exactly(connection, length)


def exactly(connection: socket.socket, size: int) -> bytes:
    if size > MOST_BYTES:
        raise ValueError("a message that is too long")
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(1 << 16, size - len(data)))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def slowness() -> float:
    """Return how many times longer than usual a fixed piece of work takes here; emulated, 10 to 50 times."""
    taken = []
    text = b"\0".join(b"%d" % number for number in range(2000))
    for _ in range(3):
        began = time.thread_time()
        for _ in range(20):
            sum(len(part) for part in text.split(b"\0"))
        taken.append(time.thread_time() - began)
    return max(1.0, min(_SLOWEST, min(taken) / _NOMINAL_SECONDS))


def _open(parent: socket.socket, reader: socket.socket, idle: float) -> None:
    """Opens the files of each call and hands it on, until there is none for `idle` seconds."""
    while True:
        parent.settimeout(idle)
        message = receive(parent)
        parent.settimeout(None)
        call = json.loads(message)
        held: list[int] = []
        opened: list[int] = []
        owner = -1
        try:
            try:
                for file in call["files"]:
                    held.append(os.open(file["path"], os.O_PATH | os.O_CLOEXEC))
                    found = os.fstat(held[-1])
                    owner = found.st_uid if owner < 0 else owner
                    opened.append(_opened(held[-1], found, file["size"], file["modified"]))
            except (OSError, ElfError) as error:
                answer, kept = _refused(error), []
            else:
                reader.sendall(LENGTH.pack(len(message)))
                socket.send_fds(reader, [bytes([len(opened)])], opened)
                reader.sendall(message)
                answer, kept = receive(reader), held[:1] if call.get("keep") else []
            socket.send_fds(parent, [ANSWER.pack(len(answer), owner)], kept)
            parent.sendall(answer)
        finally:
            for descriptor in (*opened, *held):
                os.close(descriptor)


def _opened(place: int, found: os.stat_result, size: int, modified: int) -> int:
    """A descriptor for reading; `size` and `modified` are what they are expected to be, negative: anything."""
    if not stat.S_ISREG(found.st_mode):  # opening a device may act on it
        raise ElfError("not a regular file")
    if size >= 0 and (found.st_size, found.st_mtime_ns) != (size, modified):
        raise FileNotFoundError("another file is there")
    return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)


def _read(opener: socket.socket, slow: float) -> None:
    """Answers calls, in the process that reads, until the one that opens has ended."""
    confined.die_with_parent()
    if os.geteuid():
        for name in _CALLED:
            importlib.import_module(name)
    with contextlib.suppress(OSError):
        privileges.drop(())
    confined.limit()
    while True:
        try:
            (length,) = LENGTH.unpack(exactly(opener, LENGTH.size))
            _, descriptors, _, _ = socket.recv_fds(opener, 1, MOST_FILES)
            answer = _answer(exactly(opener, length), descriptors, slow)
        except (EOFError, ConnectionError):
            return
        opener.sendall(LENGTH.pack(len(answer)) + answer)


def _answer(message: bytes, descriptors: list[int], slow: float) -> bytes:
    """Return what the call returned or raised, as JSON."""
    files: list[Elf] = []
    try:
        while descriptors:
            files.append(Elf(descriptors.pop(0)))
        call = json.loads(message)
        function = getattr(importlib.import_module(call["module"]), call["name"])
        types = [wanted for name, wanted in declared(function).items() if name != "return"]
        arguments = [_argument(wanted, it, files) for wanted, it in zip(types, call["arguments"], strict=False)]
        if (within := call.get("within")) is not None:
            for file in files:
                file.until = time.thread_time() + within * slow
        return json.dumps({"result": encode(function(*arguments))}).encode()
    except (OSError, ValueError, MemoryError) as error:
        return _refused(error)
    finally:
        for file in files:
            file.close()
        for descriptor in descriptors:
            os.close(descriptor)


def _argument(wanted: Any, value: Any, files: list[Elf]) -> Any:
    return files[value["file"]] if isinstance(value, dict) and value.keys() == {"file"} else decode(wanted, value)


def _refused(error: Exception) -> bytes:
    if isinstance(error, MemoryError):
        error = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    number = error.errno or 0 if isinstance(error, OSError) else 0
    kind = "os" if isinstance(error, OSError) else "longer" if isinstance(error, TakesLonger) else "file"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return json.dumps({"error": [kind, number, text[:_LONGEST_REASON]]}).encode()


if __name__ == "__main__":
    main(*sys.argv[1:])
