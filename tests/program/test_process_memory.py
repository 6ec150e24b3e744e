"""Reading of a process's memory where the kernel does not answer, and where the first thread has ended.

A named pipe nobody writes to stands for a file of a process that keeps its memory map locked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter import process_memory
from exporter.background import patience
from exporter.background.patience import Patience, Unanswered
from exporter.bpf import library
from exporter.bpf.mappings import ProcLister
from exporter.ras.client import RasError, endpoint
from exporter.resolve import devices
from exporter.resolve.process import ProcessTable, start_time
from tests.program.test_process import Now, process
from tests.support import PATIENCE, until

LOCKED, OTHER = 7, 8
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    process(tmp_path, LOCKED, environ=b"SLURM_JOB_ID=42\0OTEL_SERVICE_NAME=train\0")
    process(tmp_path, OTHER, environ=b"SLURM_JOB_ID=43\0")
    return tmp_path


@pytest.fixture
def lock(proc: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Path]]:
    """Locks a process of `proc`; all are unlocked at the end."""
    made = Patience("test")
    call = made.call

    def patiently(key: tuple[Path, int], function: Any, seconds: float) -> Any:
        """Only what is locked has a time limit: what a busy machine does late is not."""
        return call(key, function, seconds if (proc / str(key[1]) / "environ").is_fifo() else PATIENCE)

    monkeypatch.setattr(made, "call", patiently)
    monkeypatch.setattr(process_memory, "PATIENCE", made)
    monkeypatch.setattr(process_memory, "SECONDS", 0.1)
    locked = list[Path]()

    def make(pid: int) -> Path:
        path = proc / str(pid) / "environ"
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        locked.append(path)
        return path

    yield make
    for path in locked:
        answer(path)
    until(lambda: not process_memory.PATIENCE.waiting, "all calls returned")


def answer(path: Path, content: bytes = b"") -> None:
    """Lets those go on who wait; whoever comes later finds an ordinary file."""
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    path.unlink()
    path.write_bytes(content)
    os.close(pipe)


def environ(proc: Path, pid: int) -> bytes:
    return process_memory.read(proc, pid, "environ", 1 << 20)


def test_one_that_does_not_answer(proc: Path, lock: Callable[[int], Path]) -> None:
    """One thread waits for it, once; others are read, and it is too when the kernel has answered."""
    path = lock(LOCKED)
    with pytest.raises(Unanswered) as first:
        environ(proc, LOCKED)
    assert first.value.new
    assert b"SLURM_JOB_ID=43\0" == environ(proc, OTHER)
    threads = {*threading.enumerate()}
    for _ in range(100):
        with pytest.raises(Unanswered) as later:
            environ(proc, LOCKED)
        assert not later.value.new
    assert {*threading.enumerate()} <= threads
    answer(path, b"A=1\0")
    until(lambda: not process_memory.PATIENCE.waiting, "the call returned")
    assert b"A=1\0" == environ(proc, LOCKED)


def test_threads_that_wait_are_bounded(
    proc: Path, lock: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound nobody waits, and no thread is made."""
    monkeypatch.setattr(process_memory, "SECONDS", 0.01)
    monkeypatch.setattr(process_memory, "LEAST_SECONDS", 0.01)
    monkeypatch.setattr(patience, "MOST_WAITING", 4)
    before = threading.active_count()
    for pid in range(100, 120):
        lock(pid)
        with pytest.raises(Unanswered):
            environ(proc, pid)
    assert before + 4 >= threading.active_count()
    assert 4 == len(process_memory.PATIENCE.waiting)


def test_labels_without_the_environment(proc: Path, lock: Callable[[int], Path]) -> None:
    """Labels are those of the kernel, and complete when it answers; a label that was known stays."""
    now = Now()
    table = ProcessTable(proc, proc, now=now)
    path = lock(LOCKED)
    assert {"pid": "7", "comm": "python3"} == table.labels(LOCKED)
    answer(path, b"SLURM_JOB_ID=42\0OTEL_SERVICE_NAME=train\0")
    until(lambda: not process_memory.PATIENCE.waiting, "the call returned")
    now.time += 10
    known = table.identity(LOCKED)
    assert ("42", "train") == (known.labels["slurm_job_id"], known.resource["service.name"])
    lock(LOCKED)
    now.time += 10
    assert known == table.identity(LOCKED)


def test_ras_of_a_locked_process(proc: Path, lock: Callable[[int], Path]) -> None:
    """The endpoint of a process that keeps its memory map locked is unknown."""
    (proc / str(LOCKED) / "ns").mkdir()
    (proc / str(LOCKED) / "ns" / "net").write_bytes(b"")
    lock(LOCKED)
    with pytest.raises(RasError, match="memory map locked"):
        endpoint(proc, LOCKED)


LEADERLESS = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"""
"""The first thread ends by exit(2), as pthread_exit does, and another goes on."""


@pytest.fixture(scope="module")
def leaderless() -> Iterator[int]:
    """The pid of a process of which the first thread has ended."""
    environment = os.environ | {"SLURM_JOB_ID": "42"}
    job = subprocess.Popen([sys.executable, "-c", LEADERLESS], stdout=subprocess.PIPE, env=environment)
    try:
        assert job.stdout and job.stdout.readline()
        until(lambda: b") Z " in Path(f"/proc/{job.pid}/stat").read_bytes(), "the first thread ended")
        yield job.pid
    finally:
        job.kill()
        job.communicate()


def test_first_thread_has_ended(leaderless: int) -> None:
    """The labels, the mappings and the confinement of the process are those that its other threads show."""
    proc = Path("/proc")
    assert "42" == ProcessTable().labels(leaderless)["slurm_job_id"]
    mappings = ProcLister().of([leaderless])
    assert any(it.number == Path(sys.executable).stat().st_ino for it in mappings)
    suspended = max(time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns() for _ in range(10))
    assert {start_time(proc, leaderless)} == {round((it.started + suspended) / 1e9 * TICKS) for it in mappings}
    (living := process_memory.living(proc, leaderless)).joinpath("environ").read_bytes()
    assert str(leaderless) != living.name
    assert devices.names(proc, leaderless)


def test_file_of_a_process_without_its_first_thread(leaderless: int) -> None:
    """A mapped file is examined through another thread."""
    mapping = next(it for it in ProcLister().of([leaderless]) if it.number == Path(sys.executable).stat().st_ino)
    found = library.examine(Path("/proc"), mapping, {"main", "Py_BytesMain", "_start"})
    assert found
    os.close(found.held.descriptor)
    assert Path(sys.executable).samefile(found.library.path)
