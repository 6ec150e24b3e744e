"""Eight GPUs by NVML at the default intervals: memory and CPU of both processes, and how often NVML is called.

The GPUs are the stand-in's, so the driver's own share of a call's time is missing.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from bench.result import Result
from tests.standins import nvml
from tests.standins.nvml import Scenario

GPUS, PROCESSES = 8, 4
SCRAPE_INTERVAL = 15.0
SECONDS = 60.0
BRIEF = {"SECONDS": SCRAPE_INTERVAL}
_ROOT = Path(__file__).parents[1]


def run() -> list[Result]:
    """Takes about 80 seconds. RuntimeError where the exporter does not start."""
    nvml.build()
    with tempfile.TemporaryDirectory() as folder:
        jobs = {
            f"gpu{gpu}.process.{place}": f"{os.getpid() + place} compute 1073741824 50 20"
            for gpu in range(GPUS)
            for place in range(PROCESSES)
        }
        scenario = Scenario(Path(folder), gpus=GPUS, **jobs)
        with _exporter(scenario) as (url, exporter):
            _settle(url)
            child = _child(exporter)
            calls, cpu = sum(scenario.calls().values()), _cpu(exporter, child)
            times = list(_scrapes(url))
            calls, used = sum(scenario.calls().values()) - calls, _cpu(exporter, child)
            series = _scrape(url).count(b"\n")
            memory = exporter.memory_info().rss, child.memory_info().rss
    own, childs = ((after - before) / SECONDS * 100 for before, after in zip(cpu, used, strict=True))
    note = f"{GPUS} GPUs with 18 links, {PROCESSES} processes each; a scrape every {SCRAPE_INTERVAL:.0f} s"
    return [
        Result("lines of a page", series, "lines", None, note),
        Result("NVML calls", calls * 60 / SECONDS, "a minute", None, f"{calls / GPUS * 60 / SECONDS:.0f} for a GPU"),
        Result("memory of the child", memory[1] / 1e6, "MB", 25),
        Result("memory of both processes", sum(memory) / 1e6, "MB", 96),
        Result("CPU of the child", childs, "% of a core", None, "without the time inside a real driver"),
        Result("CPU of both processes", own + childs, "% of a core", 0.5, f"over {SECONDS:.0f} s"),
        Result("slowest scrape", max(times) * 1000, "ms", 60, "a client's wall time"),
    ]


@contextmanager
def _exporter(scenario: Scenario) -> Iterator[tuple[str, psutil.Process]]:
    """An exporter with the collectors that are on by default, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "exporter", f"--web.listen-address={address}"]
    with subprocess.Popen(command, cwd=_ROOT, env=os.environ | scenario.environment(), stderr=subprocess.DEVNULL) as it:
        try:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                with suppress(OSError):
                    if b"gpu_sm_active_ratio" in _scrape(f"http://{address}/metrics"):
                        break
                time.sleep(0.2)
            else:
                raise RuntimeError("the exporter has reported no GPU within 60 s")
            yield f"http://{address}/metrics", psutil.Process(it.pid)
        finally:
            it.terminate()


def _child(exporter: psutil.Process) -> psutil.Process:
    """The one that calls NVML; another, which reads machine code, ends when it has nothing to do."""
    for it in exporter.children():
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if "exporter.nvml.child.worker" in it.cmdline():
                return it
    raise RuntimeError("there is no process that calls NVML")


def _settle(url: str) -> None:
    """The first pages cost more than those that follow."""
    for _ in range(3):
        _scrape(url)
        time.sleep(1)


def _scrapes(url: str) -> Iterator[float]:
    """The seconds that each scrape takes, at the usual interval for the time measured."""
    for _ in range(int(SECONDS / SCRAPE_INTERVAL)):
        began = time.monotonic()
        _scrape(url)
        yield time.monotonic() - began
        time.sleep(SCRAPE_INTERVAL - (time.monotonic() - began))


def _scrape(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        page: bytes = answer.read()
    return page


def _cpu(*processes: psutil.Process) -> list[float]:
    return [sum(process.cpu_times()[:2]) for process in processes]
