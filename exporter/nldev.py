"""A netlink client of the kernel's RDMA core: include/uapi/rdma/rdma_netlink.h, drivers/infiniband/core/nldev.c."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Protocol

Attributes = Mapping[int, bytes]

_FAMILY = 20  # NETLINK_RDMA
_CLIENT = 5 << 10  # RDMA_NL_NLDEV
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_TYPE_BITS = 0x3FFF
_BUFFER, _MOST_MESSAGES = 1 << 16, 1 << 16
_TIMEOUT = 2.0


class Socket(Protocol):
    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


def connect() -> Socket:
    """Return a netlink socket. Loads the RDMA modules, so call it on nodes with devices only. Raises OSError."""
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _FAMILY)
    made.settimeout(_TIMEOUT)
    made.bind((0, 0))
    return made


def request(connection: Socket, command: int, body: bytes) -> list[Attributes]:
    """Send a command and return the messages of the answer. Raises OSError with the kernel's error."""
    return _exchange(connection, command, _REQUEST | _ACK, body)


def dump(connection: Socket, command: int, body: bytes) -> list[Attributes]:
    """Return all objects of a kind, several in each message. Raises OSError."""
    return _exchange(connection, command, _REQUEST | _DUMP, body)


def pack(kind: int, value: int) -> bytes:
    """Return an encoded attribute of 32 bits."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + 4, kind) + value.to_bytes(4, sys.byteorder)


def unpack(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the attributes in a message or in another attribute. Raises OSError when they are truncated."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if not _ATTRIBUTE.size <= size <= len(data) - at:
            raise _malformed()
        yield kind & _TYPE_BITS, data[at + _ATTRIBUTE.size : at + size]
        at += size + 3 & ~3


def number(attributes: Attributes, kind: int) -> int | None:
    return int.from_bytes(attributes[kind], sys.byteorder) if kind in attributes else None


def _exchange(connection: Socket, command: int, flags: int, body: bytes) -> list[Attributes]:
    kind = _CLIENT | command
    connection.sendall(_HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body)
    answers: list[Attributes] = []
    for _ in range(_MOST_MESSAGES):
        for found, content in _messages(connection.recv(_BUFFER)):
            if found in (_ERROR, _DONE):
                status = int.from_bytes(content[:4], sys.byteorder, signed=True)
                if status < 0:
                    raise OSError(-status, os.strerror(-status))
                return answers
            if found == kind:
                answers.append(dict(unpack(content)))
    raise _malformed()


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if not _HEADER.size <= size <= len(data) - at:
            raise _malformed()
        yield kind, data[at + _HEADER.size : at + size]
        at += size + 3 & ~3


def _malformed() -> OSError:
    return OSError(errno.EBADMSG, "the kernel's answer about RDMA is truncated or endless")
