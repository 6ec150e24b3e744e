"""Slots for requests: what one peer holds at most, and that another one is answered meanwhile."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from exporter.model import Kind, Metric, Sample
from exporter.web.request_slots import RequestSlots
from tests.standins.served import Fake, Served
from tests.support import until

VALUE = Metric("test.value", "A value.", Kind.GAUGE, labels=("of",))
GREEDY, OTHER = "127.0.0.2", "127.0.0.1"
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"

pytestmark = pytest.mark.usefixtures("peers_by_address")


@contextmanager
def requesting(port: int, connections: int, requests: int) -> Iterator[list[socket.socket]]:
    """Connections of one peer that each sent so many requests at once, and do not read."""
    with ExitStack() as stack:
        clients = []
        for _ in range(connections):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.settimeout(10)
            client.bind((GREEDY, 0))
            client.connect(("127.0.0.1", port))
            client.sendall(REQUEST * requests)
            clients.append(client)
        yield clients


def held(served: Served) -> Counter[str]:
    return Counter(served.server.slots.of_peer)


def test_one_peer_pipelines_while_another_scrapes() -> None:
    """60 connections of a peer with 25 requests each hold half of the slots; another peer and health get no 503."""
    gate = threading.Event()

    def slow() -> Iterable[Sample]:
        gate.wait()
        return []

    with Served([Fake("slow", slow)], max_requests=40) as served, requesting(served.port, 60, 25):
        until(lambda: held(served)[GREEDY] == 20)
        answers: list[int] = []
        scrapes = [threading.Thread(target=lambda: answers.append(served.get().status)) for _ in range(5)]
        for scrape in scrapes:
            scrape.start()
        until(lambda: held(served)[OTHER] == 5)
        assert [200, 200] == [served.get(path, source=GREEDY).status for path in ("/-/healthy", "/-/ready")]
        assert 503 == served.get(source=GREEDY).status
        assert {GREEDY: 20, OTHER: 5} == held(served)
        gate.set()
        for scrape in scrapes:
            scrape.join()

        assert [200] * 5 == answers


def test_one_peer_does_not_read_while_another_scrapes() -> None:
    """60 connections of a peer that reads none of its large answers: another peer's scrapes are all answered."""
    samples = [VALUE.sample(n, {"of": "x" * 200 + str(n)}) for n in range(20_000)]
    with Served([Fake("big", lambda: samples)], max_requests=8) as served, requesting(served.port, 60, 5):
        until(lambda: held(served)[GREEDY] == 4)
        assert [200] * 5 == [served.get("/metrics?exclude[]=big").status for _ in range(5)]
        assert 4 == held(served)[GREEDY]


def test_pipelined_requests_take_turns() -> None:
    """Ten requests that one connection sends at once hold one slot, and all are answered."""
    gate = threading.Event()

    def slow() -> Iterable[Sample]:
        gate.wait()
        return []

    with Served([Fake("slow", slow)], max_requests=40) as served, requesting(served.port, 1, 10) as [client]:
        until(lambda: held(served)[GREEDY] == 1)
        assert 200 == served.get("/-/healthy").status
        assert {GREEDY: 1} == held(served)
        gate.set()
        received = b""
        while received.count(b"HTTP/1.1 200 OK") < 10:
            received += client.recv(65536)
        until(lambda: not held(served))


def test_slots_of_a_client_that_left_are_free_again() -> None:
    """A client that closes the connection instead of waiting does not keep the slot."""
    gate = threading.Event()

    def slow() -> Iterable[Sample]:
        gate.wait()
        return []

    with Served([Fake("slow", slow)], max_requests=4) as served:
        with requesting(served.port, 2, 3):
            until(lambda: held(served)[GREEDY] == 2)
        gate.set()
        until(lambda: not held(served))
        assert 200 == served.get(source=GREEDY).status


@pytest.mark.parametrize(
    ("most", "peers", "given"),
    [
        (1, ["a"], [True]),
        (1, ["a", "b"], [True, False]),
        (2, ["a", "a", "b", "c"], [True, False, True, False]),
        (4, ["a", "a", "a", "b", "b", "c"], [True, True, False, True, False, True]),
        (8, [*"aaaaabbbcdce"], [True] * 4 + [False, True, True, False, True, True, False, False]),
        (0, ["a"] * 50, [True] * 50),
    ],
)
def test_shares(most: int, peers: list[str], given: list[bool]) -> None:
    """Half of the slots for one peer, the last quarter for peers without one; no limit at 0."""
    slots = RequestSlots(most)
    with ExitStack() as stack:
        assert given == [stack.enter_context(slots.take(peer)) for peer in peers]
        assert given.count(True) == len(slots)
    assert 0 == len(slots)
    with suppress(KeyError), slots.take("a"):
        raise KeyError
    assert 0 == len(slots)
