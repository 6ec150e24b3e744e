"""A server of gRPC with requests in JSON: `Generate` streams, `Infer` answers whole. The request is what
tests/bpf/serving_app.py takes, and `fail` ends with that status."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

SERVICE = "vllm.grpc.engine.VllmEngine"


def generate(request: bytes, context: Any) -> Iterator[bytes]:
    wanted = json.loads(request)
    time.sleep(wanted.get("first", 0.0))
    for number in range(wanted["tokens"]):
        if number:
            time.sleep(wanted.get("gap", 0.0))
        yield b"token %d" % number + b" " * wanted.get("size", 0)
    if wanted.get("fail"):
        context.abort(getattr(grpc.StatusCode, wanted["fail"]), "no")


def infer(request: bytes, context: Any) -> bytes:
    return b"".join(generate(request, context))


def main(port: int) -> None:
    methods = {
        "Generate": grpc.unary_stream_rpc_method_handler(generate),
        "Embed": grpc.unary_unary_rpc_method_handler(infer),
    }
    server = grpc.server(ThreadPoolExecutor(80))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main(int(sys.argv[1]))
