"""The user of one TCP socket of this machine, from the kernel's socket diagnostics: include/uapi/linux/inet_diag.h.

A request costs 10 µs however many sockets there are, while /proc/net/tcp has to be read from its beginning.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from functools import cache

from exporter.resolve.sockets import ip

_FAMILY = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY, _REQUEST_FLAG, _DUMP, _DONE = 20, 0x1, 0x300, 3
_HEADER = struct.Struct("=IHHII")
_BODY = struct.Struct("=BBBBI")
_ENDS = struct.Struct(">HH16s16s")
_INTERFACE_COOKIE = struct.Struct("=III")
_ANY_COOKIE = 0xFFFFFFFF
_ANSWER = struct.Struct("=BBBB48xIIIII")
_ESTABLISHED, _ALL = 1, 0xFFFFFFFF
_BUFFER = 1 << 13


@cache
def available() -> bool:
    """Return whether the kernel answers. The first call may load the kernel's tcp_diag, as `ss` does."""
    try:
        kind, content = _request(_DUMP, socket.AF_INET, 0, bytes(_ENDS.size), 0)
    except OSError:
        return False
    return kind == _DONE and not any(content[:4])


def user(near: object, far: object) -> int | None:
    """Return the uid of the other end of a connection from `near`, an address of this machine, to `far`.

    None when the other end is closed, bound to an interface, in another network namespace or on another machine, and
    where the kernel does not answer.
    """
    own, peer = ip(near), ip(far)
    if own is None or peer is None or own.version != peer.version or not available():
        return None
    assert isinstance(near, tuple) and isinstance(far, tuple)
    family = socket.AF_INET if peer.version == 4 else socket.AF_INET6
    interface = far[3] if family == socket.AF_INET6 and peer.is_link_local else 0
    ends = _ENDS.pack(far[1], near[1], _packed(peer), _packed(own))
    try:
        kind, content = _request(0, family, _ALL, ends, interface)
    except OSError:
        return None
    if kind != _BY_FAMILY or len(content) < _ANSWER.size:
        return None
    _, state, _, _, _, _, _, uid, inode = _ANSWER.unpack_from(content)
    # Without such a connection the kernel may return a listener. A socket that was closed meanwhile has uid 0, inode 0.
    return uid if state == _ESTABLISHED and inode else None


def _request(flags: int, family: int, states: int, ends: bytes, interface: int) -> tuple[int, bytes]:
    """Return the type and the content of the first message of the answer. Raises OSError."""
    ends += _INTERFACE_COOKIE.pack(interface, _ANY_COOKIE, _ANY_COOKIE)
    body = _BODY.pack(family, socket.IPPROTO_TCP, 0, 0, states) + ends
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _FAMILY) as kernel:
        kernel.setblocking(False)  # the kernel answers before send() returns
        kernel.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST_FLAG | flags, 1, 0) + body)
        answer = kernel.recv(_BUFFER)
    return _HEADER.unpack_from(answer)[1], answer[_HEADER.size :]


def _packed(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bytes:
    return address.packed.ljust(16, b"\0")
