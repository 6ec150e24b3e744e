"""Connections that want to be many, slow or large, over real sockets: what is bounded, and who is still answered."""

from __future__ import annotations

import asyncio.sslproto
import gc
import os
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from exporter.model import Kind, Metric, Sample
from exporter.resolve import socket_users
from exporter.web import connections
from exporter.web.connections import peer
from tests.standins.served import Fake, Served
from tests.support import until

VALUE = Metric("test.value", "A value.", Kind.GAUGE)
HEALTH = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n"
MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("peers_by_address")


def good() -> Iterable[Sample]:
    return [VALUE.sample(23)]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A web configuration with TLS, and ca.crt beside it."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "k.pem"]
    name = ["-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", *key, *name, "-out", "ca.crt"], cwd=tmp_path, check=True, capture_output=True
    )
    path = tmp_path / "web.yml"
    path.write_text("tls_server_config: {cert_file: ca.crt, key_file: k.pem}\n")
    return path


@contextmanager
def holding(port: int, count: int, first: bytes = b"", source: str = "127.0.0.1", pause: float = 0.0) -> Iterator[None]:
    """Another process with so many connections that sent these bytes and wait; entered once all have been made."""
    program = f"""if True:
        import resource, socket, sys, time
        resource.setrlimit(resource.RLIMIT_NOFILE, ({count} + 100,) * 2)
        held, first = [], sys.stdin.buffer.read()
        for _ in range({count}):
            it = socket.create_connection(("127.0.0.1", {port}), 10, ({source!r}, 0))
            held.append(it)
            try:
                it.sendall(first)
            except OSError:
                pass
            time.sleep({pause})
        print("held", flush=True)
        time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(first)
            child.stdin.close()
            assert b"held\n" == child.stdout.readline()
            yield
        finally:
            child.kill()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


class Watched:
    """The most memory and descriptors of this process above what it had, looked at all the time."""

    def __init__(self) -> None:
        gc.collect()
        self._before = resident(), descriptors()
        self.memory = self.files = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.memory = max(self.memory, resident() - self._before[0])
            self.files = max(self.files, descriptors() - self._before[1])

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def test_half_open_handshakes(certificate: Path) -> None:
    """3,000 connections that begin a ClientHello and go no further: memory and descriptors bounded, others answered."""
    with Served([Fake("good", good)], config_file=str(certificate)) as served:
        served.context = ssl.create_default_context(cafile=str(certificate.parent / "ca.crt"))
        assert 200 == served.get().status
        with Watched() as watched:
            answers: list[int] = []
            flood = threading.Thread(target=lambda: hold(served.port))
            flood.start()
            while flood.is_alive():
                answers.append(served.get("/-/healthy", source="127.0.0.2").status)
                time.sleep(0.1)
            answers += [served.get().status for _ in range(3)]

    print(f"{watched.memory / MIB:.0f} MiB, {watched.files} descriptors, {len(answers)} answers")
    assert {200} == set(answers)
    assert watched.memory < 64 * MIB
    assert watched.files < connections.MOST + 150  # as asyncio accepts up to 100 at once before it looks at any


def hold(port: int) -> None:
    with holding(port, 3000, b"\x16\x03\x01", pause=0.001):
        pass


def test_evicted_before_the_handshake(certificate: Path) -> None:
    """Of many connections that are accepted at once only those that stay begin a handshake, which takes memory."""
    blocked, gate = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        gate.wait()

    with Served([Fake("good", good)], config_file=str(certificate)) as served, ExitStack() as held:
        served.context = ssl.create_default_context(cafile=str(certificate.parent / "ca.crt"))
        served._loop.call_soon_threadsafe(block)
        blocked.wait()
        for _ in range(4 * connections.MOST_HANDSHAKES_OF_PEER):
            held.enter_context(socket.create_connection(("127.0.0.1", served.port), 5)).sendall(b"\x16\x03\x01")
        gate.set()
        assert 200 == served.get("/-/healthy", source="127.0.0.2").status
        gc.collect()
        begun = sum(isinstance(it, asyncio.sslproto.SSLProtocol) for it in gc.get_objects())

    assert begun <= connections.MOST_HANDSHAKES_OF_PEER + 1


@pytest.mark.parametrize("peers", [1, 8])
def test_silent_connections(peers: int) -> None:
    """500 connections that send nothing, of one peer or of several: health and metrics are answered 20 of 20 times."""
    with Served([Fake("good", good)]) as served, ExitStack() as held:
        for number in range(peers):
            held.enter_context(holding(served.port, 500 // peers, source=f"127.0.1.{number + 1}"))
        for source in ("127.0.1.1", "127.0.2.1"):
            for path in ("/-/healthy", "/metrics"):
                assert [200] * 20 == [served.get(path, source=source).status for _ in range(20)], (source, path)


def test_peer_has_a_share() -> None:
    """Whoever opens more than a share closes its own connections for that, not those of others."""
    with Served([Fake("good", good)]) as served, ExitStack() as held:
        mine = held.enter_context(socket.create_connection(("127.0.0.1", served.port), 5, ("127.0.2.1", 0)))
        mine.sendall(HEALTH)
        assert mine.recv(4096).startswith(b"HTTP/1.1 200")
        held.enter_context(holding(served.port, 300))
        mine.sendall(HEALTH)
        assert mine.recv(4096).startswith(b"HTTP/1.1 200")


def test_answer_under_way_is_not_cut_off() -> None:
    """A scrape that takes its time is finished, however many connections come meanwhile from the same peer."""
    gate, entered = threading.Event(), threading.Event()

    def slow() -> Iterable[Sample]:
        entered.set()
        gate.wait()
        return [VALUE.sample(23)]

    with Served([Fake("slow", slow)]) as served:
        answers: list[str] = []
        scrape = threading.Thread(target=lambda: answers.append(served.get().text))
        scrape.start()
        entered.wait()
        with holding(served.port, 300):
            gate.set()
            scrape.join()

    assert "test_value 23" in answers[0]


def test_all_places_answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection is refused while all others are being answered, and accepted when one of them is done."""
    monkeypatch.setattr(connections, "MOST", 2)
    gate, entered = threading.Event(), threading.Semaphore(0)

    def slow(*_: object) -> str:
        entered.release()
        gate.wait()
        return "done"

    with Served([Fake("good", good)], landing=slow) as served:
        pages = [threading.Thread(target=lambda: served.get("/")) for _ in range(2)]
        for page in pages:
            page.start()
            entered.acquire()
        with pytest.raises(OSError):
            served.get("/-/healthy")
        gate.set()
        for page in pages:
            page.join()
        assert 200 == served.get("/-/healthy").status


