"""The /metrics of inference engines, from servers with the engines' command lines in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from exporter.model import Distribution, Labels
from exporter.serving import engine_numbers, engine_pages
from exporter.serving.engine_numbers import EngineNumbers
from tests.nodes import make_node
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
"""What int() takes for a size, or more than 32 bits: -6 leads back to the line that it stands in."""
END = b"\r\nvllm:num_requests_waiting 1\r\n0\r\n\r\n"
OK = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"


class Engine:
    """A server of a page, by its process; `answer` changes what it answers."""

    def __init__(self, pid: int, port: int, file: Path) -> None:
        self.pid, self.port, self._file = pid, port, file

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
    """What reads these processes; a port that does not answer takes no 3 s."""
    monkeypatch.setattr(engine_pages, "SECONDS", 0.5)

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


def test_numbers_that_are_not_renewed(tmp_path: Path, numbers: Callable[..., EngineNumbers]) -> None:
    """Numbers stay for three intervals after the last reading that succeeded, and return with the next."""
    with engine(tmp_path, "vllm", texts.VLLM) as vllm:
        read = numbers(vllm.pid, interval=0.2)
        read.read()
        vllm.answer(b"HTTP/1.1 503 Unavailable\r\n\r\n")
        read.read()
        assert {str(vllm.pid): 23} == values(read, "vllm:num_requests_waiting")
        time.sleep(engine_numbers.KEPT * 0.2)
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
