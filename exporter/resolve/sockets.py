"""The users of TCP sockets in a process's network namespace, from /proc/PID/net/tcp and tcp6."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from exporter.process_memory import living

MOST_ROWS = 1 << 18
"""Rows of a table that are read. Listening sockets come first."""
_ESTABLISHED, _LISTEN = "01", "0A"


@dataclass(frozen=True, slots=True)
class SocketRow:
    """A socket. `inode` is 0 once the process has closed the socket, and `uid` is undefined then."""

    local: tuple[str, int]
    remote: tuple[str, int]
    state: str
    uid: int
    inode: int


def client(proc: Path, near: object, far: object) -> int | None:
    """Return the uid of the other end of a connection from `near`, an address of this machine, to `far`.

    None when the other end is closed or on another machine. The table is read twice, because a socket that is closed
    during the first reading shows uid 0.
    """
    ends = _end(far), _end(near)
    found = [
        next((row for row in rows(proc, "self") if (row.local, row.remote) == ends and row.state == _ESTABLISHED), None)
        for _ in range(2)
    ]
    first, second = found
    return first.uid if first is not None and first == second and first.inode else None


def listeners(proc: Path, pid: int, port: int) -> set[int]:
    """Return the uids that listen at a port of the loopback in the network namespace of a process."""
    return {row.uid for row in listening(proc, pid) if row.local[1] == port}


def listening(proc: Path, pid: int) -> Iterator[SocketRow]:
    """Yield the sockets that listen at the loopback in the network namespace of a process, whoever has them."""
    return (row for row in rows(proc, pid) if row.state == _LISTEN and _reached_by_loopback(row.local[0]))


def ip(address: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address of a socket's address, as IPv4 if IPv4-mapped, or None for a unix socket."""
    if not isinstance(address, tuple) or not address:
        return None
    found = ipaddress.ip_address(str(address[0]).partition("%")[0])
    return (isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped) or found


def rows(proc: Path, pid: int | str) -> Iterator[SocketRow]:
    """Yield the TCP sockets of a process's network namespace; none when the tables cannot be read."""
    for name, size in (("tcp", 4), ("tcp6", 16)):
        try:
            with (living(proc, pid) / "net" / name).open() as file:
                for line in islice(file, 1, MOST_ROWS):
                    fields = line.split()
                    if len(fields) > 9:
                        yield SocketRow(_address(fields[1], size), _address(fields[2], size), *_rest(fields))
        except OSError:
            continue


def _rest(fields: list[str]) -> tuple[str, int, int]:
    return fields[3], int(fields[7]), int(fields[9])


def _address(text: str, size: int) -> tuple[str, int]:
    """Parse an address as the kernel prints it: words of the machine's byte order in hex, and a port."""
    address, _, port = text.partition(":")
    words = struct.unpack(f">{size // 4}I", bytes.fromhex(address))
    packed = struct.pack(f"={size // 4}I", *words)
    return _plain(socket.inet_ntop(socket.AF_INET if size == 4 else socket.AF_INET6, packed)), int(port, 16)


def _end(address: object) -> tuple[str, int]:
    assert isinstance(address, tuple)
    return str(ip(address)), int(address[1])


def _plain(address: str) -> str:
    return str(ip((address,)))


def _reached_by_loopback(address: str) -> bool:
    found = ipaddress.ip_address(address)
    return found.is_loopback or found.is_unspecified
