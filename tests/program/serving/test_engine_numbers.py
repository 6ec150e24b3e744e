"""The /metrics of inference engines, from servers with the engines' command lines in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exporter import loopback
from exporter.loopback import Endpoint
from exporter.model import Distribution, Labels
from exporter.serving import engine_numbers, engine_pages
from exporter.serving.engine_numbers import EngineNumbers
from tests.nodes import make_node
from tests.support import PATIENCE
from tests.unit.serving import engine_texts as texts

SERVER = """
import socket, sys, time
def listen():
    made = socket.socket(); made.bind(("127.0.0.1", 0)); made.listen(); return made
silent, server = sorted((listen() for _ in range(2)), key=lambda it: it.getsockname())  # the silent one is first
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    request = connection.recv(4096)
    if not request.startswith(b"GET " + sys.argv[1].encode() + b" HTTP/1.0"):
        connection.sendall(b"HTTP/1.1 404 Not Found\\r\\n\\r\\n")
    else:
        with open(sys.argv[2], "rb") as file:
            connection.sendall(file.read())
    connection.close()
"""
SIZES = (b"-6", b"-20", b"+4", b"0x4", b"1_0", b" 4", b"", b"fffffffff")
"""Sizes that int() accepts in another form or that exceed 32 bits: -6 leads back to the line that has it."""
END = b"\r\nvllm:num_requests_waiting 1\r\n0\r\n\r\n"
OK = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"


ANSWERING: set[int] = set()
"""Ports of engines that answer, however late on a busy machine."""


class Engine:
    """A server of a page, by its process; `answer` changes what it answers."""

    def __init__(self, pid: int, port: int, file: Path) -> None:
        self.pid, self.port, self._file = pid, port, file
        ANSWERING.add(port)

    def answer(self, data: str | bytes) -> None:
        self._file.write_bytes(data if isinstance(data, bytes) else data.encode())


@contextmanager
def engine(folder: Path, script: str, text: str, path: str = "/metrics") -> Iterator[Engine]:
    """An engine with a port that does not answer, and one with this text; the command line has the script's name."""
    folder.mkdir(exist_ok=True)
    program, page = folder / script, folder / "page"
    program.write_text(SERVER)
    page.write_text(OK + text, newline="")
    with subprocess.Popen([sys.executable, program, path, page], stdout=subprocess.PIPE) as process:
        assert process.stdout
        try:
            yield Engine(process.pid, int(process.stdout.readline()), page)
        finally:
            process.kill()


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., EngineNumbers]]:
    """Return a maker of EngineNumbers for these processes; a port that does not answer takes 0.5 s instead of 3 s."""
    read = engine_pages.read

    def patiently(proc: Path, pid: int, at: Endpoint, engine: str) -> str:
        monkeypatch.setattr(engine_pages, "SECONDS", PATIENCE if at.port in ANSWERING else 0.5)
        return read(proc, pid, at, engine)

    monkeypatch.setattr(engine_pages, "read", patiently)

    def make(*pids: int, interval: float = 60.0) -> EngineNumbers:
        processes = SimpleNamespace(labels=lambda pid: {"pid": str(pid), "pod": "p"})
        return EngineNumbers(make_node({}, processes), lambda: pids, interval)

    yield make


def values(numbers: EngineNumbers, name: str) -> dict[str, object]:
    """The values of a metric by pid."""
    return {it.labels["pid"]: it.value for it in numbers.samples() if it.metric.name == name}


def reads(numbers: EngineNumbers) -> Labels:
    name = "llm.serving.engine.metrics.reads"
    return {it.labels["result"]: str(it.value) for it in numbers.samples() if it.metric.name == name}


