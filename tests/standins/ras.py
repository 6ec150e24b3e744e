"""NCCL's RAS for tests: a server that speaks its client protocol, in JSON or, as before NCCL 2.28.7, in text only.

Run as a program it serves a report of two ranks: python tests/standins/ras.py [port [id]], where the id is the
ncclUniqueId that the stand-in of NCCL made its communicator of.
"""

from __future__ import annotations

import json
import socketserver
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

COUNTS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def rank(number: int, calls: int, init: int = 0, error: int = 0, host: str = "10.0.0.1") -> dict[str, Any]:
    """A rank that answered, having launched so many AllReduces."""
    return {
        "rank": number,
        "host": host,
        "pid": 1000 + number,
        "cuda_dev": number,
        "nvml_dev": number,
        "status": {
            "init_state": init,
            "async_error": error,
            "finalize_called": False,
            "destroy_flag": False,
            "abort_flag": False,
        },
        "collective_counts": dict.fromkeys(COUNTS, 0) | {"AllReduce": calls},
    }


def missing(number: int, dead: bool = False, unresponsive: bool = True, host: str = "10.0.0.2") -> dict[str, Any]:
    status = {"unresponsive": unresponsive, "considered_dead": dead}
    return {"rank": number, "host": host, "pid": 1000 + number, "cuda_dev": 0, "nvml_dev": 0, "status": status}


def communicator(comm_hash: int, ranks: Iterable[Any], absent: Iterable[Any] = ()) -> dict[str, Any]:
    ranks, absent = list(ranks), list(absent)
    return {
        "hash": f"{comm_hash:#x}",
        "secondary_hash": "0x1:0x2",
        "size": len(ranks) + len(absent),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(absent),
        "ranks": ranks,
        "missing_ranks": absent,
    }


def report(*communicators: Any, timeouts: int = 0) -> str:
    """Return the answer to `SET FORMAT json` and `STATUS`."""
    answer = {
        "nccl_version": "2.29.1",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-01-01 00:00:00",
        "communicators_count": len(communicators),
        "communicators": communicators,
        "ras": {"collection_time_sec": 0.25, "timeouts_count": timeouts},
    }
    return json.dumps(answer, indent=2) + "\n"


class RasServer:
    """Listens on a port of 127.0.0.1 and answers every status query with `answer`; `formats` False: knows no JSON."""

    def __init__(self, answer: str, port: int = 0, formats: bool = True) -> None:
        self.answer, self.formats = answer, formats
        self.hang = threading.Event()
        """While set, a status query is not answered."""
        self.greeting = "SERVER PROTOCOL 2"
        self.queries = 0
        self.commands: list[str] = []
        server = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while line := self.rfile.readline():
                    command = line.decode().strip()
                    server.commands.append(command)
                    if command.lower() in ("status", "verbose status"):
                        server.queries += 1
                        while server.hang.is_set():
                            time.sleep(0.01)
                        self.wfile.write(server.answer.encode())
                        return
                    self.wfile.write((server.reply(command.lower(), command) + "\n").encode())

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = allow_reuse_address = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that went away

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def reply(self, command: str, given: str) -> str:
        if command.startswith("client protocol "):
            return self.greeting
        if command.startswith("timeout ") or (self.formats and command == "set format json"):
            return "OK"
        return f"ERROR: Unknown command {given}"

    def close(self) -> None:
        self.hang.clear()
        self._server.shutdown()
        self._server.server_close()


def hash_of(unique_id: bytes) -> int:
    """The hash that libnccl.c gives a communicator of this id."""
    found = 0xCBF29CE484222325
    for byte in unique_id.ljust(128, b"\0"):
        found = (found ^ byte) * 0x100000001B3 % (1 << 64)
    return found


def main() -> None:
    port = int(sys.argv[1]) if sys.argv[1:] else 28028
    comm_hash = hash_of(sys.argv[2].encode()) if sys.argv[2:] else 0xC0FFEE
    server = RasServer(report(communicator(comm_hash, [rank(0, 23)], [missing(1)])), port)
    print(server.port, flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
