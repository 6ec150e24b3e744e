"""Supervision of real children, shell scripts that hang, crash or print nonsense, and of one that cannot be killed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from exporter.background import child, supervisor
from exporter.background.child import ChildProcess
from exporter.background.supervisor import ChildEnd, Supervisor
from tests.support import PATIENCE, until

HANG = "exec sleep 1000"
WORK = "while read line; do :; done"
"""Ends when its standard input is closed."""
DEAF = "exec <&-; while :; do echo busy; sleep 0.05; done"
"""Does not end when its standard input is closed."""


class Shell(ChildProcess):
    def __init__(self, script: str) -> None:
        super().__init__("", script, command=("/bin/sh", "-c"))


class Subject(Supervisor[Shell]):
    """Runs scripts one after the other, the last for ever, and records their lines and ends."""

    close_seconds = 0.5

    def __init__(self, *scripts: str | OSError | None, start_patience: float = 30.0, patience: float = 30.0) -> None:
        super().__init__("test", start_patience, patience)
        self._scripts = list(scripts)
        self.lines: list[bytes] = []
        self.ends: list[ChildEnd] = []
        self.before: list[ChildEnd] = []
        self.pids: list[int] = []
        self.drops = 0

    def spawn(self) -> Shell | None:
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        if isinstance(script, OSError):
            raise script
        if script is None:
            return None
        child = Shell(script)
        self.pids.append(child.pid)
        return child

    def receive(self, child: Shell, line: bytes) -> ChildEnd | None:
        self.starting = False
        if line == b"nonsense":
            raise ValueError("not a message")
        if line == b"mistake":
            raise RuntimeError("oh")
        self.lines.append(line)
        return ChildEnd("refused", "the driver refused") if line == b"refused" else None

    def drop(self) -> None:
        self.drops += 1

    def ended(self, end: ChildEnd, before: ChildEnd) -> None:
        self.ends.append(end)
        self.before.append(before)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "SHORTEST_PAUSE", 0.01)
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(child, "KILL_SECONDS", PATIENCE)  # on a busy machine a killed child may take its time to end


S = TypeVar("S", bound="Subject")


@contextmanager
def running(subject: S) -> Iterator[S]:
    subject.start()
    try:
        yield subject
    finally:
        subject.close()
        subject._thread.join(PATIENCE)  # closing waits for a moment only


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("kill -SEGV $$", ChildEnd("crashed", "the child crashed: Segmentation fault")),
        ("exit 3", ChildEnd("ended", "the child ended with status 3")),
        (f"echo nonsense; {HANG}", ChildEnd("failed", "the child sent an invalid message: not a message")),
        (
            f"head -c 5000000 /dev/zero; {HANG}",
            ChildEnd("failed", "the child sent an invalid message: a line of more than 4194304 bytes"),
        ),
        (f"echo refused; {HANG}", ChildEnd("refused", "the driver refused")),
    ],
)
def test_replaced(script: str, end: ChildEnd) -> None:
    """A child that crashes, ends, sends nonsense or reports a failure is killed and replaced, and its end is known."""
    with running(Subject(script, f"echo hello; {WORK}")) as subject:
        until(lambda: b"hello" in subject.lines)
        assert ([end], [ChildEnd("", "")], 1) == (subject.ends, subject.before, subject.drops)
        assert not exists(subject.pids[0])
        assert subject.child is not None and subject.child.pid == subject.pids[1]


def test_hang() -> None:
    """A child that falls silent is killed after its patience; silence during the start has a patience of its own."""
    with running(Subject(f"echo 1; {HANG}", f"echo 2; {WORK}", patience=0.3)) as subject:
        until(lambda: subject.ends)
        assert ChildEnd("stalled", "the child has sent nothing for 0 s") == subject.ends[0]
        until(lambda: b"2" in subject.lines)
        assert not exists(subject.pids[0])


class Patient(Subject):
    """Waits for long from the first end on: a child that is slow is not taken for one that hangs."""

    def ended(self, end: ChildEnd, before: ChildEnd) -> None:
        self._start_patience = PATIENCE
        super().ended(end, before)


def test_hang_at_the_start() -> None:
    with running(Patient(HANG, f"echo 2; {WORK}", start_patience=0.3)) as subject:
        until(lambda: b"2" in subject.lines)
        assert ["stalled"] == [end.reason for end in subject.ends]


def test_a_slow_start_is_no_hang() -> None:
    with running(Subject(f"sleep 0.5; echo 1; {HANG}", patience=0.1)) as subject:
        until(lambda: subject.ends)
        assert b"1" in subject.lines


def test_a_child_that_cannot_be_started() -> None:
    with running(Subject(OSError(11, "Resource temporarily unavailable"), f"echo 2; {WORK}")) as subject:
        until(lambda: b"2" in subject.lines)
    reason = "no child can be started: [Errno 11] Resource temporarily unavailable"
    assert [ChildEnd("failed", reason)] == subject.ends


def test_not_now() -> None:
    """While no child may be started, none has ended either."""
    with running(Subject(None, None, f"echo 3; {WORK}")) as subject:
        until(lambda: b"3" in subject.lines)
    assert ([], 1) == (subject.ends, len(subject.pids))


def test_a_mistake_of_ours_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The child is killed and replaced all the same."""
    with running(Subject(f"echo mistake; {HANG}", f"echo 2; {WORK}")) as subject:
        until(lambda: b"2" in subject.lines)
        assert not exists(subject.pids[0])
    assert [ChildEnd("failed", "RuntimeError: oh")] == subject.ends
    assert ["supervision of test failed; a new child is started"] == caplog.messages
    assert "Traceback" in caplog.text


