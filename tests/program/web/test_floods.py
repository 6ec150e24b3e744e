"""Floods of requests that are refused, by another user of the node: who is still answered."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import bcrypt
import pytest

from exporter.resolve import socket_users
from exporter.web import connections, lifecycle
from exporter.web.config import RateLimit
from exporter.web.connections import Connection
from tests.standins.served import Fake, Served

NOBODY = 65_534
ADDRESSES = tuple(f"127.0.0.{number}" for number in range(2, 6))
RELOAD = "POST /-/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
UNKNOWN = "GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@contextmanager
def flood(at: Served, request: str, sources: Sequence[str] = ADDRESSES, each: int = 64) -> Iterator[None]:
    """Another user's process with `each` connections from each address, which repeat a request and come again.

    Entered once each connection has sent a request, and some have been answered or closed.
    """
    program = f"""if True:
        import encodings.idna, os, selectors, socket, time
        os.setgroups([]), os.setresgid(*[{NOBODY}] * 3), os.setresuid(*[{NOBODY}] * 3)
        looked, request, printed, seen = selectors.DefaultSelector(), {request.encode()!r}, False, 0

        def connect(source):
            it = socket.create_connection(("127.0.0.1", {at.port}), 10, (source, 0))
            try:
                it.sendall(request)
            except OSError:
                pass
            it.setblocking(False)
            looked.register(it, selectors.EVENT_READ, source)

        for source in {tuple(sources)!r} * {each}:
            connect(source)
        while True:
            for key, _ in looked.select():
                seen += 1
                try:
                    if key.fileobj.recv(65536):
                        key.fileobj.sendall(request)
                        continue
                except BlockingIOError:
                    continue
                except OSError:
                    pass
                looked.unregister(key.fileobj)
                key.fileobj.close()
                connect(key.data)
            if not printed and seen > 5:
                printed = print("flooded", flush=True) is None
            time.sleep(0.02)
    """
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert b"flooded\n" == child.stdout.readline()
            yield
        finally:
            child.kill()
    at.get("/-/healthy")  # all connections before this one are accepted: asyncio loses those of a server that stops


def served(**settings: object) -> Served:
    return Served([Fake("good", lambda: [])], reload=lambda: None, **settings)


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "LIMIT", RateLimit("1ms", 1000))


@pytest.mark.skipif(not socket_users.available(), reason="this kernel has no tcp_diag")
@pytest.mark.usefixtures("unlimited")
@pytest.mark.parametrize("sources", [("127.0.0.1",), ADDRESSES], ids=["one", "four"])
@pytest.mark.parametrize("request_", [RELOAD, UNKNOWN], ids=["reload", "unknown"])
def test_a_flood_of_another_user(sources: Sequence[str], request_: str) -> None:
    """Root's scrapes, health checks and reloads on the node succeed, whatever address the other user floods from."""
    with served() as at, flood(at, request_, sources):
        for path, method in (("/metrics", "GET"), ("/-/healthy", "GET"), ("/-/reload", "POST")):
            assert [200] * 10 == [at.get(path, method).status for _ in range(10)], path
        assert connections.MOST_OF_PEER >= len(at.server.connections.of_peer[f"user {NOBODY}"])  # type: ignore[union-attr]


@pytest.mark.skipif(not socket_users.available(), reason="this kernel has no tcp_diag")
def test_a_flood_of_wrong_passwords(tmp_path: Path) -> None:
    """The right password of root's scrape on the node gets its turn."""
    right, wrong = (base64.b64encode(b"alice:" + word).decode() for word in (b"right", b"wrong"))
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users: {{alice: '{bcrypt.hashpw(b'right', bcrypt.gensalt(8)).decode()}'}}\n")
    guess = f"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {wrong}\r\n\r\n"
    with served(config_file=str(path)) as at, flood(at, guess):
        assert [200] * 10 == [at.get(Authorization=f"Basic {right}").status for _ in range(10)]


@pytest.mark.usefixtures("peers_by_address")
@pytest.mark.parametrize(
    "request_", [RELOAD, UNKNOWN, RELOAD.replace("localhost", "evil.example")], ids=["reload", "unknown", "host"]
)
@pytest.mark.parametrize("known", [True, False])
def test_a_flood_from_many_addresses(monkeypatch: pytest.MonkeyPatch, known: bool, request_: str) -> None:
    """256 connections of four peers take no place of a fifth one, even if the kernel does not report their users."""
    if not known:
        monkeypatch.setattr(socket_users, "user", lambda *_: None)
    with served() as at, flood(at, request_):
        for path in ("/metrics", "/-/healthy"):
            assert [200] * 10 == [at.get(path, source="127.0.0.6").status for _ in range(10)], path


@pytest.mark.usefixtures("peers_by_address")
def test_few_wait_for_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few requests wait for the table of sockets if the kernel does not report a sender's user: others get a 429."""
    monkeypatch.setattr(socket_users, "user", lambda *_: None)
    most = 0

    def count(connection: Connection, _: float) -> bool:
        nonlocal most
        most = max(most, sum(it.answering for it in connection._table._open))
        return False

    monkeypatch.setattr(Connection, "overdue", count)
    with served() as at, flood(at, RELOAD):
        answers = {at.get("/-/reload", "POST", source="127.0.0.6").status for _ in range(5)}
        assert 200 == at.get(source="127.0.0.6").status

    assert {200, 429} >= answers
    assert most <= lifecycle.MOST_LOOKING + 2
