"""The program of serving_app.py for servers of WSGI."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from serving_app import event, usage, whole


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    if environ["REQUEST_METHOD"] != "POST":
        return _whole(start_response, "200 OK", b"ok")
    wanted = json.loads(environ["wsgi.input"].read())
    if wanted.get("status", 200) != 200:
        return _whole(start_response, f"{wanted['status']} No", b'{"error": {"message": "no"}}')
    if not wanted.get("stream"):
        time.sleep(wanted.get("first", 0.0))
        return _whole(start_response, "200 OK", whole(wanted))
    start_response("200 OK", [("Content-Type", "text/event-stream")])
    return _events(wanted)


def _whole(start_response: Callable[..., Any], status: str, body: bytes) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


def _events(wanted: dict[str, Any]) -> Iterator[bytes]:
    time.sleep(wanted.get("first", 0.0))
    for number in range(wanted["tokens"]):
        if number:
            time.sleep(wanted.get("gap", 0.0))
        if number == wanted.get("break"):
            raise ConnectionAbortedError
        yield event({"model": "tiny", "choices": [{"index": 0, "delta": {"content": f" {number}"}}], "usage": None})
    yield event({"model": "tiny", "choices": [], "usage": usage(wanted)})
    yield event("[DONE]")
