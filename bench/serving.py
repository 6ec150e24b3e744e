"""Cost of socket calls with LLM requests followed: run times of the programs, and a process that is not followed.

Rounds alternate between the kinds of calls, and between programs that are attached and not, so that all see the same
noise.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from os import getpid
from pathlib import Path
from statistics import median

import hpack

from bench.result import Result
from exporter.bpf import object_path
from exporter.bpf.libbpf import Object, Program, run_time_statistics
from tests.bpf.serving_node import Observed, observe
from tests.bpf.test_serving_bytes import CHUNKED, POST, chunk
from tests.bpf.test_serving_frames import BEGUN, HEAD, REQUEST, data, head

ROUNDS, CALLS, PAIRS, MOST = 25, 2000, 20_000, 65_536
BRIEF = {"ROUNDS": 5, "CALLS": 500, "PAIRS": 5000}
BUDGET = 500
"""Nanoseconds of a call of a followed process."""
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % (b"x" * 203)
MESSAGE = b"\0" + struct.pack(">I", 256) + b"x" * 256
GRPC_HEAD = head(hpack.Encoder(), "application/grpc")
STREAMS = {
    "an event over HTTP/1.1": (POST, CHUNKED, chunk(EVENT)),
    "an event over HTTP/2": (REQUEST, BEGUN + HEAD, data(EVENT, end=False)),
    "a message of gRPC": (REQUEST, BEGUN + GRPC_HEAD, data(MESSAGE, end=False)),
    "data that is not HTTP": (b"", b"", EVENT),
}
"""Requests of a client, the first bytes of their answers, and the writes that follow."""
CALLS_OF_OTHERS = {
    "a write": ("on_send",),
    "a read": ("on_receive",),
    "an arrival": ("on_data",),
    "a write and its read": ("on_send", "on_receive", "on_data"),
}
BUDGETS_OF_OTHERS = {"a write": 150, "a read": 150, "an arrival": None, "a write and its read": None}
PROGRAMS = {"sent": "on_send", "received": "on_receive", "arrived": "on_data"}
OTHER = """
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
int main(void)
{
    static char bytes[256];
    int ends[2], order;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
        return 1;
    while ((order = getchar()) != EOF) {
        double start = now();
        for (int i = 0; i < PAIRS; i++)
            if (write(ends[0], bytes, sizeof(bytes)) != sizeof(bytes) ||
                read(ends[1], bytes, sizeof(bytes)) != sizeof(bytes))
                return 1;
        printf("%.1f\\n", (now() - start) / PAIRS);
        fflush(stdout);
    }
    return 0;
}
"""
Burst = Callable[[], object]
Times = dict[str, float]


def run() -> list[Result]:
    """Takes half a minute; needs root, BPF and gcc."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        other = stack.enter_context(_other(Path(folder)))
        observed = stack.enter_context(observe("gpu"))
        observed.follow({getpid()})
        bursts: dict[str, Burst] = {what: stack.enter_context(_stream(*parts)) for what, parts in STREAMS.items()} | {
            "a process that is not followed": other
        }
        stack.enter_context(closing(run_time_statistics()))
        observed.object.programs["sweep"].run()
        times = _program_times(observed, bursts)
    with (
        tempfile.TemporaryDirectory() as folder,
        _other(Path(folder)) as other,
        Object(object_path("serving")) as loaded,
    ):
        more = _more(other, loaded.programs)
    note = f"run time of the program by the kernel's clock, less that of an empty one; median of {ROUNDS} rounds"
    results = [
        Result(
            f"{what}, {action}", found[action], "ns", BUDGET if action != "arrived" and what in STREAMS else None, note
        )
        for what, found in times.items()
        for action in PROGRAMS
    ]
    ratio = times["an event over HTTP/2"]["sent"] / times["an event over HTTP/1.1"]["sent"]
    pair = f"CPU time more than with nothing attached, median of {ROUNDS} interleaved rounds of {PAIRS} pairs"
    return [
        *results,
        Result("an event over HTTP/2 against one over HTTP/1.1, sent", ratio, "ratio"),
        *(
            Result(f"a process that is not followed, {what}", more[what], "ns", budget, pair)
            for what, budget in BUDGETS_OF_OTHERS.items()
        ),
    ]


@contextmanager
def _stream(request: bytes, answer: bytes, event: bytes) -> Iterator[Burst]:
    """A burst of writes of a server on a TCP connection, in the middle of an answer."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
        listening.accept()[0] as server,
    ):
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if request:
            client.sendall(request)
            server.recv(MOST)
            server.sendall(answer)
            client.recv(MOST)

        def burst() -> None:
            for _ in range(CALLS):
                server.sendall(event)
                client.recv(MOST)

        burst()
        yield burst


@contextmanager
def _other(folder: Path) -> Iterator[Callable[[], float]]:
    """A process that is not followed: nanoseconds of CPU time of a write and its read."""
    program = folder / "other"
    command = ["gcc", "-O2", f"-DPAIRS={PAIRS}", "-x", "c", "-", "-o", program]
    subprocess.run(command, input=OTHER, text=True, timeout=60, check=True)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        given, printed = process.stdin, process.stdout

        def burst() -> float:
            given.write("x")
            given.flush()
            return float(printed.readline())

        try:
            yield burst
        finally:
            given.close()


def _program_times(observed: Observed, bursts: Mapping[str, Burst]) -> dict[str, Times]:
    """Nanoseconds of a run of each program by kind of call, without the time that measuring takes."""
    empty = observed.object.programs["sweep"]  # it has nothing to do without Unix sockets and TLS
    programs = {action: observed.object.programs[name] for action, name in PROGRAMS.items()}
    measuring: list[float] = []
    found: dict[str, list[Times]] = {what: [] for what in bursts}
    for _ in range(ROUNDS):
        measuring.append(_each({"": empty}, lambda: [empty.run() for _ in range(CALLS)])[""])
        for what, burst in bursts.items():
            found[what].append(_each(programs, burst))
    return {
        what: {action: median(it[action] for it in times) - median(measuring) for action in PROGRAMS}
        for what, times in found.items()
    }


def _each(programs: Mapping[str, Program], burst: Burst) -> Times:
    before = {action: program.stats() for action, program in programs.items()}
    burst()
    times = {}
    for action, program in programs.items():
        nanoseconds, runs = (now - then for now, then in zip(program.stats(), before[action], strict=True))
        times[action] = nanoseconds / max(1, runs)
    return times


def _more(other: Callable[[], float], programs: Mapping[str, Program]) -> Times:
    """Nanoseconds that a write and its read take longer while one of the programs is attached, and all of them."""
    found: dict[str, list[float]] = {what: [] for what in CALLS_OF_OTHERS}
    for _ in range(ROUNDS):
        bare = other()
        for what, attached in CALLS_OF_OTHERS.items():
            with ExitStack() as stack:
                for name in attached:
                    stack.callback(programs[name].attach().close)
                found[what].append(other() - bare)
    return {what: median(times) for what, times in found.items()}