def test_engines(tmp_path: Path, numbers: Callable[..., EngineNumbers]) -> None:
    """Three engines, each under its own names with the labels of its process; a process that is none is not read."""
    with ExitStack() as stack:
        vllm = stack.enter_context(engine(tmp_path / "v", "vllm", texts.VLLM))
        llama = stack.enter_context(engine(tmp_path / "l", "llama-server", texts.LLAMA_CPP))
        trtllm = stack.enter_context(engine(tmp_path / "t", "trtllm-serve", texts.TENSORRT_LLM, "/prometheus/metrics"))
        other = stack.enter_context(engine(tmp_path / "o", "job.py", texts.VLLM))
        read = numbers(vllm.pid, llama.pid, trtllm.pid, other.pid)
        read.read()

        assert {str(vllm.pid): 23} == values(read, "vllm:num_requests_waiting")
        assert {str(llama.pid): 23} == values(read, "llamacpp:requests_deferred")
        assert [str(trtllm.pid)] == list(values(read, "trtllm_time_to_first_token_seconds"))
        assert ({"read": "3", "failed": "0"}, ()) == (reads(read), read.problems())
        [sample] = [it for it in read.samples() if it.metric.name == "vllm:num_requests_waiting"]
        assert {"pid": str(vllm.pid), "pod": "p", "engine": "0"}.items() <= sample.labels.items()


def test_what_engines_have_in_common(tmp_path: Path, numbers: Callable[..., EngineNumbers]) -> None:
    """Waiting and running requests, KV cache and first tokens have one name each; of two ranks they are one number."""
    second = texts.VLLM.replace('engine="0"', 'engine="1"').replace("0.875", "0.5")
    values_of_both = "".join(line + "\n" for line in second.splitlines() if not line.startswith("#"))
    with (
        engine(tmp_path / "v", "vllm", texts.VLLM + values_of_both) as vllm,
        engine(tmp_path / "s", "sglang", texts.SGLANG) as sglang,
    ):
        read = numbers(vllm.pid, sglang.pid)
        read.read()

        both = {str(vllm.pid): 46, str(sglang.pid): 23}
        assert both == values(read, "llm.engine.requests.waiting")
        assert {str(vllm.pid): 14, str(sglang.pid): 7} == values(read, "llm.engine.requests.running")
        assert dict.fromkeys(both, 0.875) == values(read, "llm.engine.kv_cache.utilization")
        first = Distribution((0.001, 0.5), (0, 6, 4), 9.0)
        assert {str(vllm.pid): first} == values(read, "llm.engine.time_to_first_token")
        [sample] = [it for it in read.samples() if it.metric.name == "llm.engine.time_to_first_token"]
        assert ("meta-llama/Llama-3.1-8B", "vllm") == (sample.labels["model"], sample.labels["engine"])


