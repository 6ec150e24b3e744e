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
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.stacks import opener, record, worker
from exporter.stacks.opener import ADMIT, Opener
from exporter.stacks.record import MOST_BYTES
from exporter.stacks.worker import StackWorker, _Child
from tests.support import PATIENCE, until

HUNG, FINE = 4711, 4712


class Scripted(StackWorker):
    """A Worker with a child that hangs at one process, and answers all else."""

    started = 0
    over = threading.Event()

    def _spawn(self) -> _Child:
        self.started += 1
        worker.ANSWER_SECONDS = 0.2 if self.started == 1 else PATIENCE  # only the first one has to be given up
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        threading.Thread(target=self._answer, args=(theirs, process.pid), daemon=True).start()
        return _Child(process, ours)

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
    made = Scripted(lambda _: None, lambda: made.admit([HUNG, FINE]))
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read the memory of any process")
def test_the_children_themselves() -> None:
    """A stack comes back once, its number each time; once more on demand; none of a process that was given up."""
    job = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    received: list[dict[str, Any]] = []
    made = StackWorker(received.append, lambda: made.admit([job.pid]))
    numbers = dict.fromkeys(("tid", "api", "python", "hijacked", "truncated", "bytes"), 0)
    raw = SimpleNamespace(tgid=job.pid, id=9, weight=1, interpreter=1, **numbers)
    raw.registers, raw.hijacks, raw.frames, raw.memory = struct.pack("=34Q", *range(34)), b"", b"", b""
    with job:
        assert job.stdout and job.stdout.readline()
        made.start()
        until(lambda: made.child)
        for step in (lambda: None, lambda: None, made.number_again, lambda: made.end([job.pid])):
            step()
            assert made.give(record.pack(raw, 5)) and made.flush(60)
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
