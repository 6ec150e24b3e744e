"""An LLM server that uses the GPU in the thread that answers (own), or in a process that it has started (child).

With "twice" it uses the GPU twice, and needs time after each.
"""

from __future__ import annotations

import ctypes
import json
import socket
import subprocess
import sys
import threading
import time
from typing import IO

from tests.standins.otel_context import Published, process_context

BODY = json.dumps({"object": "chat.completion", "model": "tiny", "usage": {"prompt_tokens": 3, "completion_tokens": 5}})
ANSWER = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}".encode()


def work(driver: ctypes.CDLL) -> None:
    """Wait for the GPU for 30 ms, which has a span."""
    driver.standin_wait(ctypes.c_uint64(30_000_000))
    driver.cuStreamSynchronize(None)


def serve(
    connection: socket.socket, child: subprocess.Popen[bytes] | None, driver: ctypes.CDLL | None, twice: bool
) -> None:
    while connection.recv(65536):
        if driver:
            work(driver)
        if driver and twice:
            time.sleep(0.3)
            work(driver)
            time.sleep(0.3)
        if child:
            work_in(child.stdin, child.stdout)
        connection.sendall(ANSWER)


def work_in(orders: IO[bytes] | None, results: IO[bytes] | None) -> None:
    assert orders
    assert results
    orders.write(b"\n")
    orders.flush()
    assert results.readline()


def engine() -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    for _ in sys.stdin:
        work(driver)
        print(flush=True)


def main(kind: str) -> None:
    published = Published(process_context({"service.name": "published"}))
    child = driver = None
    if kind == "child":
        command = [sys.executable, "-m", "tests.e2e.linked_server", "engine"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    else:
        driver = ctypes.CDLL("libcuda.so.1")
    assert published.size
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(json.dumps({"port": server.getsockname()[1], "engine": child.pid if child else 0}), flush=True)
        while True:
            connection, _ = server.accept()
            threading.Thread(target=serve, args=(connection, child, driver, kind == "twice"), daemon=True).start()


if __name__ == "__main__":
    engine() if sys.argv[1] == "engine" else main(sys.argv[1])
