"""Requests of LLM servers that read and write by io_uring."""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.bpf.fixtures import once
from tests.bpf.serving_node import Observed, observe
from tests.bpf.test_serving_bytes import CHUNKED, EVENTS, POST, chunk
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="LLM requests", on="stand-in")]

DISABLED = Path("/proc/sys/kernel/io_uring_disabled")
POLLED, DEFERRED = 1 << 1, 1 << 12 | 1 << 13
"""IORING_SETUP_SQPOLL; IORING_SETUP_SINGLE_ISSUER and IORING_SETUP_DEFER_TASKRUN."""
ANSWER = [CHUNKED, *map(chunk, EVENTS), b"0\r\n\r\n"]
LARGE = [CHUNKED, chunk(EVENTS[0]), chunk(b": %s\n\n" % (b"x" * 4_000_000)), *map(chunk, EVENTS[1:]), b"0\r\n\r\n"]
FORMS = {
    **{kind: (kind, 0, ()) for kind in ("read", "fixed", "readv", "recv", "recvmsg", "selected", "zerocopy")},
    **{f"{kind}, deferred": (kind, DEFERRED, ()) for kind in ("read", "recv", "recvmsg", "selected")},
    **{f"{kind}, polled": (kind, POLLED, ()) for kind in ("read", "recvmsg")},
    **{f"{kind}, registered": (kind, 0, ("registered",)) for kind in ("read", "recvmsg", "selected")},
    **{f"{kind}, in a worker": (kind, 0, ("async",)) for kind in ("read", "readv", "recv", "recvmsg")},
}


def used() -> None:
    """Skip where io_uring is switched off."""
    if not DISABLED.exists() or DISABLED.read_text().strip() == "2":
        pytest.skip("this kernel has no io_uring (kernel.io_uring_disabled)")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    used()
    program = tmp_path_factory.mktemp("rings") / "serving_rings"
    source = Path(__file__).with_name("serving_rings.c")
    subprocess.run(["gcc", "-O2", "-o", program, source], check=True)
    return program


@contextmanager
def connected(
    observed: Observed,
    program: Path,
    kind: str,
    setup: int = 0,
    how: Sequence[str] = (),
    answer: Sequence[bytes] = ANSWER,
) -> Iterator[tuple[int, Callable[[], None]]]:
    """Follow a server with this answer, and yield its pid and what makes a request and reads the answer."""
    command = [program, kind, str(setup), *how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin and server.stdout
        observed.follow({server.pid})  # it is waiting for the answer
        server.stdin.write(struct.pack("I", len(answer)))
        for part in answer:
            server.stdin.write(struct.pack("I", len(part)) + part)
        server.stdin.close()
        size = len(b"".join(answer))
        with socket.create_connection(("127.0.0.1", int(server.stdout.readline()))) as client:
            client.settimeout(30)

            def post() -> None:
                client.sendall(POST)
                left = size
                while left:
                    data = client.recv(min(left, 65_536))
                    assert data, "the server ended"
                    left -= len(data)

            try:
                yield server.pid, post
            finally:
                client.close()
                server.kill()


@contextmanager
def following() -> Iterator[Observed]:
    with observe("gpu") as observed:
        yield observed


observed = once(following)


def skip_if_too_old(observed: Observed) -> None:
    """Skip where the kernel does not keep where the bytes are; any other problem fails."""
    problems = list(observed.problems())
    if problems and "Linux 6.10" in problems[0]:
        pytest.skip(problems[0])
    assert not problems


@pytest.fixture
def following_rings(observed: Observed, program: Path) -> Observed:
    """Follow io_uring: a first server has used it."""
    if not observed.object.globals()["ring_calls_unread"]:
        with connected(observed, program, "recv") as (pid, post):
            post()
        list(observed.collect())
    skip_if_too_old(observed)
    return observed


def test_from_the_next_scrape_on(program: Path) -> None:
    """Calls by io_uring are counted as unread until the exporter follows them, which costs nothing before."""
    with following() as observed, connected(observed, program, "recv") as (pid, post):
        post()
        [unread] = [it.value for it in observed.collect() if it.metric.name == "llm.serving.socket.calls.unread"]
        assert unread >= 1 and not observed.of({pid})
        skip_if_too_old(observed)
        post()  # the server waited for this one before: it is seen if the kernel has not taken up the wait yet
        for _ in range(23):
            post()
        until(lambda: len(observed.of({pid})) >= 23, lambda: f"23 answers; there are {len(observed.of({pid}))}")
        assert len(observed.of({pid})) <= 24


@pytest.mark.parametrize("form", FORMS)
def test_23_requests(following_rings: Observed, program: Path, form: str) -> None:
    """Each request is one, whatever the operation and the thread that carries it out."""
    assert_followed(following_rings, program, 23, *FORMS[form])


@pytest.mark.parametrize("form", FORMS)
def test_answers_that_take_many_tries(following_rings: Observed, program: Path, form: str) -> None:
    """A part that is larger than the socket's buffer is read in the pieces in which it was sent."""
    assert_followed(following_rings, program, 5, *FORMS[form], LARGE)


def assert_followed(observed: Observed, program: Path, count: int, *form: Any) -> None:
    """Make so many requests, each of which is one, with all of its answer."""
    before = observed.object.globals()
    with connected(observed, program, *form) as (pid, post):
        for _ in range(count):
            post()
        until(lambda: len(observed.of({pid})) >= count, lambda: f"{count} answers; there are {len(observed.of({pid}))}")
    seen, after = observed.of({pid}), observed.object.globals()

    assert [("200", "tiny", {"input": 7, "output": 3}, "")] * count == [
        (it.status, it.model, it.tokens, it.aborted) for it in seen
    ]
    assert all(it.time_to_first_token for it in seen)
    assert all(before[name] == after[name] for name in ("unread_calls", "unreadable"))
