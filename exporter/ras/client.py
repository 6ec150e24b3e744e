"""A client of NCCL's RAS: finds the endpoint of a process, in its own network namespace, and requests a report."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from exporter import loopback, process_memory
from exporter.loopback import Endpoint
from exporter.resolve.environment import variable

PORT = 28028
MOST_BYTES = 16 << 20
"""Largest answer that is read, about 25,000 ranks."""
_ENVIRON_BYTES = 1 << 20
_ADDRESS = variable("NCCL_RAS_ADDR", r"[^\0]{1,255}")
_DISABLED = variable("NCCL_RAS_ENABLE", "0")
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0", "::", "[::]")


class RasError(Exception):
    """The reason why RAS was not queried or did not answer."""


def endpoint(proc: Path, pid: int) -> Endpoint:
    """Return the endpoint of a process's RAS. Raises RasError when it is unknown, switched off or not on the loopback.

    NCCL_RAS_ADDR is under the control of the process: only its port is used, because the address could be any host's.
    """
    try:
        namespace = loopback.namespace(proc, pid)
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
        return loopback.connect(proc, pid, at)
    except loopback.OtherNamespaceError as error:
        raise RasError(f"{error}: give --collector.ras.namespaces, or run the job with the host's network") from error
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
