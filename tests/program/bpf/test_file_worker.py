"""Reading files in child processes: results, errors, time, memory, rights, and file systems that do not answer."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.bpf import file_worker, file_worker_child, placement
from exporter.bpf import find_places as finding
from exporter.bpf.elf import Elf, ElfError, TakesLonger
from exporter.bpf.file_worker import ChildError, FileArgument, FileWorker, Stuck, TooLong
from exporter.bpf.find_places import find_places
from exporter.bpf.library import Library, search
from exporter.verbs.code.providers import ProviderFunctions, ProviderNames, find
from tests.program.bpf.test_elf import sparse
from tests.support import PATIENCE
from tests.unit.bpf import file_worker_calls, fuse
from tests.unit.bpf.fuse import hung

__all__ = ["hung"]

ROOT = Path(__file__).parents[3]
PROGRAM = Path(sys.executable).resolve()


@pytest.fixture
def worker() -> Iterator[FileWorker]:
    made = FileWorker(idle=5, patience=1)
    yield made
    made.close()


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children that are killed end in time, as on a machine that is not busy."""
    monkeypatch.setattr(file_worker_child, "_KILL_SECONDS", PATIENCE)


def library(path: Path) -> Library:
    with Elf.open(path) as elf:
        return Library((0, 0), str(path), str(path), elf.machine, elf.build_id, elf.functions(None))


def test_call(worker: FileWorker) -> None:
    """A result, an error and a file come through."""
    assert 7 == worker.call(file_worker_calls.number, "7")
    found = worker.call(find, FileArgument(str(PROGRAM)), None, ProviderNames("python"))
    with Elf.open(PROGRAM) as elf:
        assert isinstance(found, ProviderFunctions)
        assert found == find(elf, None, ProviderNames("python"))
    with pytest.raises(FileNotFoundError):
        worker.call(file_worker_calls.find_file, "x")
    with pytest.raises(ElfError, match="invalid literal"):
        worker.call(file_worker_calls.number, "x")


