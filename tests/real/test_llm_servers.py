"""vLLM's and SGLang's servers, followed at their sockets: requests, tokens as they count them, and their metrics."""

from __future__ import annotations

import http.client
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from tests.bpf import serving_node
from tests.bpf.serving_node import Client, Observed, Server, observe
from tests.gpu.machine import Exporter
from tests.real import table
from tests.real.llm_servers import ENGINES, MODEL, counted, llm_server
from tests.real.releases import SGLANG, VLLM, Release
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(900),
    pytest.mark.evidence(feature="LLM requests", on="real software"),
]
SOFTWARE = (VLLM, SGLANG)
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "the quick brown fox"}], "max_tokens": 20},
    "/v1/completions": {"prompt": "the lazy dog", "max_tokens": 20},
    "/v1/messages": {"messages": [{"role": "user", "content": "jumps over"}], "max_tokens": 20},
    "/v1/responses": {"input": "the fox", "max_output_tokens": 20},
}
TOKEN = {
    "/v1/chat/completions": b"data: ",
    "/v1/completions": b"data: ",
    "/v1/messages": b"content_block_delta",
    "/v1/responses": b"output_text.delta",
}
"""Text of the first line of a stream with a token."""
USAGE = ("/v1/chat/completions", "/v1/completions")
"""Routes where a stream has the number of tokens on request."""


@pytest.fixture(scope="module")
def observed() -> Iterator[Observed]:
    with observe() as collector:
        yield collector


@pytest.fixture(scope="module")
def server(release: Release, observed: Observed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with llm_server(release, tmp_path_factory.mktemp("server")) as running:
        until(lambda: _post(running, "/v1/completions", False) and _answers(observed, running), "it is followed")
        time.sleep(0.5)  # its last request is read
        yield running


def _answers(observed: Observed, server: Server) -> list[Any]:
    return observed.of({server.process.pid})


def _body(route: str, stream: bool) -> dict[str, Any]:
    usage = {"stream_options": {"include_usage": True}} if stream and route in USAGE else {}
    return {"model": MODEL, **ROUTES[route], "stream": stream, **usage}


def _post(server: Server, route: str, stream: bool, **wanted: Any) -> tuple[int, float]:
    """Return the status of a response that is read to its end, and the seconds until its first token."""
    first = 0.0
    with closing(http.client.HTTPConnection(*server.address, timeout=120)) as client:
        client.connect()
        began = time.monotonic()
        client.request("POST", route, json.dumps(_body(route, stream) | wanted), {"content-type": "application/json"})
        answer = client.getresponse()
        while line := answer.readline():
            if not first and TOKEN[route] in line:
                first = time.monotonic() - began
        return answer.status, first


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("route", ROUTES)
def test_tokens(
    release: Release, request: pytest.FixtureRequest, observed: Observed, server: Server, route: str, stream: bool
) -> None:
    """Chat, completions, messages and responses, 23 whole and 23 as a stream: tokens, first tokens, models, statuses"""
    before, known = len(_answers(observed, server)), counted(release, server)
    clients = [_post(server, route, stream)[1] for _ in range(23)]
    until(lambda: len(_answers(observed, server)) - before >= 23, "23 answers")
    answers = _answers(observed, server)[before:]
    output = sum(it.tokens["output"] or 0 for it in answers)

    def grown(name: str) -> float:
        """Return by how much a counter of the server has grown."""
        return counted(release, server)[name] - known.get(name, 0)

    until(lambda: grown("generation_tokens_total") >= output, "the server has counted")
    assert output == grown("generation_tokens_total")
    assert {(route, MODEL, "200", "")} == {(it.route, it.model, it.status, it.aborted) for it in answers}
    prompts = {it.tokens["input"] for it in answers}
    assert prompts == {grown("prompt_tokens_total") / 23}
    assert [stream] * 23 == [it.time_to_first_token is not None for it in answers]
    more = [stream and (it.tokens["output"] or 0) > 1 for it in answers]
    assert more == [it.time_per_output_token is not None for it in answers]
    if stream:
        seen = [it.time_to_first_token or 0 for it in answers]
        # A client may read before the server's call has returned, or late: servers keep the processors busy.
        assert [] == [pair for pair in zip(seen, clients, strict=True) if pair[0] > pair[1] + 0.05]
        assert 0.05 > min(client - it for it, client in zip(seen, clients, strict=True))
    table.note(request.node, f"23 requests, {output} tokens")


def test_many_at_once(release: Release, request: pytest.FixtureRequest, observed: Observed, server: Server) -> None:
    """200 requests of 16 clients, of which 37 go before the end and 50 are refused: each is one, by its status"""
    before = len(_answers(observed, server))
    kinds = ["gone"] * 37 + ["refused"] * 50 + ["stream"] * 60 + ["whole"] * 53
    random.Random(1).shuffle(kinds)

    def one(kind: str) -> None:
        if kind == "gone":
            with Client(server) as client:
                wanted = {"model": MODEL, "prompt": "the fox", "max_tokens": 60_000, "ignore_eos": True, "stream": True}
                client.send(serving_node.request("/v1/completions", **wanted))
                client.socket.recv(1)
        elif kind == "refused":
            assert 400 == _post(server, "/v1/chat/completions", False, messages="none")[0]
        else:
            assert 200 == _post(server, "/v1/completions", kind == "stream")[0]

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, kinds))
    until(
        lambda: len(_answers(observed, server)) - before >= 200, lambda: str(len(_answers(observed, server)) - before)
    )
    found = Counter((it.status, it.aborted) for it in _answers(observed, server)[before:])
    assert {("200", "client_gone"): 37, ("400", ""): 50, ("200", ""): 113} == found
    table.note(request.node, "200 requests")