def slow_head(send: Callable[[bytes], None], closed: Callable[[], bool]) -> None:
    send(b"GET /metrics HTTP/1.1\r\n")
    while not closed():
        send(b"X: 1\r\n")


def head_after_an_answer(send: Callable[[bytes], None], closed: Callable[[], bool]) -> None:
    send(HEALTH)
    slow_head(send, closed)


def nothing_after_an_answer(send: Callable[[bytes], None], closed: Callable[[], bool]) -> None:
    send(HEALTH)
    while not closed():
        pass


@pytest.mark.parametrize("attack", [slow_head, head_after_an_answer, nothing_after_an_answer])
def test_slow_clients_are_cut_off(
    monkeypatch: pytest.MonkeyPatch, attack: Callable[[Callable[[bytes], None], Callable[[], bool]], None]
) -> None:
    """A head that comes line by line has to be complete in time, the first and any later one; silence ends too."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.6)
    with Served([Fake("good", good)]) as served, socket.create_connection(("127.0.0.1", served.port), 5) as client:
        ends = time.monotonic() + 30

        def closed() -> bool:
            assert time.monotonic() < ends, "the connection is still open"
            client.settimeout(0.05)
            try:
                return client.recv(65536) == b""
            except TimeoutError:
                return False

        with suppress(BrokenPipeError, ConnectionResetError):
            attack(client.sendall, closed)
        assert 200 == served.get().status


def test_pipelining_without_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends request after request and reads no answer is cut off, and costs little meanwhile."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    with Served([Fake("good", good)]) as served, socket.socket() as client, Watched() as watched:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", served.port))
        client.settimeout(30)
        with pytest.raises(ConnectionError):
            while True:
                client.sendall(HEALTH * 1000)
        assert 200 == served.get().status

    assert watched.memory < 16 * MIB


def test_large_heads_take_no_memory() -> None:
    """60 connections with a mebibyte of headers each: they are cut off at 64 KiB."""
    lines = b"".join(b"X%d: %s\r\n" % (number, b"x" * 8000) for number in range(125))
    with (
        Served([Fake("good", good)]) as served,
        Watched() as watched,
        holding(served.port, 60, b"GET / HTTP/1.1\r\n" + lines),
    ):
        assert 200 == served.get(source="127.0.0.2").status

    assert watched.memory < 24 * MIB


def test_bodies_are_not_unpacked() -> None:
    """A body that gzip makes 60 MiB of is not unpacked: no request has one that counts."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = packer.compress(bytes(60 * MIB)) + packer.flush()
    head = f"POST /-/reload HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    with Served([Fake("good", good)], reload=lambda: None) as served, Watched() as watched:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", served.port), 10) as client:
                client.sendall(head.encode() + body)
                client.recv(4096)
        assert 200 == served.get().status

    assert watched.memory < 16 * MIB