def test_a_port_without_metrics_is_left_alone(
    tmp_path: Path, numbers: Callable[..., EngineNumbers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port that did not answer is not tried again; the one with metrics is read each time."""
    ports: list[int] = []
    read_page = engine_pages.read
    monkeypatch.setattr(engine_pages, "read", lambda *given: (ports.append(given[2].port), read_page(*given))[1])
    with engine(tmp_path, "vllm", texts.VLLM) as vllm:
        read = numbers(vllm.pid)
        read.read()
        first = len(ports)
        read.read()

        assert (2, [vllm.port]) == (first, ports[first:])
        assert {"read": "2", "failed": "0"} == reads(read)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0\r\n",
        b"HTTP/1.1 500 Error\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nvllm:n 1",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        *(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + END for size in SIZES),
        b"HTTP/1.1 200 OK\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (engine_pages.MOST_BYTES + 1),
    ],
    ids=["nothing", "no HTTP", "500", "cut", "no chunks", *map(repr, SIZES), "no metrics", "too large"],
)
def test_answers_that_are_none(tmp_path: Path, numbers: Callable[..., EngineNumbers], answer: bytes) -> None:
    """An answer without metrics is no number, and the page for people has the reason."""
    with engine(tmp_path, "vllm", texts.VLLM) as vllm:
        vllm.answer(answer)
        read = numbers(vllm.pid)
        read.read()

        assert {} == values(read, "vllm:num_requests_waiting")
        [problem] = read.problems()
        assert f"process {vllm.pid}" in problem


def test_numbers_that_are_not_renewed(
    tmp_path: Path, numbers: Callable[..., EngineNumbers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers stay for three intervals after the last reading that succeeded, and return with the next."""
    with engine(tmp_path, "vllm", texts.VLLM) as vllm:
        read, clock = numbers(vllm.pid), time.monotonic
        read.read()
        vllm.answer(b"HTTP/1.1 503 Unavailable\r\n\r\n")
        read.read()
        assert {str(vllm.pid): 23} == values(read, "vllm:num_requests_waiting")
        monkeypatch.setattr("time.monotonic", lambda: clock() + engine_numbers.KEPT * 60)
        read.read()
        assert ({}, "2") == (values(read, "vllm:num_requests_waiting"), reads(read)["failed"])


def test_chunks(tmp_path: Path, numbers: Callable[..., EngineNumbers]) -> None:
    """A server that sends chunks all the same is read."""
    body = texts.TGI.encode()
    chunks = b"".join(b"%X ;name=value\r\n%s\r\n" % (len(part), part) for part in (body[:20], body[20:]))
    with engine(tmp_path, "text-generation-router", "") as tgi:
        tgi.answer(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        read = numbers(tgi.pid)
        read.read()
        assert {str(tgi.pid): 23} == values(read, "tgi_queue_size")


def test_a_process_that_has_ended(numbers: Callable[..., EngineNumbers]) -> None:
    """A process that has ended is no failure."""
    read = numbers(1 << 22)
    read.read()
    assert ({"read": "0", "failed": "0"}, ()) == (reads(read), read.problems())


def test_an_engine_leaves_room_for_others(
    tmp_path: Path, numbers: Callable[..., EngineNumbers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page with too many series is cut itself, and names that are ever new keep nobody from having some."""
    monkeypatch.setattr(engine_numbers, "MOST_SERIES", 40)
    small = "# TYPE vllm:n gauge\nvllm:n 23\n"
    with engine(tmp_path / "g", "vllm", "") as greedy, engine(tmp_path / "o", "vllm", small) as other:
        read = numbers(greedy.pid, other.pid)
        for turn in range(3):
            names = [f"vllm:n{turn}_{number}" for number in range(100)]
            greedy.answer(OK + "".join(f"# TYPE {name} gauge\n{name} 1\n" for name in names))
            read.read()
            shown = [it.metric.name for it in read.samples() if it.metric.name.startswith("vllm:")]
            assert {str(other.pid): 23} == values(read, "vllm:n")
            assert 40 == len(shown) > 39 == len({*names}.intersection(shown))


def test_slow_engines_are_last(
    tmp_path: Path, numbers: Callable[..., EngineNumbers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that makes itself waited for delays others once, and a round ends in time."""
    order, now = list[int](), 100.0
    read_page = engine_pages.read

    def slowly(proc: Path, pid: int, *given: Any) -> str:
        nonlocal now
        order.append(pid)
        if pid == slow.pid:
            now += 1.2
        return read_page(proc, pid, *given)

    monkeypatch.setattr(
        engine_pages, "endpoints", lambda proc, pid: [Endpoint(0, at.port) for at in all_ if at.pid == pid]
    )
    monkeypatch.setattr(loopback, "is_own", lambda *_: True)
    monkeypatch.setattr(engine_pages, "read", slowly)
    with engine(tmp_path / "s", "vllm", texts.VLLM) as one, engine(tmp_path / "o", "vllm", texts.VLLM) as another:
        slow, other = all_ = sorted((one, another), key=lambda engine: engine.pid)
        read = numbers(slow.pid, other.pid, interval=1.0)
        monkeypatch.setattr("time.monotonic", lambda: now)
        for _ in range(3):
            read.read()

    assert [slow.pid, other.pid, slow.pid, other.pid, slow.pid] == order


def test_a_pid_that_another_process_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that stay for some intervals after their process are not shown as those of the next one of its pid."""
    labels = {"pod": "first"}
    processes = SimpleNamespace(labels=lambda pid: {"pid": str(pid), **labels})
    with engine(tmp_path, "vllm", texts.VLLM) as vllm:
        read = EngineNumbers(make_node({}, processes), lambda: (vllm.pid,), 60.0)
        read.read()
    labels["pod"] = "second"

    assert {"first"} == {it.labels["pod"] for it in read.samples() if it.metric.name.startswith("vllm:")}
