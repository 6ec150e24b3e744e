"""Following of a kernel log: a file or a FIFO stands in for /dev/kmsg, made-up reads for what only the kernel does."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from exporter.kmsg import reader as module
from exporter.kmsg.reader import LONGEST, Reader, open_log
from exporter.kmsg.records import Record
from exporter.model import Unavailable
from tests.support import until

WANTED = re.compile(b"NVRM")


def line(sequence: int, text: str = "NVRM: x", priority: int = 3) -> bytes:
    return f"{priority},{sequence},{sequence * 1000},-;{text}\n".encode()


class Received(list[Record]):
    """Records that a reader has delivered, by their sequence numbers."""

    @property
    def live(self) -> list[int]:
        return [record.sequence for record in self if not record.replayed]

    @property
    def replayed(self) -> list[int]:
        return [record.sequence for record in self if record.replayed]


@pytest.fixture
def follow() -> Iterator[Callable[[Path], tuple[Reader, Received]]]:
    """Starts a reader of a path."""
    readers: list[Reader] = []

    def start(path: Path) -> tuple[Reader, Received]:
        received = Received()
        made = Reader(path, WANTED, received.append)
        made.start()
        readers.append(made)
        return made, received

    yield start
    for made in readers:
        made.close()


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "kmsg")
    return tmp_path / "kmsg"


Follow = Callable[[Path], tuple[Reader, Received]]


def test_file(tmp_path: Path, follow: Follow) -> None:
    """Lines in the file at the start are replayed, lines added later are live, and other lines are skipped."""
    path = tmp_path / "kmsg"
    path.write_bytes(line(1) + line(2, "usb 1-1: new") + line(3) + b" SUBSYSTEM=pci NVRM\n")
    made, received = follow(path)
    until(lambda: len(received) == 2)
    assert made.caught_up.wait(20)
    with path.open("ab") as file:
        file.write(line(4) + b"3,5,5")
    until(lambda: len(received) == 3)
    with path.open("ab") as file:
        file.write(b",-;NVRM: in two parts\n")
    until(lambda: len(received) == 4)

    assert ([1, 3], [4, 5], 0) == (received.replayed, received.live, made.lost)
    assert "NVRM: in two parts" == received[-1].text


def test_fifo_outlives_its_writers(fifo: Path, follow: Follow) -> None:
    """Writers of a FIFO come and go, and the lines of each are delivered."""
    made, received = follow(fifo)
    assert made.caught_up.wait(20)
    for sequence in range(3):
        with fifo.open("wb") as writer:
            writer.write(line(sequence))
        until(lambda sequence=sequence: len(received) == sequence + 1)  # type: ignore[misc]

    assert ([0, 1, 2], "", 0) == (received.live, made.failure, made.lost)


def test_flood(fifo: Path, follow: Follow) -> None:
    """Of 100,000 lines in one burst each wanted line is delivered, in order, and none is lost."""
    made, received = follow(fifo)
    assert made.caught_up.wait(20)
    with fifo.open("wb") as writer:
        for sequence in range(100_000):
            writer.write(line(sequence, "NVRM: x" if sequence % 10 == 0 else "audit: a line of another driver's"))
    until(lambda: len(received) == 10_000)

    assert (list(range(0, 100_000, 10)), 0) == (received.live, made.lost)


def test_long_line(fifo: Path, follow: Follow) -> None:
    """A line longer than any of the kernel's is lost, counted and not kept; the next line is delivered."""
    made, received = follow(fifo)
    assert made.caught_up.wait(20)
    with fifo.open("wb") as writer:
        writer.write(line(1, "NVRM: " + "x" * 10 * LONGEST) + line(2))
    until(lambda: received.live == [2])

    assert 1 == made.lost


def test_malformed_line(fifo: Path, follow: Follow, caplog: pytest.LogCaptureFixture) -> None:
    """Wanted lines that are no records are counted and logged once, and cost nothing else."""
    made, received = follow(fifo)
    assert made.caught_up.wait(20)
    with fifo.open("wb") as writer:
        writer.write(b"NVRM\nNVRM: no head\n" + line(3))
    until(lambda: received.live == [3])

    assert (2, 1) == (made.lost, len(caplog.records))


def test_receiver_that_fails(tmp_path: Path) -> None:
    """A record on which `receive` fails is lost and counted; the thread goes on."""
    path = tmp_path / "kmsg"
    path.write_bytes(line(1) + line(2))
    received: list[int] = []

    def receive(record: Record) -> None:
        received.append(record.sequence)
        if record.sequence == 1:
            raise RuntimeError("no")

    made = Reader(path, WANTED, receive)
    made.start()
    until(lambda: len(received) == 2)
    made.close()

    assert 1 == made.lost


