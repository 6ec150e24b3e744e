"""A client of NCCL's RAS: finds the endpoint of a process, in its own network namespace, and requests a report."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from exporter import process_memory
from exporter.resolve.environment import variable

PORT = 28028
MOST_BYTES = 16 << 20
"""Largest answer that is read, about 25,000 ranks."""
_CONNECT_SECONDS = 1.0
_ENVIRON_BYTES = 1 << 20
_ADDRESS = variable("NCCL_RAS_ADDR", r"[^\0]{1,255}")
_DISABLED = variable("NCCL_RAS_ENABLE", "0")
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0", "::", "[::]")
_CLONE_NEWNET = 0x40000000


class RasError(Exception):
    """The reason why RAS was not queried or did not answer."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A port in a network namespace; processes that share both share the endpoint."""

    namespace: int
    port: int


def endpoint(proc: Path, pid: int) -> Endpoint:
    """Return the endpoint of a process's RAS. Raises RasError when it is unknown, switched off or not on the loopback.

    NCCL_RAS_ADDR is under the control of the process: only its port is used, because the address could be any host's.
    """
    try:
        namespace = (process_memory.living(proc, pid) / "ns" / "net").stat().st_ino
        environ = process_memory.read(proc, pid, "environ", _ENVIRON_BYTES)
    except OSError as error:
        raise RasError(f"process {pid} cannot be read: {error.strerror}") from error
    if _DISABLED.search(environ):
        raise RasError(f"process {pid} has switched RAS off (NCCL_RAS_ENABLE=0)")
    found = _ADDRESS.search(environ)
    if not found:
        return Endpoint(namespace, PORT)
    host, _, port = found[1].decode("ascii", "replace").rpartition(":")
    if host not in _LOOPBACK or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise RasError(f"process {pid} has RAS at an address that is not its loopback (NCCL_RAS_ADDR)")
    return Endpoint(namespace, int(port))


def connect(proc: Path, pid: int, at: Endpoint) -> socket.socket:
    """Return a connection to the RAS of a process. Raises RasError."""
    try:
        return _connected(proc, pid, at)
    except OSError as error:
        raise RasError(f"the RAS of process {pid} cannot be queried: {error.strerror or error}") from error


def request_report(connection: socket.socket, pid: int, seconds: float) -> str:
    """Return the report of a process's RAS, received within `seconds`, as text or JSON. Raises RasError."""
    try:
        return _request_report(connection, time.monotonic() + seconds, seconds)
    except TimeoutError as error:
        raise RasError(f"the RAS of process {pid} did not answer within {seconds:g} s") from error
    except OSError as error:
        raise RasError(f"the RAS of process {pid} cannot be queried: {error.strerror or error}") from error


def _request_report(connection: socket.socket, until: float, seconds: float) -> str:
    """Speak the protocol of NCCL's src/ras/client.cc. NCCL before 2.28.7 rejects SET FORMAT and answers in text."""
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
            raise RasError(f"the answer of RAS is larger than {MOST_BYTES >> 20} MiB")
    lines = received.decode("utf-8", "replace").split("\n", 3)
    if not lines[0].upper().startswith("SERVER PROTOCOL "):
        raise RasError("the listener there is not RAS")
    if len(lines) < 4:
        raise RasError("RAS closed the connection before it answered")
    return lines[3]


def _connected(proc: Path, pid: int, at: Endpoint) -> socket.socket:
    """Return a connection to the endpoint on the namespace's loopback. Raises OSError or RasError."""
    if (proc / "self" / "ns" / "net").stat().st_ino == at.namespace:
        return _connect(at.port)
    result: list[socket.socket | OSError] = []
    # In a separate thread: setns() moves the calling thread, and a socket stays in the namespace it was made in.
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


def _visit(proc: Path, pid: int, at: Endpoint) -> socket.socket | OSError:
    try:
        with (process_memory.living(proc, pid) / "ns" / "net").open("rb") as namespace:
            if os.fstat(namespace.fileno()).st_ino != at.namespace:
                raise ProcessLookupError(f"process {pid} has ended")
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
