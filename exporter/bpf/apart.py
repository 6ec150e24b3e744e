"""Reading machine code, in a child process: the disassembler takes 13 MB, and what it reads may be hostile.

The child is started when it is first needed, has no capabilities, gets files as open descriptors, and ends after some
seconds without work.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import io
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import exporter
from exporter.bpf import privileges
from exporter.bpf.elf import Elf

IDLE = 10.0
SECONDS = 20.0
"""The longest that one call may take: what takes longer is no library but an attack."""
_MOST_BYTES = 8 << 20
_MOST_FILES = 4
_LENGTH = struct.Struct("=Q")


class File:
    """Stands for an Elf in a message: the descriptor at this place beside it."""

    def __init__(self, at: int) -> None:
        self.at = at


class Worker:
    """Calls functions of this package in a child, one at a time. Safe from any thread."""

    def __init__(self, idle: float = IDLE, seconds: float = SECONDS) -> None:
        self._idle, self._seconds = idle, seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the module-level function returns. An Elf among the arguments is one over the same file there.

        Raises what it raises if that is an OSError or ValueError; OSError when there is no child, or it dies or hangs.
        """
        files = [it for it in arguments if isinstance(it, Elf)]
        sent = [File(files.index(it)) if isinstance(it, Elf) else it for it in arguments]
        message = pickle.dumps((function.__module__, function.__qualname__, sent))
        with self._lock:
            try:
                succeeded, result = self._ask(message, files)
            except (EOFError, ConnectionError):  # it had just ended for want of work
                self._stop()
                try:
                    succeeded, result = self._ask(message, files)
                except (EOFError, ConnectionError, pickle.UnpicklingError) as error:
                    self._stop()
                    raise OSError("the process that reads machine code died") from error
            except pickle.UnpicklingError as error:
                self._stop()
                raise OSError(f"the process that reads machine code gave {error}") from error
            except TimeoutError as error:
                self._stop()
                raise OSError(f"reading machine code took longer than {self._seconds:g} s") from error
        if succeeded:
            return result
        raise result

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _ask(self, message: bytes, files: list[Elf]) -> tuple[bool, Any]:
        connection = self._socket or self._start()
        connection.settimeout(self._seconds)
        connection.sendall(_LENGTH.pack(len(message)))
        socket.send_fds(connection, [bytes([len(files)])], [it.fileno() for it in files])
        connection.sendall(message)
        answer = _Answer(io.BytesIO(_receive(connection))).load()
        return bool(answer[0]), answer[1]

    def _start(self) -> socket.socket:
        found = importlib.util.find_spec("capstone")
        places = [Path(exporter.__file__).parents[1]]
        places += [Path(found.origin).parents[1]] if found and found.origin else []
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-S", "-m", __name__, str(theirs.fileno()), str(self._idle)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))},
                )
        except OSError:
            ours.close()
            raise
        self._socket = ours
        atexit.register(self.close)
        return ours

    def _stop(self) -> None:
        if self._socket:
            self._socket.close()
        if self._process:
            self._process.kill()
            self._process.wait()
        self._socket = self._process = None
        atexit.unregister(self.close)


class _Answer(pickle.Unpickler):
    """Takes plain values, dataclasses and errors of this package: what the child read may have taken it over."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "builtins" or module.startswith("exporter."):
            found = getattr(importlib.import_module(module), name, None)
            if is_dataclass(found) or (isinstance(found, type) and issubclass(found, (OSError, ValueError, frozenset))):
                return found
        raise pickle.UnpicklingError(f"an answer with {module}.{name}")


def _receive(connection: socket.socket) -> bytes:
    """A message with its length before it. EOFError when the other side is gone, ValueError when it is too long."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > _MOST_BYTES:
        raise ValueError("a message that is too long")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(1 << 16, size - len(data)))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def serve(connection: socket.socket, idle: float) -> None:
    """Of the child: answers calls until there is none for `idle` seconds, or nobody who makes any."""
    connection.settimeout(idle)
    while True:
        try:
            (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
        except (TimeoutError, EOFError, ConnectionError):
            return
        _, descriptors, _, _ = socket.recv_fds(connection, 1, _MOST_FILES)
        answer = pickle.dumps(_answer(_exactly(connection, length), descriptors))
        connection.sendall(_LENGTH.pack(len(answer)) + answer)


def _answer(message: bytes, descriptors: list[int]) -> tuple[bool, Any]:
    """Whether the call succeeded, and what it returned or raised."""
    files: list[Elf] = []
    try:
        module, name, sent = pickle.loads(message)
        while descriptors:
            files.append(Elf(descriptors.pop(0)))
        arguments = [files[it.at] if isinstance(it, File) else it for it in sent]
        return True, getattr(importlib.import_module(module), name)(*arguments)
    except (OSError, ValueError) as error:
        return False, error
    finally:
        for file in files:
            file.close()
        for descriptor in descriptors:
            os.close(descriptor)


def main(descriptor: str, idle: str) -> None:
    with contextlib.suppress(OSError):
        privileges.drop(())
    with socket.socket(fileno=int(descriptor)) as connection:
        serve(connection, float(idle))


WORKER = Worker()
"""One for the process, though modules have no state here otherwise: what it holds is a child that comes and goes."""

if __name__ == "__main__":
    # By its own name: what is pickled is of exporter.bpf.apart, and __main__ would be another module.
    importlib.import_module("exporter.bpf.apart").main(*sys.argv[1:])
