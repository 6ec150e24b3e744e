"""Reading machine code in a child process."""

from __future__ import annotations

import io
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from exporter.bpf import apart, placement
from exporter.bpf.apart import Worker
from exporter.bpf.elf import Elf
from exporter.bpf.placement import cheaper, place
from exporter.verbs.providers import Found, ProviderNames, find

PROGRAM = Path(sys.executable).resolve()
MOVED = bytes.fromhex("f30f1efa 4889f8 55 4889e5 c3")
"""endbr64; mov rax, rdi; push rbp; …"""


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker(idle=0.5, seconds=2)
    yield made
    made.close()


def test_call(worker: Worker) -> None:
    """A result, an error and a file come through."""
    assert 7 == worker.call(cheaper, MOVED)
    with Elf.open(PROGRAM) as elf:
        found = worker.call(find, elf, None, ProviderNames("python"))
        assert isinstance(found, Found)
        assert found == find(elf, None, ProviderNames("python"))
    with pytest.raises(FileNotFoundError):
        worker.call(os.stat, "/nonexistent")
    with pytest.raises(ValueError, match="invalid literal"):
        worker.call(int, "x")


def test_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places found in the child are those found here."""
    with Elf.open(PROGRAM) as elf:
        functions = list(elf.functions(None).values())[:300]
        there = [place(elf, function) for function in functions]
        monkeypatch.setattr(placement, "_apart", cheaper)
        assert [place(elf, function) for function in functions] == there


def test_ends_when_idle(worker: Worker) -> None:
    """The child ends without work, and the next call has another one."""
    worker.call(cheaper, MOVED)
    first = worker._process
    assert first and first.wait(5) == 0
    assert 7 == worker.call(cheaper, MOVED)
    assert worker._process and worker._process.pid != first.pid


def test_crash(worker: Worker) -> None:
    """A child that dies is replaced once; who dies again is an error of that call only."""
    worker.call(cheaper, MOVED)
    assert worker._process
    os.kill(worker._process.pid, signal.SIGKILL)
    worker._process.wait(5)
    assert 7 == worker.call(cheaper, MOVED)
    with pytest.raises(OSError, match="died"):
        worker.call(os._exit, 3)
    assert 7 == worker.call(cheaper, MOVED)


def test_hang(worker: Worker) -> None:
    """What takes too long is ended."""
    began = time.monotonic()
    with pytest.raises(OSError, match="took longer than 2 s"):
        worker.call(time.sleep, 60)
    assert time.monotonic() - began < 4
    assert 7 == worker.call(cheaper, MOVED)


@dataclass
class Evil:
    """An answer that would run something here."""

    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("taken over",))


def test_hostile_answer(worker: Worker) -> None:
    """A child that was taken over by what it read cannot have anything run here."""
    for evil in (Evil(), os.system, Path("/")):
        with pytest.raises(pickle.UnpicklingError):
            apart._Answer(io.BytesIO(pickle.dumps((True, evil)))).load()


def test_threads(worker: Worker) -> None:
    """Calls of many threads are each answered with their own result."""
    results: dict[int, int] = {}

    def ask(number: int) -> None:
        results[number] = worker.call(len, "x" * number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: number for number in range(20)} == results


def test_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process can be started, probes are at the symbols."""
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    monkeypatch.setattr(placement, "WORKER", Worker())
    with Elf.open(PROGRAM) as elf:
        for function in list(elf.functions(None).values())[:100]:
            assert not place(elf, function).moved
