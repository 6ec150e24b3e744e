"""The thread of a request, and how many requests were in flight at its end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from exporter.model import Served
from tests.bpf.fixtures import once
from tests.bpf.http2_node import Http2Client, hypercorn
from tests.bpf.serving_node import Client, Observed, Server, Since, observe, served

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.evidence(feature="links between LLM requests and GPU work", on="real software"),
]

observed = once(observe)


def requests(observed: Observed, server: Server) -> list[Served]:
    found = [it.served for it in observed.spans if it.served]
    return [it for it in found if it.pid in server.pids]


def threads(pid: int) -> set[int]:
    return {int(it.name) for it in Path(f"/proc/{pid}/task").iterdir()}


@pytest.mark.parametrize(("kind", "of_main"), [("uvicorn-asyncio", True), ("gunicorn", False)])
def test_the_thread_of_a_request(observed: Observed, kind: str, of_main: bool) -> None:
    """One event loop has all requests; gunicorn's worker gives each connection to one of its threads."""
    with served(kind) as server:
        since = Since(observed, server)
        for _ in range(23):
            with Client(server) as client:
                client.whole(tokens=5)
        since.answers(23)
        seen = requests(observed, server)
        assert 23 == len(seen)
        assert {it.tid for it in seen} <= threads(seen[0].pid)
        assert ({it.tid for it in seen} == {seen[0].pid}) == of_main
        assert all(0 < it.read_ns < it.end_ns < it.seen_ns for it in seen)


def http1(server: Server, seen: Callable[[], object]) -> None:
    with Client(server) as slow, Client(server) as fast:
        slow.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{")
        fast.settle()
        fast.whole(tokens=5)
        seen()


def http2(server: Server, seen: Callable[[], object]) -> None:
    with Http2Client(server) as slow, Http2Client(server) as fast:
        slow.post(stream=True, tokens=5, first=3600)
        fast.read({fast.post(tokens=5)})
        seen()


@pytest.mark.parametrize(
    ("start", "send"), [(lambda: served("uvicorn-asyncio"), http1), (hypercorn, http2)], ids=["http1", "http2"]
)
def test_a_request_that_is_aborted(
    observed: Observed, start: Callable[[], AbstractContextManager[Server]], send: Callable[..., None]
) -> None:
    """While it is in flight it counts beside another one, which ended; its own end is no thread's."""
    with start() as server:
        since = Since(observed, server)
        send(server, lambda: since.answers(1))
        since.answers(2)
        ended, aborted = requests(observed, server)
        assert (1, ended.pid) == (ended.others, ended.tid)
        assert 0 == aborted.others
