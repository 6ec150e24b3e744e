"""Asking the RAS thread of a process: where it listens, in that process's own network namespace, and what it says."""

from __future__ import annotations

import ctypes
import os
import re
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path

PORT = 28028
MOST_BYTES = 16 << 20
"""Some 25,000 ranks; a larger answer is given up."""
_CONNECT_SECONDS = 1.0
_ENVIRON_BYTES = 1 << 20
_ADDRESS = re.compile(rb"(?:^|\0)NCCL_RAS_ADDR=([^\0]{1,255})(?=\0|$)")
_DISABLED = re.compile(rb"(?:^|\0)NCCL_RAS_ENABLE=0(?=\0|$)")
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0", "::", "[::]")
_CLONE_NEWNET = 0x40000000


class RasError(Exception):
    """Not asked, or not answered: why."""


@dataclass(frozen=True, slots=True)
class Door:
    """Where to ask: a port in a network namespace, which `pid` is in. Equal for all processes that share it."""

    namespace: int
    port: int


def door(proc: Path, pid: int) -> Door:
    """Where the RAS of a process listens. Raises RasError when that cannot be known, or may not be asked.

    NCCL_RAS_ADDR is the process's own word: only its port is believed, for the address could be anybody's.
    """
    try:
        namespace = (proc / str(pid) / "ns" / "net").stat().st_ino
        with (proc / str(pid) / "environ").open("rb") as file:
            environ = file.read(_ENVIRON_BYTES)
    except OSError as error:
        raise RasError(f"process {pid} cannot be looked at: {error.strerror}") from error
    if _DISABLED.search(environ):
        raise RasError(f"process {pid} has switched RAS off (NCCL_RAS_ENABLE=0)")
    found = _ADDRESS.search(environ)
    if not found:
        return Door(namespace, PORT)
    host, _, port = found[1].decode("ascii", "replace").rpartition(":")
    if host not in _LOOPBACK or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise RasError(f"process {pid} has RAS at an address that is not its loopback (NCCL_RAS_ADDR)")
    return Door(namespace, int(port))


def connect(proc: Path, pid: int, at: Door) -> socket.socket:
    """A connection to the RAS of a process. Raises RasError."""
    try:
        return _connected(proc, pid, at)
    except OSError as error:
        raise RasError(f"the RAS of process {pid} cannot be asked: {error.strerror or error}") from error


def converse(connection: socket.socket, pid: int, seconds: float) -> str:
    """What the RAS of a process answers about its job, within that time. Raises RasError."""
    try:
        return _converse(connection, time.monotonic() + seconds, seconds)
    except TimeoutError as error:
        raise RasError(f"the RAS of process {pid} did not answer within {seconds:g} s") from error
    except OSError as error:
        raise RasError(f"the RAS of process {pid} cannot be asked: {error.strerror or error}") from error


def _converse(connection: socket.socket, until: float, seconds: float) -> str:
    """The protocol of NCCL's src/ras/client.cc. NCCL before 2.28.7 has no formats, says so, and answers in text."""
    limit = max(1, int(seconds) - 1)
    words = f"CLIENT PROTOCOL 2\nTIMEOUT {limit}\nSET FORMAT json\nVERBOSE STATUS\n"
    connection.sendall(words.encode("ascii"))
    received = bytearray()
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        part = connection.recv(1 << 16)
        if not part:
            break
        received += part
        if len(received) > MOST_BYTES:
            raise RasError(f"RAS says more than {MOST_BYTES >> 20} MiB")
    lines = received.decode("utf-8", "replace").split("\n", 3)
    if not lines[0].upper().startswith("SERVER PROTOCOL "):
        raise RasError("what listens there is not RAS")
    if len(lines) < 4:
        raise RasError("RAS hung up before it answered")
    return lines[3]


def _connected(proc: Path, pid: int, at: Door) -> socket.socket:
    """A connection to that port of the namespace's loopback; OSError or RasError."""
    if (proc / "self" / "ns" / "net").stat().st_ino == at.namespace:
        return _connect(at.port)
    result: list[socket.socket | OSError] = []
    # A thread of its own: what enters another namespace is the thread, and a socket stays where it was made.
    visitor = threading.Thread(target=lambda: result.append(_visit(proc, pid, at)), name="ras visit", daemon=True)
    visitor.start()
    visitor.join(2 * _CONNECT_SECONDS + 1)
    if not result:
        raise TimeoutError
    [found] = result
    if isinstance(found, PermissionError):
        raise RasError(
            f"process {pid} is in another network namespace, which takes CAP_SYS_ADMIN to enter: "
            "give --collector.ras.namespaces, or run the job with the host's network"
        )
    if isinstance(found, OSError):
        raise found
    return found


def _visit(proc: Path, pid: int, at: Door) -> socket.socket | OSError:
    try:
        with (proc / str(pid) / "ns" / "net").open("rb") as namespace:
            if os.fstat(namespace.fileno()).st_ino != at.namespace:
                raise ProcessLookupError(f"process {pid} has gone")
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(namespace.fileno(), _CLONE_NEWNET):
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
        return _connect(at.port)
    except OSError as error:
        return error


def _connect(port: int) -> socket.socket:
    try:
        return socket.create_connection(("127.0.0.1", port), _CONNECT_SECONDS)
    except ConnectionRefusedError:
        return socket.create_connection(("::1", port), _CONNECT_SECONDS)