class Brief(threading.Event):
    """Waits are recorded, and end at once."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return self.is_set()


def pauses(settled_seconds: float, monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The first pauses between children that end at once, with the real limits."""
    monkeypatch.setattr(supervisor, "SHORTEST_PAUSE", 1.0)
    subject = Subject(OSError())
    subject.settled_seconds = settled_seconds
    subject.closing = brief = Brief()
    with running(subject):
        until(lambda: len(brief.waits) > 10)
    return brief.waits[:11]


def test_pauses_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """From one second to five minutes; after a child that ran for long the next pause is the shortest again."""
    assert [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] == pauses(60.0, monkeypatch)
    assert [1] * 11 == pauses(-1.0, monkeypatch)


def test_close() -> None:
    """A child that works ends on request; one that does not is killed; what it sent is dropped; no end is counted."""
    for script in (f"echo 1; {WORK}", DEAF, f"echo 1; {HANG}"):
        with running(Subject(script)) as subject:
            until(lambda: subject.lines)
        assert not exists(subject.pids[0])
        assert ([], 1, 1) == (subject.ends, subject.drops, len(subject.pids))


def test_stop() -> None:
    """All children may be stopped before the first is waited for."""
    subject = Subject(f"echo 1; {WORK}")
    subject.start()
    until(lambda: subject.lines)
    subject.stop()
    until(lambda: not exists(subject.pids[0]))
    subject.close()


def test_close_during_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "SHORTEST_PAUSE", 86_400.0)
    with running(Subject("exit 1")) as subject:
        until(lambda: subject.ends)
    assert "test" not in {thread.name for thread in threading.enumerate()}


def test_closing_what_never_started() -> None:
    Subject(WORK).close()


class Immortal:
    """A child that sends nothing and cannot be killed until `dead` is set."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.dead = threading.Event()

    def lines(self, seconds: float) -> list[bytes]:
        time.sleep(min(seconds, 0.01))
        return []

    def hang_up(self) -> None:
        pass

    def ended(self) -> int | None:
        return -9 if self.dead.is_set() else None

    def kill(self) -> bool:
        return self.dead.is_set()


class Unkillable(Subject):
    def __init__(self) -> None:
        super().__init__(None, start_patience=0.02)
        self.started: list[Immortal] = []

    def spawn(self) -> Shell | None:
        self.started.append(Immortal())
        return self.started[-1]  # type: ignore[return-value]


def test_one_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that cannot be killed is abandoned and replaced once, and only once until that child has ended."""
    looks = threading.Semaphore(0)
    with running(Unkillable()) as subject:
        until(lambda: subject.count_abandoned() == 2)
        count = subject.count_abandoned
        monkeypatch.setattr(subject, "count_abandoned", lambda: (looks.release(), count())[1])
        for _ in range(20):  # checks whether a child may be started
            assert looks.acquire(timeout=30)
        assert (2, 2) == (len(subject.started), len(subject.ends))
        subject._start_patience = PATIENCE  # the next one is not abandoned before it is seen
        subject.started[0].dead.set()
        until(lambda: len(subject.started) == 3)
        assert 1 == count()


def test_closing_does_not_wait_for_a_child_that_cannot_be_killed() -> None:
    """Closing returns although the child still exists."""
    subject = Unkillable()
    subject.start()
    until(lambda: subject.child)
    subject.close()
    assert not any(it.dead.is_set() for it in subject.started)
