"""Requests of LLM servers through proxies that nobody here wrote: each is one at the proxy, and one at the server."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress

import pytest

from tests.bpf.fixtures import once
from tests.bpf.http2_node import Http2Client
from tests.bpf.proxy_node import PROXIES, proxy
from tests.bpf.serving_node import ROUTE, Client, Observed, Server, Since, observe, request, served

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="LLM requests", on="real software")]
Hops = tuple[Server, Server]


observed = once(observe)


@pytest.fixture(scope="module", params=PROXIES)
def hops(request: pytest.FixtureRequest) -> Iterator[Hops]:
    with served("uvicorn-uvloop") as server, proxy(request.param, server) as front:
        yield front, server


@pytest.fixture
def splices(request: pytest.FixtureRequest) -> bool:
    return "splice" in request.node.callspec.params["hops"]


@pytest.fixture
def ends_early(request: pytest.FixtureRequest) -> bool:
    """Return whether the proxy ends some answers after their head, with an error of its own, as Caddy 2.6 does."""
    return "caddy" in request.node.callspec.params["hops"]


def test_streams(observed: Observed, hops: Hops) -> None:
    """23 streams of 4 clients: each is one at both, with its tokens; at the proxy its first token is later.

    Caddy 2.6 ends one of a thousand after its head, with an error of its own: that one has no tokens for its client.
    """
    since = [Since(observed, it) for it in hops]

    def streams(count: int) -> list[tuple[float, float, float]]:
        with Client(hops[0]) as client:
            return [client.stream(tokens=5, first=0.02, gap=0.01) for _ in range(count)]

    with ThreadPoolExecutor(4) as pool:
        times = [it for found in pool.map(streams, (6, 6, 6, 5)) for it in found]
    front, server = (it.answers(23) for it in since)
    arrived = sum(first > 0 for first, _, _ in times)
    whole = [[it for it in answers if it.model] for answers in (front, server)]

    assert {("200", ROUTE, "")} == {(it.status, it.route, it.aborted) for it in front}
    assert arrived == len(whole[0]) <= len(whole[1]) and arrived >= 20
    for answers in whole:
        assert {("200", "tiny", ROUTE, "")} == {(it.status, it.model, it.route, it.aborted) for it in answers[:arrived]}
        assert [{"input": 11, "output": 5}] * arrived == [it.tokens for it in answers[:arrived]]
        assert all(0.018 <= (it.time_to_first_token or 0) <= (it.duration or 0) for it in answers[:arrived])
    if arrived == 23:
        # Of a single one the server's call may return later than the proxy's, which has what it sent.
        first = [statistics.median(it.time_to_first_token or 0 for it in answers) for answers in whole]
        assert first[0] >= first[1]


def whole_answers(front: Server, ends_early: bool) -> int:
    """Get 23 whole answers, among what is no POST. Returns the number of requests: some were ended by the proxy."""
    made = done = 0
    while done < 23:
        with Client(front) as client, suppress(ConnectionResetError) if ends_early else nullcontext():
            while done < 23:
                made += 1
                client.whole(tokens=2000)
                done += 1
                client.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                client.receive_whole()
    return made


def test_whole_answers(observed: Observed, hops: Hops, splices: bool, ends_early: bool) -> None:
    """23 whole answers of one connection, among what is no POST: tokens of those that the proxy does not splice."""
    since = [Since(observed, it) for it in hops]
    made = whole_answers(hops[0], ends_early)
    for answers in (it.answers(made) for it in since):
        found = Counter((it.status, it.route, it.aborted) for it in answers)
        assert 23 <= found[("200", ROUTE, "")] and found.total() == made
        known = Counter(it.tokens.get("output") for it in answers)
        assert known.keys() <= {2000, None} and (splices or known[2000] >= 23)


def test_clients_that_go(observed: Observed, hops: Hops, ends_early: bool) -> None:
    """7 clients leave in the middle of a stream, and their proxy does the same; Caddy may have ended one itself."""
    time.sleep(0.5)  # the test before may have left answers that end late
    since = [Since(observed, it) for it in hops]
    for _ in range(7):
        with Client(hops[0]) as client:
            client.send(request(stream=True, tokens=100, gap=0.2))
            client.receive_head()
        time.sleep(0.05)
    front, server = (Counter((it.route, it.status, it.aborted) for it in one.answers(7)) for one in since)
    left, ended = (ROUTE, "200", "client_gone"), (ROUTE, "200", "")
    assert {left: 7} == server
    assert front.keys() <= ({left, ended} if ends_early else {left})
    assert front[left] >= 4


def test_http2_at_the_proxy(observed: Observed, hops: Hops) -> None:
    """23 streams of 2 connections of HTTP/2, which the proxy requests over HTTP/1.1, and 3 that are reset."""
    since = [Since(observed, it) for it in hops]
    for count in (12, 11):
        with Http2Client(hops[0]) as client:
            client.read({client.post(stream=True, tokens=5, first=0.02, gap=0.01) for _ in range(count)})
    with Http2Client(hops[0]) as client:
        for _ in range(3):
            made = client.post(stream=True, tokens=100, gap=0.05)
            client.read_first(made)
            client.reset(made)
        found = [it.answers(26) for it in since]

    for answers in found:
        expected = {("200", ROUTE, ""): 23, ("200", ROUTE, "client_gone"): 3}
        assert expected == Counter((it.status, it.route, it.aborted) for it in answers)
        assert 23 * 5 == sum(it.tokens.get("output") or 0 for it in answers)
