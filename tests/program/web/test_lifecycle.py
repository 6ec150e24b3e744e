"""Clients that may reload the settings and release the GPUs."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from exporter.resolve import socket_users, sockets
from exporter.web import lifecycle, listen
from exporter.web.config import RateLimit
from tests.standins.served import Served
from tests.support import free_port

NOBODY = 65_534
REQUESTS = (("/-/reload", "POST"), ("/-/reload", "PUT"), ("/-/release-gpus", "POST"))


class Calls:
    """Calls that the server made."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def reload(self) -> None:
        self.made.append("reload")

    def release(self, seconds: float) -> bool:
        self.made.append(f"release {seconds:g}")
        return True


@pytest.fixture
def calls() -> Calls:
    return Calls()


def served(calls: Calls, **settings: object) -> Served:
    return Served([], reload=calls.reload, release=calls.release, **settings)


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site", "Host": "evil"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "rebound.example:19445", "Origin": "http://rebound.example:19445", "Sec-Fetch-Site": "same-origin"},
    ],
)
def test_web_pages_are_refused(calls: Calls, enabled: bool, headers: Mapping[str, str]) -> None:
    """A request that a browser sends for a page is a 403 also from the node itself, and does nothing."""
    with served(calls, enable_lifecycle=enabled) as at:
        for path, method in REQUESTS:
            answer = at.get(path, method, **headers)
            assert (403, True) == (answer.status, "use curl" in answer.text)

    assert [] == calls.made


