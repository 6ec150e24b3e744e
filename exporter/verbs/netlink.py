"""What the kernel itself knows of queue pairs: the dump that `rdma resource show qp` is made from.

It also tells of queue pairs that were made before the exporter started: number, peer, state and owner, but no GID.
Messages and numbers: include/uapi/linux/netlink.h, include/uapi/rdma/rdma_netlink.h, drivers/infiniband/core/nldev.c.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

NETLINK_RDMA = 20
_CLIENT = 5 << 10  # RDMA_NL_NLDEV
_GET_DEVICES, _GET_QPS = 1, 10
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_TYPE_BITS = 0x3FFF
_DEVICE_INDEX, _DEVICE_NAME, _PORT = 1, 2, 3
_QPS, _QP = 19, 20
_LOCAL_QPN, _REMOTE_QPN, _QP_TYPE, _QP_STATE, _PID = 21, 22, 26, 27, 28
_NO_PORT = 0xFFFFFFFF
_BUFFER = 1 << 16
_MOST_MESSAGES = 1 << 16
_TIMEOUT = 2.0


@dataclass(frozen=True, slots=True)
class KernelQp:
    """One queue pair as the kernel has it. 0 or -1 where the kernel does not tell."""

    device: str
    port: int
    number: int
    remote: int
    """0 if it has none: only RC and UC have."""
    type: int
    state: int
    """As the hardware says now (enum ibv_qp_state)."""
    pid: int
    """0 for one of the kernel's own."""


class Socket(Protocol):
    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...


class Unreadable(OSError):
    """The kernel refused or answered something that is no dump."""


def queue_pairs(sysfs: Path = Path("/sys")) -> list[KernelQp]:
    """All queue pairs of all devices of this node. OSError where the kernel does not let us ask.

    On a node without devices nothing is asked: opening the socket alone would load the RDMA modules. Drivers may ask
    their firmware for each queue pair, so this is not for every scrape.
    """
    devices = sysfs / "class/infiniband"
    if not devices.is_dir() or not any(devices.iterdir()):
        return []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_RDMA) as asked:
        asked.settimeout(_TIMEOUT)
        asked.bind((0, 0))
        return ask(asked)


def ask(asked: Socket) -> list[KernelQp]:
    """The same over an open socket."""
    found: list[KernelQp] = []
    for device in _dump(asked, _GET_DEVICES, b""):
        index = device.get(_DEVICE_INDEX)
        if index is not None:
            for answer in _dump(asked, _GET_QPS, _attribute(_DEVICE_INDEX, index)):
                found += _read_qps(answer)
    return found


def _read_qps(answer: Mapping[int, bytes]) -> Iterator[KernelQp]:
    name = answer.get(_DEVICE_NAME, b"").rstrip(b"\0").decode(errors="backslashreplace")
    for kind, entry in _attributes(answer.get(_QPS, b"")):
        if kind != _QP:
            continue
        fields = dict(_attributes(entry))
        yield KernelQp(
            device=name,
            port=0 if (port := _number(fields, _PORT, 0)) == _NO_PORT else port,
            number=_number(fields, _LOCAL_QPN, 0),
            remote=_number(fields, _REMOTE_QPN, 0),
            type=_number(fields, _QP_TYPE, -1),
            state=_number(fields, _QP_STATE, -1),
            pid=_number(fields, _PID, 0),
        )


def _number(fields: Mapping[int, bytes], name: int, absent: int) -> int:
    return int.from_bytes(fields[name], sys.byteorder) if name in fields else absent


def _dump(asked: Socket, command: int, body: bytes) -> list[Mapping[int, bytes]]:
    """The attributes of each message of a dump."""
    kind = _CLIENT | command
    asked.sendall(_HEADER.pack(_HEADER.size + len(body), kind, _REQUEST_DUMP, 1, 0) + body)
    answers: list[Mapping[int, bytes]] = []
    for _ in range(_MOST_MESSAGES):
        for found, content in _messages(asked.recv(_BUFFER)):
            if found in (_ERROR, _DONE) and (code := _code(content)) < 0:
                raise Unreadable(-code, "the kernel refused to list RDMA queue pairs")
            if found == _DONE:
                return answers
            if found == kind:
                answers.append(dict(_attributes(content)))
    raise Unreadable(errno.EMSGSIZE, "the kernel's list of RDMA queue pairs has no end")


def _code(content: bytes) -> int:
    return int.from_bytes(content[:4], sys.byteorder, signed=True)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if not _HEADER.size <= size <= len(data) - at:
            raise Unreadable(errno.EBADMSG, "the kernel's list of RDMA queue pairs is cut short")
        yield kind, data[at + _HEADER.size : at + size]
        at += size + 3 & ~3


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if not _ATTRIBUTE.size <= size <= len(data) - at:
            raise Unreadable(errno.EBADMSG, "the kernel's list of RDMA queue pairs is cut short")
        yield kind & _TYPE_BITS, data[at + _ATTRIBUTE.size : at + size]
        at += size + 3 & ~3


def _attribute(kind: int, content: bytes) -> bytes:
    packed = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(content), kind) + content
    return packed.ljust(len(packed) + 3 & ~3, b"\0")
