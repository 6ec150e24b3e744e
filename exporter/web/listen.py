"""The listening sockets: from host:port addresses, or passed by systemd."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, MutableMapping

_FIRST_FD = 3  # SD_LISTEN_FDS_START, sd_listen_fds(3)


class ListenError(Exception):
    """The exporter cannot listen on a configured address; the message names the flag to change."""


def bind(addresses: Iterable[str]) -> list[socket.socket]:
    """Return listening sockets for `host:port`, `[v6]:port` or `:port` (all addresses). Raises ListenError."""
    sockets: list[socket.socket] = []
    try:
        for address in addresses:
            sockets.append(_bind(address))
    except ListenError:
        for made in sockets:
            made.close()
        raise
    if not sockets:
        raise ListenError("there is no address to listen on: give --web.listen-address")
    return sockets


def split(address: str) -> tuple[str, int]:
    """Return host, empty for all addresses, and port. Raises ListenError for a text of another form."""
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or len(port) > 5 or int(port) > 65535:
        raise ListenError(f"{address!r} is no address to listen on: write host:port, [IPv6]:port or :port")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ListenError(f"{address!r} is no address to listen on: write an IPv6 address as [{host}]:{port}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _bind(address: str) -> socket.socket:
    host, port = split(address)
    try:
        if not host and socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or str(error)
        # create_server repeats the address in its message
        reason = reason.partition(" (while")[0]
        raise ListenError(f"cannot listen on {address}: {reason}; choose another with --web.listen-address") from error


def inherited(environ: MutableMapping[str, str]) -> list[socket.socket]:
    """Return the sockets that systemd's socket unit opened for this process. Raises ListenError when there are none, or
    one does not listen for connections.

    The variables are removed, as sd_listen_fds(3) recommends, so that no child process uses the sockets.
    """
    count, pid = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
    environ.pop("LISTEN_FDNAMES", None)
    if not count.isdecimal() or not 0 < int(count) <= 64 or pid != str(os.getpid()):
        raise ListenError(
            "--web.systemd-socket is set, but systemd passed no socket: start the .socket unit, or drop the flag"
        )
    sockets = []
    for descriptor in range(_FIRST_FD, _FIRST_FD + int(count)):
        try:
            os.set_inheritable(descriptor, False)
            passed = socket.socket(fileno=descriptor)
        except OSError as error:
            raise ListenError(
                f"systemd passed descriptor {descriptor}, which is no socket: {error.strerror}"
            ) from error
        sockets.append(passed)
        if passed.type != socket.SOCK_STREAM or not passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise ListenError(
                f"systemd passed descriptor {descriptor}, which does not listen for connections: "
                "the .socket unit needs ListenStream= and Accept=no"
            )
    return sockets


def url(bound: socket.socket, scheme: str, path: str = "/") -> str:
    """Return the URL of a listening socket."""
    name = bound.getsockname()
    if bound.family not in (socket.AF_INET, socket.AF_INET6):
        return f"unix:{name}"
    only_ipv6 = bound.family == socket.AF_INET6 and bound.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    host = {"::": "::1" if only_ipv6 else "localhost", "0.0.0.0": "localhost"}.get(name[0], name[0])
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{name[1]}{path}"
