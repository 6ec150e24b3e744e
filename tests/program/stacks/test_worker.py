"""The children that open and unwind, where a file system does not answer."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.stacks import opener, record, worker
from exporter.stacks.opener import ADMIT, MOST_BYTES, Opener
from exporter.stacks.worker import StackWorker
from exporter.stacks.worker_child import StackChild
from tests.support import PATIENCE, until

HUNG, FINE = 4711, 4712
STACK_BYTES = bytes(50_000)
"""As large as those of the kernel, so that a socket holds few."""


class Scripted(StackWorker):
    """A Worker with a child that hangs at one process, and answers all else."""

    started = 0
    over = threading.Event()

    def _spawn(self) -> StackChild:
        self.started += 1
        worker.ANSWER_SECONDS = 0.2 if self.started == 1 else PATIENCE  # only the first one has to be given up
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        threading.Thread(target=self._answer, args=(theirs, process.pid), daemon=True).start()
        return StackChild(process, ours)

    def _answer(self, end: socket.socket, pid: int) -> None:
        def send(message: dict[str, Any]) -> None:
            end.send(json.dumps(message).encode())

        with end, contextlib.suppress(OSError):  # it is not read from any more, once it is given up
            send({"reader": pid, "missing": ""})
            while message := end.recv(MOST_BYTES):
                if message[:1] == ADMIT:
                    send({"opening": int(message[1:])})
                    if message == ADMIT + b"%d" % HUNG:
                        self.over.wait(60)
                        return
                    send({"opened": int(message[1:])})


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    monkeypatch.setattr(worker, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(worker, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(worker, "PAUSE", 0.05)
    made = Scripted(lambda _: None, lambda: made.admit([HUNG, FINE]), lambda: None)
    made.start()
    yield made
    made.close()


def test_a_process_on_a_file_system_that_hangs_is_left_out(
    scripted: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    """The child is replaced once; the next one is not given that process, and serves the others."""
    until(lambda: scripted.started == 2 and scripted.child, "it is replaced")
    scripted.admit([HUNG, FINE])
    until(lambda: scripted.child and not scripted._queue and not scripted.child.opening, "all is opened")
    assert scripted.started == 2
    assert f"a file of process {HUNG} cannot be opened" in caplog.text


def test_a_process_is_opened_again_once_its_pid_is_anothers(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(lambda: scripted.started == 2 and scripted.child, "it is replaced")
    monkeypatch.setattr(worker, "ANSWER_SECONDS", 0.2)
    scripted.end([HUNG])
    scripted.admit([HUNG])
    until(lambda: scripted.started == 3, "that is tried")


class Slow(StackWorker):
    """A Worker of which the child begins when `begun` is set, and answers stacks when `over` is."""

    def __init__(self) -> None:
        self.begun, self.over, self.received, self.ended = threading.Event(), threading.Event(), 0, 0
        super().__init__(self._count, lambda: None, self._end_of_child)

    def _count(self, _: dict[str, Any]) -> None:
        self.received += 1

    def _end_of_child(self) -> None:
        self.ended += 1

    def _spawn(self) -> StackChild:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        threading.Thread(target=self._answer, args=(theirs, process.pid), daemon=True).start()
        return StackChild(process, ours)

    def _answer(self, end: socket.socket, pid: int) -> None:
        with end, contextlib.suppress(OSError):
            self.begun.wait(PATIENCE)
            end.send(json.dumps({"reader": pid, "missing": ""}).encode())
            self.over.wait(PATIENCE)
            while end.recv(MOST_BYTES):
                end.send(b'{"id": 0}')


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    made.start()
    yield made
    made.begun.set()
    made.over.set()
    made.close()


def given(slow: Slow, count: int) -> threading.Thread:
    """Give stacks in a thread; return it."""

    def give() -> None:
        slow.given = sum(slow.give(lambda: STACK_BYTES) for _ in range(count))

    thread = threading.Thread(target=give)
    thread.start()
    return thread


def test_a_stack_waits_for_a_child_that_takes_its_time(slow: Slow) -> None:
    """A slow child, as on a busy machine, loses none: the ring buffer has what follows."""
    slow.begun.set()
    giving = given(slow, count := 2 * worker.MOST_WAITING)
    until(lambda: slow._waiting == worker.MOST_WAITING, "the queue is full")
    giving.join(1.5)
    assert giving.is_alive()
    slow.over.set()
    until(lambda: slow.received == count, "all are answered")
    giving.join(PATIENCE)
    assert (count, {}) == (slow.given, dict(slow.dropped))


def test_a_stack_waits_for_a_child_that_starts(slow: Slow) -> None:
    giving = given(slow, 1)
    slow.begun.set()
    slow.over.set()
    until(lambda: slow.received, "it is answered")
    giving.join(PATIENCE)
    assert (1, {}) == (slow.given, dict(slow.dropped))


def test_no_stack_waits_where_there_is_no_child(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack that was given to a child that has ended is lost, as is one before the next child; each counts once."""
    monkeypatch.setattr(worker, "PAUSE", PATIENCE)
    slow.begun.set()
    giving = given(slow, count := 2 * worker.MOST_WAITING)
    child = until(lambda: slow._waiting == worker.MOST_WAITING and slow.child)
    child.connection.shutdown(socket.SHUT_RDWR)
    giving.join(PATIENCE)
    until(lambda: slow.ended, "its end is noticed")
    assert (1, {"unwinder": count}) == (slow.ended, dict(slow.dropped))


