"""An LLM server's HTTP side, for servers of ASGI (`application`) and as an aiohttp program: what is wanted for is sent.

The body of a request is JSON: `tokens` to send, seconds before the `first` and between them (`gap`), whether to
`stream`, `usage` to name them at the end, `break` the stream after so many tokens, and `model`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

FIRST_TOKENS: list[float] = []
"""Seconds of each stream."""


def event(data: dict[str, Any] | str) -> bytes:
    return b"data: " + (data if isinstance(data, str) else json.dumps(data)).encode() + b"\n\n"


async def events(wanted: dict[str, Any]) -> AsyncIterator[bytes]:
    """The stream that was wanted for, in the form of OpenAI's chat completions."""
    answer = {"id": "chatcmpl-23", "object": "chat.completion.chunk", "model": wanted.get("model", "tiny")}
    began = time.monotonic()
    await asyncio.sleep(wanted.get("first", 0.0))
    FIRST_TOKENS.append(time.monotonic() - began)
    for number in range(wanted["tokens"]):
        if number:
            await asyncio.sleep(wanted.get("gap", 0.0))
        if number == wanted.get("break"):
            raise ConnectionAbortedError
        yield event({**answer, "choices": [{"index": 0, "delta": {"content": f" {number}"}}], "usage": None})
    if wanted.get("usage", True):
        yield event({**answer, "choices": [], "usage": usage(wanted)})
    yield event("[DONE]")


def usage(wanted: dict[str, Any]) -> dict[str, int]:
    tokens = wanted["tokens"]
    return {"prompt_tokens": 11, "total_tokens": 11 + tokens, "completion_tokens": tokens}


def whole(wanted: dict[str, Any]) -> bytes:
    """The same as one JSON document."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "word " * wanted["tokens"]}}
    model = wanted.get("model", "tiny")
    return json.dumps({"id": "chatcmpl-23", "model": model, "choices": [choice], "usage": usage(wanted)}).encode()


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The program for ASGI servers."""
    if scope["type"] != "http":
        raise NotImplementedError
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    if scope["method"] != "POST":
        return await _whole(send, 200, b"ok")
    wanted = json.loads(body)
    if wanted.get("status", 200) != 200:
        return await _whole(send, wanted["status"], b'{"error": {"message": "no"}}')
    if not wanted.get("stream"):
        await asyncio.sleep(wanted.get("first", 0.0))
        return await _whole(send, 200, whole(wanted))
    head = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    async for one in events(wanted):
        await send({"type": "http.response.body", "body": one, "more_body": True})
    return await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _whole(send: Any, status: int, body: bytes) -> None:
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


def metrics() -> str:
    """The numbers that an engine has of its streams, under vLLM's names."""
    model = 'engine="0",model_name="tiny"'
    begun = len(FIRST_TOKENS)
    gauges = {"num_requests_running": begun % 3, "num_requests_waiting": begun % 2, "kv_cache_usage_perc": 0.5}
    lines = [f"# TYPE vllm:{name} gauge\nvllm:{name}{{{model}}} {value}" for name, value in gauges.items()]
    histogram = "vllm:time_to_first_token_seconds"
    lines += [f"# TYPE {histogram} histogram", f'{histogram}_bucket{{{model},le="+Inf"}} {begun}']
    lines += [f"{histogram}_count{{{model}}} {begun}", f"{histogram}_sum{{{model}}} {sum(FIRST_TOKENS)}", ""]
    return "\n".join(lines)


def aiohttp_program(port: int) -> None:
    """Serve the same with aiohttp."""
    from aiohttp import web

    async def answer(request: web.Request) -> web.StreamResponse:
        wanted = json.loads(await request.read())
        if wanted.get("status", 200) != 200:
            return web.Response(status=wanted["status"], text='{"error": {"message": "no"}}')
        if not wanted.get("stream"):
            await asyncio.sleep(wanted.get("first", 0.0))
            return web.Response(body=whole(wanted), content_type="application/json")
        stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await stream.prepare(request)
        async for one in events(wanted):
            await stream.write(one)
        return stream

    async def health(request: web.Request) -> web.StreamResponse:
        return web.Response(text=metrics() if request.path == "/metrics" else "ok")

    program = web.Application()
    program.router.add_post("/{path:.*}", answer)
    program.router.add_get("/{path:.*}", health)
    web.run_app(program, host="127.0.0.1", port=port, print=None)


if __name__ == "__main__":
    aiohttp_program(int(sys.argv[1]))