def test_files(worker: FileWorker, tmp_path: Path) -> None:
    """A file is the one that is expected, and a regular one; one that is held stays what it is."""
    found = PROGRAM.stat()
    file = FileArgument(str(PROGRAM), found.st_size, found.st_mtime_ns)
    assert found.st_size == worker.call(file_worker_calls.size, file)
    for other in (FileArgument(str(PROGRAM), 1, found.st_mtime_ns), FileArgument(str(PROGRAM), found.st_size, 1)):
        with pytest.raises(FileNotFoundError):
            worker.call(file_worker_calls.size, other)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null"), tmp_path):
        with pytest.raises(ElfError, match="not a regular file"):
            worker.call(file_worker_calls.size, FileArgument(str(path)))
    result, held = worker.call_and_hold(file_worker_calls.size, file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.read(held.descriptor, 1)
    assert (found.st_size, found.st_uid) == (result, held.owner)
    assert found.st_ino == Path(f"/proc/self/fd/{held.descriptor}").stat().st_ino
    os.close(held.descriptor)


def test_a_slice_of_time(worker: FileWorker, tmp_path: Path) -> None:
    """A call that exceeds its slice is stopped without ending the child; the same file is read without a slice."""
    path = FileArgument(str(sparse(tmp_path / "sparse.so")))
    assert 3 == worker.call(file_worker_calls.number, "3")
    child = worker.child
    with pytest.raises(TakesLonger):
        worker.call_and_hold(search, path, ["needle"], [], [], within=0.01)
    assert child is worker.child
    with pytest.raises(TooLong):
        worker.call_and_hold(search, path, ["needle"], [], [])


def test_same_places() -> None:
    """Places found in the child are those found here."""
    program = library(PROGRAM)
    names = list(program.functions)[:300]
    there = find_places(program, names)
    with Elf.open(PROGRAM) as elf:
        assert there.found == {it: placement.place(elf, program.functions[it]) for it in there.found}
    assert set(names) == there.found.keys() | there.same.keys()


def test_ends_when_idle() -> None:
    """Both processes end without work, and the next call has others."""
    worker = FileWorker(idle=0.2)
    worker.call(file_worker_calls.number, "7")
    first = worker.child
    assert first and first.process.wait(20) == 0
    poll = select.poll()
    poll.register(first.reader_pidfd, select.POLLIN)
    assert poll.poll(20_000)
    assert 7 == worker.call(file_worker_calls.number, "7")
    assert worker.child and worker.child.process.pid != first.process.pid
    worker.close()


def test_crash(worker: FileWorker) -> None:
    """A child that dies is replaced once; who dies again is an error of that call only."""
    worker.call(file_worker_calls.number, "7")
    for kill in (lambda child: child.process.pid, lambda child: child.reader):
        assert worker.child
        os.kill(kill(worker.child), signal.SIGKILL)
        assert 7 == worker.call(file_worker_calls.number, "7")
    with pytest.raises(ChildError, match="died"):
        worker.call(file_worker_calls.leave, 3)
    assert 7 == worker.call(file_worker_calls.number, "7")


def test_too_much_work() -> None:
    """A call that exceeds its CPU time is ended, by its own time and not by the clock, and counted."""
    worker = FileWorker(seconds=0.3, patience=60)
    assert worker.call(file_worker_calls.wait, 1.0) is None
    with pytest.raises(TooLong, match="of the processor"):
        worker.call(file_worker_calls.work, 60.0)
    assert (1, 0) == (worker.too_long, worker.stuck)
    assert 0.3 <= worker.spent() < 10
    assert 7 == worker.call(file_worker_calls.number, "7")
    worker.close()


def test_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slower processor the time limit is longer in proportion."""
    worker = FileWorker(seconds=0.2)
    worker.call(file_worker_calls.number, "7")
    assert worker.child
    worker.child.slowness = 20.0
    assert worker.call(file_worker_calls.work, 1.0) is None
    worker.close()


def test_hang(worker: FileWorker) -> None:
    """A child that does nothing at all is given up."""
    with pytest.raises(Stuck):
        worker.call(file_worker_calls.wait, 300.0)
    assert 1 == worker.stuck
    assert 7 == worker.call(file_worker_calls.number, "7")


def test_interrupted() -> None:
    """A thread that waits for a child is interrupted when the exporter ends."""
    worker = FileWorker(patience=300)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            worker.call(file_worker_calls.wait, 300.0)
        except Stuck as error:
            failed.append(error)

    worker.call(file_worker_calls.number, "7")
    thread = threading.Thread(target=run)
    thread.start()
    while not worker._lock.locked():
        time.sleep(0.01)
    while thread.is_alive():
        worker.interrupt()
        thread.join(0.1)
    assert failed
    worker.close()


@pytest.mark.usefixtures("killed")
def test_a_stopped_child_is_no_stuck_device(worker: FileWorker) -> None:
    """A child that somebody stops is replaced, and its file's device is not blamed: the file is read at once again."""
    file = FileArgument(str(PROGRAM), device=PROGRAM.stat().st_dev)
    assert PROGRAM.stat().st_size == worker.call(file_worker_calls.size, file)
    assert worker.child
    os.kill(worker.child.reader, signal.SIGSTOP)
    with pytest.raises(Stuck, match="was stopped"):
        worker.call(file_worker_calls.size, file)
    assert (PROGRAM.stat().st_size, 0) == (worker.call(file_worker_calls.size, file), worker.stuck)


@pytest.mark.usefixtures("killed")
def test_interrupted_is_not_stuck() -> None:
    """Whoever reads files next, after a reload, reads those of the same device: nothing was wrong with it."""
    worker = FileWorker(patience=300)
    file = FileArgument(str(PROGRAM), device=PROGRAM.stat().st_dev)
    worker.call(file_worker_calls.size, file)
    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(0.5):
            worker.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Stuck, match="interrupted"):
        worker.call(file_worker_calls.wait_with, file, 300.0)
    over.set()
    thread.join()
    assert (PROGRAM.stat().st_size, 0) == (worker.call(file_worker_calls.size, file), worker.stuck)
    worker.close()


def test_an_ended_child_is_seen_once() -> None:
    """Two threads that look at an ended child close its descriptor once: the number may be another's by then."""
    worker = FileWorker()
    worker.call(file_worker_calls.number, "7")
    child = worker.child
    assert child
    descriptor, closed, real = child.reader_pidfd, [], os.close
    other: list[threading.Thread] = []

    def close(number: int) -> None:
        closed.append(number)
        if len(closed) == 1:
            other.append(threading.Thread(target=child.has_ended))
            other[0].start()
            other[0].join(0.2)
        real(number)

    os.kill(child.reader, signal.SIGKILL)
    child.process.kill()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "close", close)
        while not child.has_ended():
            time.sleep(0.01)
        other[0].join()
    assert [descriptor] == closed
    worker.close()


