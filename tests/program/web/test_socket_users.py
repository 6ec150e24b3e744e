"""The users of TCP sockets by the kernel's socket diagnostics, of real sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from exporter.resolve import socket_users

NOBODY = 65_534
IPV6 = bool(Path("/proc/self/net/if_inet6").exists() and Path("/proc/self/net/if_inet6").read_text())

pytestmark = pytest.mark.skipif(not socket_users.available(), reason="this kernel has no tcp_diag")


@contextmanager
def connected(listening: str, to: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection: the server's and the client's."""
    family = socket.AF_INET6 if ":" in listening else socket.AF_INET
    with socket.create_server((listening, 0), family=family, dualstack_ipv6=listening == "::") as server:
        client = socket.create_connection((to, server.getsockname()[1]))
        accepted, _ = server.accept()
        with client, accepted:
            yield accepted, client


def user(end: socket.socket) -> int | None:
    return socket_users.user(end.getsockname(), end.getpeername())


@pytest.mark.parametrize(
    ("listening", "to"),
    [("127.0.0.1", "127.0.0.1"), ("::", "127.0.0.1"), ("::", "::ffff:127.0.0.1"), ("::1", "::1")],
)
def test_a_client(listening: str, to: str) -> None:
    """The user of the other end is found in both directions, until that end is closed."""
    if ":" in listening and not IPV6:
        pytest.skip("no IPv6 here")
    with connected(listening, to) as (accepted, client):
        assert os.geteuid() == user(accepted) == user(client)
        near, far = accepted.getsockname(), accepted.getpeername()
        client.close()
        assert socket_users.user(near, far) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a socket to another user")
def test_another_user() -> None:
    """A socket has the user who made it."""
    with connected("127.0.0.1", "127.0.0.1") as (accepted, client):
        os.fchown(client.fileno(), NOBODY, NOBODY)
        assert (NOBODY, 0) == (user(accepted), user(client))


def test_no_socket_of_this_machine() -> None:
    """A listener at the address of the other end is no client; neither is a unix socket or an unknown address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert socket_users.user(("127.0.0.1", 1), server.getsockname()) is None
    assert socket_users.user(("192.0.2.1", 1), ("192.0.2.2", 2)) is None
    assert socket_users.user(("::1", 1, 0, 0), ("192.0.2.2", 2)) is None
    assert socket_users.user("", "") is None
    assert socket_users.user(None, None) is None


def test_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """No user is known if the kernel has no socket diagnostics."""
    with connected("127.0.0.1", "127.0.0.1") as (accepted, _):
        monkeypatch.setattr(socket_users, "_FAMILY", 31)
        assert user(accepted) is None
        socket_users.available.cache_clear()
        try:
            assert not socket_users.available()
        finally:
            socket_users.available.cache_clear()