def test_many_heads_of_metrics() -> None:
    """50 HEAD requests at once are each answered, or refused for their number, and the next scrape succeeds."""
    with Served([Fake("good", good)], max_requests=5) as served:
        answers: list[int] = []
        clients = [threading.Thread(target=lambda: answers.append(served.get(method="HEAD").status)) for _ in range(50)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        assert {200, 503} >= set(answers)
        assert 50 == len(answers)
        assert 200 == served.get().status


def test_places_are_free_again() -> None:
    """Connections that ended, were reset or made no handshake leave nothing behind."""
    with Served([Fake("good", good)]) as served:
        with holding(served.port, 100):
            pass
        assert 200 == served.get().status
        table = served.server.connections
        until(lambda: (0, 0) == (len(table), len(table.of_peer)), "no connection is left")  # type: ignore[arg-type, union-attr]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (("127.0.0.1", 4), "loopback"),
        (("127.1.2.3", 4), "loopback"),
        (("::ffff:127.1.2.3", 4, 0, 0), "loopback"),
        (("::1", 4, 0, 0), "loopback"),
        (("10.1.2.3", 4), "10.1.2.3"),
        (("::ffff:10.1.2.3", 4, 0, 0), "10.1.2.3"),
        (("2001:db8:1:2:3:4:5:6", 4, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 4, 0, 2), "fe80::/64"),
        ("", ""),
        (None, ""),
    ],
)
def test_peers(address: object, expected: str) -> None:
    """A peer is an IPv4 address, written as IPv6 too, or a network of addresses that cost nothing: loopback, IPv6 /64.

    No connection of this machine has these addresses: it would be its user's.
    """
    assert expected == peer(address, address)


@pytest.mark.skipif(not socket_users.available(), reason="this kernel has no tcp_diag")
def test_a_user_is_a_peer() -> None:
    """A connection from this machine is its user's, at any address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        for source in ("127.0.0.1", "127.0.0.2"):
            with socket.create_connection(server.getsockname()[:2], 5, (source, 0)) as client:
                assert f"user {os.geteuid()}" == peer(client.getpeername(), client.getsockname())