@pytest.mark.parametrize("busy", [True, False], ids=["works", "waits"])
def test_a_child_that_works_is_not_stuck(busy: bool) -> None:
    """However long the machine takes for it; one that waits for something else is, and one that never has done."""
    code = "while True: pass" if busy else "import time; time.sleep(60)"
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen([sys.executable, "-c", f"print(flush=True)\n{code}"], stdout=-1) as process:
        assert process.stdout and process.stdout.readline()
        until(lambda: busy or Path(f"/proc/{process.pid}/wchan").read_text() != "0", "it sleeps")
        child = StackChild(process, ours)
        child.last_answer -= 1000
        child.look()
        assert child.is_stuck(500)
        before = child.seconds()
        until(lambda: not busy or child.seconds() > before, "it works")
        child.look()
        assert busy != child.is_stuck(500)
        until(lambda: not busy or child.seconds() > before + 0.05, "it works on")
        child.look()
        assert child.is_stuck(0.05)
        process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read the memory of any process")
def test_the_children_themselves() -> None:
    """A stack comes back once, its number each time; once more on demand; none of a process that was given up."""
    job = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    received: list[dict[str, Any]] = []
    made = StackWorker(received.append, lambda: made.admit([job.pid]), lambda: None)
    numbers = dict.fromkeys(("tid", "api", "python", "hijacked", "truncated", "bytes", "absent"), 0)
    raw = SimpleNamespace(tgid=job.pid, id=9, weight=1, interpreter=1, **numbers)
    raw.registers, raw.hijacks, raw.frames, raw.memory = struct.pack("=34Q", *range(34)), b"", b"", b""
    with job:
        assert job.stdout and job.stdout.readline()
        made.start()
        until(lambda: made.child)
        for step in (lambda: None, lambda: None, made.number_again, lambda: made.end([job.pid])):
            step()
            assert made.give(lambda: record.pack(raw, 5)) and made.flush(60)
        made.close()
        job.kill()
    assert [it["pid"] for it in received if "walk" in it or "problem" in it] == [job.pid]
    assert [it["stack"] for it in received if "stack" in it] == [1, 2]
    answers = [it for it in received if "id" in it]
    assert [(it.get("number"), it.get("lost")) for it in answers] == [(1, None), (1, None), (2, None), (None, 1)]
    assert all((it["id"], it["pid"], it["program"]) == (9, job.pid, 5) for it in answers)


def test_the_exporter_knows_what_is_opened_before_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    unwinder, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    seen: list[bytes] = []

    def hangs(pid: int) -> Iterator[Any]:
        seen.append(exporter.recv(MOST_BYTES, socket.MSG_DONTWAIT))
        yield from ()

    monkeypatch.setattr(opener, "executable", hangs)
    with exporter, theirs, unwinder, its:
        Opener(theirs, its).pass_on(ADMIT + str(os.getpid()).encode())
    assert [json.loads(it) for it in seen] == [{"opening": os.getpid()}]