def test_engine_numbers(release: Release, request: pytest.FixtureRequest, server: Server) -> None:
    """The server's own metrics, found on its port and passed on: tokens, first tokens, time in front of the engine"""
    flags = ["--collector.serving", "--collector.serving.processes=all", "--collector.serving.engine-metrics"]
    pid, prefix = str(server.process.pid), ENGINES[release.name].prefix
    with Exporter((*flags, "--collector.serving.engine-interval=1"), dict(os.environ)) as exporter:
        first = "gen_ai_server_time_to_first_token_seconds"

        def both() -> bool:
            """Return whether a request is seen at the socket, and by the engine."""
            _post(server, "/v1/completions", True)
            page = exporter.scrape()
            return bool(page.total(f"{first}_count", pid=pid) and page.total(f"{prefix}prompt_tokens_total", pid=pid))

        exporter.until(both, "the server is not followed")
        start = exporter.scrape()
        for _ in range(23):
            assert 200 == _post(server, "/v1/completions", True)[0]
        own = counted(release, server)
        exporter.until(
            lambda: (
                exporter.scrape().total(f"{prefix}generation_tokens_total", pid=pid) == own["generation_tokens_total"]
            ),
            "the server's tokens are not those of its page",
        )
        page = exporter.scrape()
    assert own["prompt_tokens_total"] == page.total(f"{prefix}prompt_tokens_total", pid=pid)
    engine = "llm_engine_time_to_first_token_seconds"
    assert own["time_to_first_token_seconds_count"] == page.total(f"{engine}_count", pid=pid)
    assert 23 == page.total(f"{first}_count", pid=pid) - start.total(f"{first}_count", pid=pid)

    def mean(name: str) -> float:
        """Return the mean of the seconds to the first token."""
        seconds, count = (
            (page.total(f"{name}_{it}", pid=pid) or 0) - (start.total(f"{name}_{it}", pid=pid) or 0)
            for it in ("sum", "count")
        )
        return seconds / count

    assert mean(first) > mean(engine) > 0
    assert {"tiny-llama": 0} == page.by("model", "llm_engine_requests_running", pid=pid)
    table.note(request.node, f"{own['generation_tokens_total']:,.0f} tokens")
