"""9. Memory and CPU of the exporter over a long load."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psutil

from tests.gpu.machine import Machine
from tests.gpu.outcome import Row, expect

NUMBER = 9
MOST_BYTES, MOST_CPU, MOST_GROWTH = 96e6, 0.005, 4e6
"""The budgets of `make bench`; growth from the half of the time to its end, in bytes."""


def run(machine: Machine) -> Iterator[Row]:
    with machine.job("eager") as job, machine.exporter() as exporter:
        job.run("eager", 1)
        time.sleep(min(5.0, machine.soak))
        loading = threading.Event()
        loader = threading.Thread(target=lambda: [job.run("tiny", 10) for _ in iter(loading.is_set, True)])
        loader.start()
        try:
            began, spent = time.monotonic(), _cpu(exporter.process)
            sizes = []
            while time.monotonic() - began < machine.soak:
                exporter.scrape()
                sizes.append(_resident(exporter.process))
                time.sleep(min(15.0, machine.soak / 4))
            share = (_cpu(exporter.process) - spent) / (time.monotonic() - began)
        finally:
            loading.set()
            loader.join()
    half = sizes[len(sizes) // 2]
    seconds = f"over {machine.soak:.0f} s"
    yield expect(
        NUMBER, "resident memory of all its processes", max(sizes) <= MOST_BYTES, f"{max(sizes) / 1e6:.1f} MB {seconds}"
    )
    yield expect(
        NUMBER, "growth in the second half", sizes[-1] - half <= MOST_GROWTH, f"{(sizes[-1] - half) / 1e6:.1f} MB"
    )
    short = machine.soak < 300  # scraped often, begun just before, and beside other tests
    limit = MOST_CPU * (60 if short else 1)
    yield expect(NUMBER, "CPU of all its processes", share <= limit, f"{share:.2%} of a core, at most {limit:.1%}")


def _all(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def _resident(process: psutil.Process) -> int:
    return sum(it.memory_full_info().pss for it in _all(process))  # what processes share counts once


def _cpu(process: psutil.Process) -> float:
    return float(sum(sum(it.cpu_times()[:2]) for it in _all(process)))