@pytest.mark.parametrize("known", [True, False])
def test_root_on_the_node(calls: Calls, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    """Root, or the user of the exporter, need no flag on the node itself."""
    if not known:
        monkeypatch.setattr(socket_users, "user", lambda *_: None)
    with served(calls) as at:
        assert [200] * 3 == [at.get(path, method).status for path, method in REQUESTS]
        assert [200] * 3 == [at.get(path, method, Host=f"localhost:{at.port}").status for path, method in REQUESTS]

    assert ["reload", "reload", "release 300"] * 2 == calls.made


@pytest.mark.parametrize("headers", [{"Host": "rebound.example"}, {"X_Forwarded_For": "192.0.2.1"}, {"Via": "1.1 x"}])
def test_names_and_proxies(calls: Calls, headers: Mapping[str, str]) -> None:
    """A name that is not this machine's, and a proxy on the node, do not make a request one of the node."""
    with served(calls) as at:
        for path, method in REQUESTS:
            answer = at.get(path, method, **headers)
            assert (403, True) == (answer.status, "--web.enable-lifecycle" in answer.text)

    assert [] == calls.made


@pytest.fixture
def from_afar(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has clients look as if they came over the network; tests/program/test_lifecycle.py has ones that do."""
    real = lifecycle.ip

    def ip(address: object) -> object:
        return real(("192.0.2.1", 1)) if isinstance(address, tuple) and address[1] > 32767 else real(address)

    monkeypatch.setattr(lifecycle, "ip", ip)
    yield


@pytest.mark.usefixtures("from_afar")
def test_network_is_refused(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the network it takes the flag; the refusal names it, and what to do on the node."""
    port = free_port()
    with served(calls, listen_address=(f"127.0.0.1:{port}",)) as at:
        for path, method in REQUESTS:
            answer = at.get(path, method)
            assert (403, True, True) == (
                answer.status,
                "--web.enable-lifecycle" in answer.text,
                f"curl -X POST http://localhost:PORT{path}" in answer.text,
            )
    assert [] == calls.made

    with served(calls, listen_address=(f"127.0.0.1:{port}",), enable_lifecycle=True) as at:
        assert [200] * 3 == [at.get(path, method, Host="node1.example").status for path, method in REQUESTS]
    assert ["reload", "reload", "release 300"] == calls.made


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("leaving", [False, True])
def test_other_users_of_the_node(calls: Calls, monkeypatch: pytest.MonkeyPatch, leaving: bool, known: bool) -> None:
    """A job on the node, which shares its loopback, may not; also where it hangs up before it is looked at.

    Both if the kernel reports the user, and if the table of sockets has to be read.
    """
    if not known:
        monkeypatch.setattr(socket_users, "user", lambda *_: None)
    with served(calls) as at:
        child = os.fork()
        if not child:
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            with socket.create_connection(("127.0.0.1", at.port)) as connection:
                connection.sendall(b"POST /-/release-gpus HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = b"" if leaving else connection.recv(4096)
            os._exit(0 if leaving or answer.startswith(b"HTTP/1.1 403") else 1)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert 404 == at.get("/nowhere").status  # by now the other has been looked at

    assert [] == calls.made


def test_unix_socket(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that may open the socket's file may also do these."""
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(tmp_path / "s"))
    monkeypatch.setattr(listen, "inherited", lambda _: [bound])
    with served(calls, systemd_socket=True), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "s"))
        client.sendall(b"POST /-/reload HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")

    assert ["reload"] == calls.made


def test_often(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that reloads fills no disk with log lines: ten at once and then one in six seconds."""
    monkeypatch.setattr(lifecycle, "LIMIT", RateLimit("1h", 10))
    with served(calls) as at:
        answers = [at.get("/-/reload", "POST").status for _ in range(30)]

    assert [200] * 10 + [429] * 20 == answers
    assert ["reload"] * 10 == calls.made


@pytest.mark.parametrize("known", [True, False])
def test_refused_senders_take_nobody_s_turn(calls: Calls, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    """However many requests of another user of the node are refused, one of root is not."""
    monkeypatch.setattr(lifecycle, "LIMIT", RateLimit("1h", 10))
    monkeypatch.setattr(lifecycle, "PAUSE", 0.001)
    uid = [NOBODY]
    monkeypatch.setattr(socket_users, "user", lambda *_: uid[0] if known else None)
    monkeypatch.setattr(sockets, "client", lambda *_: uid[0])
    with served(calls) as at:
        assert [403] * 30 == [at.get("/-/release-gpus", "POST").status for _ in range(30)]
        uid[0] = 0
        assert [200] * 10 + [429] == [at.get("/-/release-gpus", "POST").status for _ in range(11)]

    assert ["release 300"] * 10 == calls.made


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST:19445", True),
        ("127.0.0.1:1", True),
        ("[::1]:1", True),
        ("[::1]", True),
        (socket.gethostname(), True),
        ("localhost.evil.example", False),
        ("evil.example:80", False),
        ("", False),
    ],
)
def test_hosts(host: str, expected: bool) -> None:
    """Addresses and this machine's names are local; nothing that resolves by somebody else's word is."""
    assert expected is lifecycle.local_name(host)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_users_of_sockets(family: socket.AddressFamily) -> None:
    """The user of a client and of a listener are found, those of a closed client and of other ports are not."""
    proc, loopback = Path("/proc"), "127.0.0.1" if family == socket.AF_INET else "::1"
    if family == socket.AF_INET6 and not Path("/proc/self/net/if_inet6").read_text():
        pytest.skip("no IPv6 here")
    with socket.create_server((loopback, 0), family=family) as server:
        port = server.getsockname()[1]
        client = socket.create_connection((loopback, port))
        connection, _ = server.accept()
        with connection:
            near, far = connection.getsockname(), connection.getpeername()
            assert os.geteuid() == sockets.client(proc, near, far)
            assert {os.geteuid()} == sockets.listeners(proc, os.getpid(), port)
            client.close()
            assert sockets.client(proc, near, far) is None
    assert set() == sockets.listeners(proc, os.getpid(), port)


def test_a_connection_reset_after_the_request(calls: Calls, tmp_path: Path) -> None:
    """Over TLS the addresses are gone once the connection is: a request that ends with it has no known sender."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "k.pem"]
    made = ["openssl", "req", "-x509", *key, "-subj", "/CN=x", "-out", "ca.crt"]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    path = tmp_path / "web.yml"
    path.write_text("tls_server_config: {cert_file: ca.crt, key_file: k.pem}\n")
    context = ssl._create_unverified_context()
    with served(calls, config_file=str(path)) as at:
        for _ in range(10):
            received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = context.wrap_bio(received, sent)
            connection = socket.create_connection(("127.0.0.1", at.port))
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    connection.sendall(sent.read())
                    received.write(connection.recv(1 << 16))
            connection.sendall(sent.read())
            time.sleep(0.05)  # the server has finished the handshake
            client.write(b"POST /-/release-gpus HTTP/1.1\r\nHost: rebound.example\r\n\r\n")
            with pytest.raises(ssl.SSLWantReadError):
                client.unwrap()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(sent.read())
            connection.close()
            time.sleep(0.05)  # the server has handled the request

    assert [] == calls.made