def test_hung_file_system(worker: FileWorker, hung: fuse.Hung) -> None:
    """A file that is never read costs one child, which cannot be killed: its device is left alone, others are read.

    Once the mount is gone so is the child.
    """
    device = hung.path.stat().st_dev
    file = FileArgument(str(hung.path), device=device)
    with pytest.raises(Stuck):
        worker.call(file_worker_calls.size, file)
    assert 1 == worker.abandoned
    assert PROGRAM.stat().st_size == worker.call(file_worker_calls.size, FileArgument(str(PROGRAM), device=1))
    spent = worker.spent()
    with pytest.raises(Stuck):
        worker.call(file_worker_calls.size, file)
    assert spent == worker.spent()
    hung.end()
    while worker.abandoned:
        time.sleep(0.01)


def test_many_hung_file_systems(worker: FileWorker, hung: fuse.Hung, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than MOST_STUCK children are given up."""
    monkeypatch.setattr(file_worker, "MOST_STUCK", 1)
    with pytest.raises(Stuck):
        worker.call(file_worker_calls.size, FileArgument(str(hung.path), device=5))
    with pytest.raises(Stuck):
        worker.call(file_worker_calls.number, "7")
    assert worker.child is None
    hung.end()
    while worker.abandoned:
        time.sleep(0.01)


def answered(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> Any:
    """Return the result of a call with this answer of the child."""
    worker = FileWorker()
    monkeypatch.setattr(worker, "_request", lambda message, device: (answer, None))
    return worker.call(file_worker_calls.number, "7")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x80\x04cos\nsystem\n",
        b"[]",
        b"7",
        b"{}",
        b'{"result": 7, "more": 1}',
        b'{"result": "7"}',
        b'{"result": true}',
        b'{"result": [7]}',
        b'{"result": 1e400}',
        b'{"result": ' + b"9" * 4000 + b"}",
        b'{"error": "os"}',
        b'{"error": ["os", "x", 1]}',
        b'{"error": 7}',
        b"[" * 100_000,
    ],
)
def test_hostile_answers(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    """A child that was taken over by what it read gives nothing but what the function is declared to give."""
    with pytest.raises(ChildError):
        answered(monkeypatch, answer)


def test_honest_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same way gives a result, an error of the file and one of the system."""
    assert 7 == answered(monkeypatch, b'{"result": 7}')
    with pytest.raises(ElfError, match="cut"):
        answered(monkeypatch, json.dumps({"error": ["file", 0, "cut short"]}).encode())
    with pytest.raises(PermissionError):
        answered(monkeypatch, json.dumps({"error": ["os", 13, "denied"]}).encode())


def test_wrong_type(worker: FileWorker) -> None:
    """A result that is not what is declared is none."""
    with pytest.raises(ChildError, match="nonsense"):
        worker.call(file_worker_calls.lie)


def test_confined(worker: FileWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child inherits no secret, has no capability and little memory; it cannot start, signal, connect or write."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
    assert {"OTEL_EXPORTER_OTLP_HEADERS"}.isdisjoint(worker.call(file_worker_calls.environment))
    assert 0 == int(worker.call(file_worker_calls.capabilities), 16)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        worker.call(file_worker_calls.take_memory, 2 << 30)
    if os.uname().machine == "x86_64":
        assert () == worker.call(file_worker_calls.forbidden)


def test_a_lower_limit_of_memory() -> None:
    """Under a limit of address space below its own the child reads files all the same."""
    code = """if True:
        import resource
        from exporter.bpf.file_worker import FileWorker
        from tests.unit.bpf import file_worker_calls
        resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
        worker = FileWorker()
        print(worker.call(file_worker_calls.number, "7"))
        worker.close()
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ("7\n", "") == (done.stdout, done.stderr)


def test_threads(worker: FileWorker) -> None:
    """Calls of many threads are each answered with their own result."""
    results: dict[int, int] = {}

    def call(number: int) -> None:
        results[number] = worker.call(file_worker_calls.length, "x" * number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: number for number in range(20)} == results


def test_no_descriptors_are_left(worker: FileWorker) -> None:
    """Neither calls nor ended children leave a descriptor open."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        worker.call(file_worker_calls.size, FileArgument(str(PROGRAM)))
        with pytest.raises(ChildError):
            worker.call(file_worker_calls.leave, 3)
    assert before == len(list(Path("/proc/self/fd").iterdir()))


def test_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no process can be started, probes are at the symbols."""
    program = library(PROGRAM)
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    monkeypatch.setattr(finding, "WORKER", FileWorker())
    found = find_places(program, list(program.functions)[:100]).found
    assert found
    assert all(not it.moved and it.offset == program.functions[name].offset for name, it in found.items())


def test_hello_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that ends before it has begun is an error."""
    worker = FileWorker()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ChildError, match="died"):
        worker.call(file_worker_calls.number, "7")
