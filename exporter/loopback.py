"""Connections to the loopback of a process's network namespace, wherever that is."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

from exporter import process_memory

_CONNECT_SECONDS = 1.0
_CLONE_NEWNET = 0x40000000


class OtherNamespaceError(Exception):
    """The process is in another network namespace, which this one may not enter."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A port in a network namespace; processes that share both share the endpoint."""

    namespace: int
    port: int


def namespace(proc: Path, pid: int) -> int:
    """Return the inode of a process's network namespace. Raises OSError."""
    return (process_memory.living(proc, pid) / "ns" / "net").stat().st_ino


def is_own(proc: Path, at: Endpoint) -> bool:
    """Return whether an endpoint is in the network namespace of this process. Raises OSError."""
    return (proc / "self" / "ns" / "net").stat().st_ino == at.namespace


def connect(proc: Path, pid: int, at: Endpoint) -> socket.socket:
    """Return a connection to an endpoint of a process on its loopback. Raises OSError, or OtherNamespaceError."""
    if is_own(proc, at):
        return _connect(at.port)
    result: list[socket.socket | OSError] = []
    # In a separate thread: setns() moves the calling thread, and a socket stays in the namespace it was made in.
    visitor = threading.Thread(target=lambda: result.append(_visit(proc, pid, at)), name="loopback visit", daemon=True)
    visitor.start()
    visitor.join(2 * _CONNECT_SECONDS + 1)
    if not result:
        raise TimeoutError
    [found] = result
    if isinstance(found, PermissionError):
        raise OtherNamespaceError(f"process {pid} is in another network namespace, which takes CAP_SYS_ADMIN to enter")
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
