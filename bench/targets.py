"""Cost of finding libraries on a node with 2,000 processes: first look, 20 execs a second, a hostile process."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.result import Result
from exporter.bpf.library import Library
from exporter.bpf.targets import Targets

PROCESSES = 2000
SECONDS = 10.0
EXECS_PER_SECOND = 20
BRIEF = {"PROCESSES": 1000, "SECONDS": 2.0}
HOSTILE = """
import mmap, os
while True:
    file = os.memfd_create("x")
    os.truncate(file, 4096)
    mmap.mmap(file, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
    os.close(file)
"""


class Wanted:
    """150 names that no library here has, and one that exists nowhere else."""

    symbols = frozenset({f"cuMemSomething{i}" for i in range(150)})

    def attach(self, library: Library) -> Wanted:
        return self

    def close(self) -> None: ...

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None: ...

    def processes_ended(self, pids: Collection[int]) -> None: ...

    def processes_replaced(self, pids: Collection[int]) -> Collection[int]:
        return ()


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def thread_seconds(thread: int) -> float:
    """CPU time of a thread of this process, from schedstat (nanoseconds)."""
    return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) / 1e9


@contextmanager
def sleepers(count: int) -> Iterator[None]:
    running = [subprocess.Popen(["sleep", "600"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()


def cpu_share(thread: int, seconds: float, load: Callable[[], None]) -> float:
    """The part of one CPU that a thread used, in percent, while `load` was called over and over."""
    before, until = thread_seconds(thread), time.monotonic() + seconds
    while time.monotonic() < until:
        load()
    return 100 * (thread_seconds(thread) - before) / seconds


def run_true() -> None:
    started = time.monotonic()
    subprocess.run(["true"], check=True)
    time.sleep(max(0.0, 1 / EXECS_PER_SECOND - (time.monotonic() - started)))


def run() -> list[Result]:
    with sleepers(PROCESSES):
        before = resident_mb()
        targets = Targets()
        targets.want(Wanted())
        started = time.monotonic()
        targets.start()
        targets.scanned.wait(60)
        first = time.monotonic() - started
        [thread] = [thread.native_id or 0 for thread in threading.enumerate() if thread.name == "targets"]
        examined = targets.status.examined
        idle = cpu_share(thread, SECONDS / 2, lambda: time.sleep(0.1))
        busy = cpu_share(thread, SECONDS, run_true)
        with subprocess.Popen([sys.executable, "-c", HOSTILE]) as hostile:
            attacked = cpu_share(thread, SECONDS / 2, lambda: time.sleep(0.1))
            hostile.kill()
        lost = targets.status.lost
        lister = targets.status.lister
        targets.close()
        grown = resident_mb() - before
    return [
        Result("first look", first * 1e3, "ms", note=f"{PROCESSES} processes and {examined} files, by {lister}"),
        Result("CPU of a quiet node", idle, "% of a core", note="whatever else runs here starts processes, too"),
        Result(f"CPU at {EXECS_PER_SECOND} execs a second", busy, "% of a core"),
        Result("CPU under attack", attacked, "% of a core", note=f"one process maps new files endlessly; {lost} lost"),
        Result("resident memory", grown, "MB", note="of the search, after all that"),
    ]