class Kernel:
    """/dev/kmsg by its answers to read(): records or errors, then nothing new until `more`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fifo: Path) -> None:
        self._fifo = fifo
        self.answers: list[bytes | int] = []
        real = os.read

        def read(descriptor: int, size: int) -> bytes:
            while size == LONGEST and self.answers:
                answer = self.answers.pop(0)
                if isinstance(answer, int):
                    raise OSError(answer, os.strerror(answer))
                return answer
            return real(descriptor, size)

        monkeypatch.setattr(module.os, "read", read)

    def more(self, *answers: bytes | int) -> None:
        """Adds answers and makes the FIFO readable."""
        self.answers += answers
        with self._fifo.open("wb") as writer:
            writer.write(b"\n")


def test_overrun(fifo: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that the kernel has overwritten are counted by their sequence numbers, and reading goes on."""
    kernel = Kernel(monkeypatch, fifo)
    kernel.answers = [line(7), line(8, "other"), errno.EPIPE, line(20), errno.EPIPE, line(31, "other"), line(32)]
    made, received = follow(fifo)
    until(lambda: len(received) == 3)

    assert ([7, 20, 32], 11 + 10) == (received.replayed, made.lost)


def test_overrun_at_once(fifo: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overrun before the first record counts as one lost record."""
    Kernel(monkeypatch, fifo).answers = [errno.EPIPE, line(20)]
    made, received = follow(fifo)
    until(lambda: len(received) == 1)

    assert 1 == made.lost


def test_record_too_long_for_the_buffer(fifo: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record too long for the buffer is counted."""
    Kernel(monkeypatch, fifo).answers = [errno.EINVAL, line(2)]
    made, received = follow(fifo)
    until(lambda: len(received) == 1)

    assert 1 == made.lost


def test_replay_ends(fifo: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records after the first end of the log are live, also when records come one by one."""
    kernel = Kernel(monkeypatch, fifo)
    kernel.answers = [line(1), line(2), errno.EAGAIN]
    _, received = follow(fifo)
    kernel.more(line(3), line(4))
    until(lambda: len(received) == 4)

    assert ([1, 2], [3, 4]) == (received.replayed, received.live)


def test_endless_log_is_not_a_replay(fifo: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of a log that never reaches its end are live after some seconds."""
    monkeypatch.setattr(module, "REPLAY_SECONDS", 0.0)
    Kernel(monkeypatch, fifo).answers = [line(1), line(2)]
    _, received = follow(fifo)
    until(lambda: len(received) == 2)

    assert [1, 2] == received.live


def test_broken_log(fifo: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read error ends the reading, with a reason."""
    Kernel(monkeypatch, fifo).answers = [errno.EIO]
    made, _ = follow(fifo)
    until(lambda: bool(made.failure))

    assert f"{fifo} is no longer read: Input/output error" == made.failure


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_close(fifo: Path) -> None:
    """Closing wakes the thread, which waits for records without a limit, and closes the descriptors."""
    before = descriptors()
    made = Reader(fifo, WANTED, lambda record: None)
    made.start()
    assert made.caught_up.wait(20)
    made.close()

    assert before == descriptors()


def test_absent(tmp_path: Path) -> None:
    """The error about a missing log names what a container lacks."""
    with pytest.raises(Unavailable, match=f"there is no {tmp_path}/kmsg") as raised:
        Reader(tmp_path / "kmsg", WANTED, lambda record: None).start()
    assert "/dev/kmsg" in raised.value.remedy


@pytest.mark.parametrize(("restricted", "why"), [("1\n", "kernel.dmesg_restrict is 1"), ("0\n", "Permission denied")])
def test_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restricted: str, why: str) -> None:
    """The error about a log that may not be read names the setting that forbids reading and the remedy."""
    path = tmp_path / "kmsg"
    path.touch()
    (tmp_path / "restrict").write_text(restricted)

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(module, "RESTRICTED", tmp_path / "restrict")
    monkeypatch.setattr(module.os, "open", refuse)
    with pytest.raises(Unavailable) as raised:
        open_log(path)
    assert (f"{path} may not be read ({why})", True) == (raised.value.reason, "CAP_SYSLOG" in raised.value.remedy)


def test_folder(tmp_path: Path) -> None:
    """A folder in place of a log fails with one sentence."""
    descriptor = open_log(tmp_path)
    os.close(descriptor)
    made = Reader(tmp_path, WANTED, lambda record: None)
    made.start()
    until(lambda: bool(made.failure))
    made.close()

    assert f"{tmp_path} is no longer read: Is a directory" == made.failure


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg may not be read here")
def test_real_log() -> None:
    """The kernel's own log is read to its end, in order and without loss."""
    received = Received()
    try:
        made = Reader(Path("/dev/kmsg"), re.compile(b"."), received.append)
        made.start()
    except Unavailable as error:
        pytest.skip(error.reason)
    assert made.caught_up.wait(20)
    made.close()

    numbers = received.replayed
    assert 0 == made.lost
    assert list(range(numbers[0], numbers[0] + len(numbers))) == numbers
    times = [record.time_ns for record in received]
    assert max(times) <= time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 10**9


@pytest.mark.parametrize("contained", [False, True])
def test_the_remedy_in_a_user_namespace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, contained: bool) -> None:
    """A capability is a remedy only where capabilities count."""
    monkeypatch.setattr("exporter.bpf.privileges.in_user_namespace", lambda: contained)
    (tmp_path / "kmsg").touch()
    for name in ("absent", "kmsg"):
        with monkeypatch.context() as patch, pytest.raises(Unavailable) as raised:
            if name == "kmsg":
                patch.setattr(os, "open", Mock(side_effect=PermissionError(errno.EPERM, "Operation not permitted")))
            open_log(tmp_path / name)
        assert contained != ("grant CAP_SYSLOG" in raised.value.remedy)
        assert raised.value.remedy
