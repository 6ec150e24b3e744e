"""The exporter as a whole at 10,000 series: memory, CPU at a scrape every 15 s, time of a scrape, time to detach.

Jobs that hold the stand-in libraries make the series; a node_exporter, where Debian's is installed, is the peer.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from bench.result import Result
from tests.support import free_port

SERIES = 10_000
SCRAPE_INTERVAL = 15.0
_STANDINS = Path(__file__).parents[1] / "tests" / "standins" / "build"
_CALLS = ("--launches", "3", "--allocations", "3", "--copies", "3", "--waits", "3")
_JOB = [_STANDINS / "workload", *_CALLS, "--hold"]
_MAX_JOBS = 600
_SCRAPES = 15
IDLE_SECONDS = 10.0
BRIEF = {"SERIES": 2000, "_SCRAPES": 5, "IDLE_SECONDS": 3.0}


def run() -> list[Result]:
    """Takes about a minute. RuntimeError where the exporter does not start."""
    with ExitStack() as stack:
        port, exporter = stack.enter_context(running())
        jobs = _fill(stack, port)
        lines = _series(port)
        scrape(port)
        idle = _cpu(exporter, IDLE_SECONDS)
        times, busy = _scrapes(port, exporter)
        memory = _resident(exporter)
        began = time.monotonic()
        exporter.terminate()
        exporter.wait(30)
        detach = time.monotonic() - began
    share = idle + busy / SCRAPE_INTERVAL
    results = [
        Result("series", lines, "lines", None, f"from {jobs} processes that use both libraries"),
        Result("resident memory", memory / 1e6, "MB", 64, "after the scrapes"),
        Result("one scrape", statistics.median(times) * 1e3, "ms", 60, "a client's wall time, median, not compressed"),
        Result("CPU of one scrape", busy * 1e3, "ms", None, "user and system"),
        Result(
            "CPU between scrapes", idle * 100, "% of a core", None, f"over {IDLE_SECONDS:g} s, no process comes or goes"
        ),
        Result("CPU at a scrape every 15 s", share * 100, "% of a core", 0.5, "both together"),
        Result("detach and end", detach, "s", 5, "SIGTERM to gone"),
    ]
    return results + _peer(statistics.median(times) / lines)


@contextmanager
def running(*flags: str) -> Iterator[tuple[int, psutil.Popen]]:
    port = free_port()
    command = [sys.executable, "-m", "exporter", f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    command += ["--profile=debug", "--collector.cuda.series-limit=100000"]  # as many lines as the bench fills
    command += ["--no-collector.nvml"]  # where there is no NVML its child starts now and then; `bench nvml` measures it
    command += flags
    with child(command) as process:
        _wait_for(port, "/-/ready", process)
        yield port, process


@contextmanager
def child(command: list[str | Path], **options: object) -> Iterator[psutil.Popen]:
    process = psutil.Popen([str(part) for part in command], **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _fill(stack: ExitStack, port: int) -> int:
    """Starts jobs, ten at a time, until there are SERIES lines; how many it took."""
    for jobs in range(10, _MAX_JOBS + 1, 10):
        for _ in range(10):
            stack.enter_context(
                child(
                    _JOB,
                    env={"LD_LIBRARY_PATH": str(_STANDINS)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                )
            )
        time.sleep(1)
        if _series(port) >= SERIES:
            return jobs
    raise RuntimeError(f"{_MAX_JOBS} jobs gave {_series(port)} series: are the probes attached?")


def _series(port: int) -> int:
    return sum(not line.startswith(b"#") for line in scrape(port).splitlines())


def scrape(port: int, path: str = "/metrics") -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
        body: bytes = response.read()
        return body


def _scrapes(port: int, exporter: psutil.Popen) -> tuple[list[float], float]:
    """Wall time of each scrape, and the CPU time the exporter spent on one."""
    before, times = _spent(exporter), []
    for _ in range(_SCRAPES):
        began = time.perf_counter()
        scrape(port)
        times.append(time.perf_counter() - began)
    return times, (_spent(exporter) - before) / _SCRAPES


def _cpu(process: psutil.Popen, seconds: float) -> float:
    before = _spent(process)
    time.sleep(seconds)
    return (_spent(process) - before) / seconds


def _spent(process: psutil.Popen) -> float:
    """CPU seconds of a process and its children, those that have ended too."""
    spent = sum(process.cpu_times()[:4])
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            spent += sum(child.cpu_times()[:4])
    return float(spent)


def _resident(process: psutil.Popen) -> int:
    return int(process.memory_info().rss)


def _peer(ours_per_line: float) -> list[Result]:
    """Measure the cost of a line of node_exporter (Go) in the same minute; no results where not installed."""
    program = shutil.which("prometheus-node-exporter")
    if program is None:
        return []
    port = free_port()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with child([program, f"--web.listen-address=127.0.0.1:{port}"], **quiet) as peer:
        _wait_for(port, "/metrics", peer)
        times, _ = _scrapes(port, peer)
        lines, memory = _series(port), _resident(peer)
    per_line = statistics.median(times) / lines
    return [
        Result("a line, against node_exporter's", ours_per_line / per_line, "times", None, f"its {lines} lines"),
        Result("node_exporter's resident memory", memory / 1e6, "MB", None, f"at {lines} lines"),
    ]


def _wait_for(port: int, path: str, process: psutil.Popen) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            scrape(port, path)
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"{process.args[0]} did not answer on port {port}")
