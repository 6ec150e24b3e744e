"""llama.cpp's own server, which nobody here wrote: requests, and tokens as it counts them itself."""

from __future__ import annotations

import json
import random
import socket
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.bpf.fixtures import once
from tests.bpf.llama_node import counted, llama_server
from tests.bpf.serving_node import Client, Observed, Server, observe, request
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="LLM requests", on="real software")]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "the quick brown fox"}], "max_tokens": 20},
    "/v1/completions": {"prompt": "the lazy dog", "max_tokens": 20},
    "/completion": {"prompt": "jumps over", "n_predict": 20},
    "/v1/messages": {"messages": [{"role": "user", "content": "the lazy dog"}], "max_tokens": 20},
    "/v1/responses": {"input": "the fox", "max_output_tokens": 20},
}
TEXT = {"/v1/messages": b"text_delta", "/v1/responses": b"output_text.delta"}
"""Text of a stream's events with a token, by route, where other events come before."""


observed = once(observe)


@pytest.fixture(scope="module")
def server(observed: Observed) -> Iterator[Server]:
    with llama_server() as running:
        until(lambda: _post(running, "/v1/completions", False) and observed.of(running.pids), "it is followed")
        _post(running, "/completion", False)
        until(lambda: observed.of(running.pids)[-1].route == "/completion", "its last request is read")
        yield running


def _post(server: Server, route: str, stream: bool, **wanted: Any) -> tuple[int, bytes]:
    """Return the status and the body of an answer."""
    body = json.dumps({**ROUTES[route], "stream": stream, **wanted}).encode()
    sent = urllib.request.Request(f"http://127.0.0.1:{server.address[1]}{route}", body)
    try:
        with urllib.request.urlopen(sent, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("route", ROUTES)
def test_tokens(observed: Observed, server: Server, route: str, stream: bool) -> None:
    """23 requests of a route: each is one, with the tokens that the server counts, cached ones included."""
    before, known = len(observed.of(server.pids)), counted(server)
    bodies = []
    for _ in range(23):
        status, body = _post(server, route, stream)
        assert 200 == status
        bodies.append(body)
    until(lambda: len(observed.of(server.pids)) - before >= 23, "23 answers")
    answers = observed.of(server.pids)[before:]
    after = counted(server)

    assert {(route, "200", "", 23)} == {(it.route, it.status, it.aborted, len(answers)) for it in answers}
    assert after["output"] - known["output"] == sum(it.tokens["output"] or 0 for it in answers)
    # Of this stream the server omits its first event, which has them, if the first token is no whole character.
    missing = {None} if stream and route == "/v1/messages" else set()
    assert {(after["input"] - known["input"]) / 23} == {it.tokens["input"] for it in answers} - missing
    # Of tokens that are no whole character together, the server sends no text on these two routes.
    sent = [stream and (TEXT.get(route, b"") in body) for body in bodies]
    assert sent == [it.time_to_first_token is not None for it in answers]
    more = [it and (answer.tokens["output"] or 0) > 1 for it, answer in zip(sent, answers, strict=True)]
    assert more == [it.time_per_output_token is not None for it in answers]


def test_many_at_once(observed: Observed, server: Server) -> None:
    """200 requests of 16 clients, of which 37 go before the end and 50 are refused: each is one."""
    before = len(observed.of(server.pids))
    kinds = ["gone"] * 37 + ["refused"] * 50 + ["stream"] * 60 + ["whole"] * 53
    random.Random(1).shuffle(kinds)

    def one(kind: str) -> None:
        if kind == "gone":
            with Client(server) as client:
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # it cannot be sent all before
                client.send(
                    request("/v1/completions", prompt="the fox", max_tokens=10_000, stream=True, ignore_eos=True)
                )
                client.socket.recv(1)
        elif kind == "refused":
            assert 400 == _post(server, "/v1/chat/completions", False, messages="none")[0]
        else:
            assert 200 == _post(server, "/v1/completions", kind == "stream")[0]

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, kinds))
    until(lambda: len(observed.of(server.pids)) - before >= 200, lambda: str(len(observed.of(server.pids)) - before))
    found = Counter((it.status, it.aborted) for it in observed.of(server.pids)[before:])
    assert {("200", "client_gone"): 37, ("400", ""): 50, ("200", ""): 113} == found
