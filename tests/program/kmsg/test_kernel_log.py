"""The kernel log as collectors share it: a file stands in for /dev/kmsg."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.kmsg import reader
from exporter.kmsg.kernel_log import KernelLog, KmsgSettings, Subscription
from exporter.kmsg.records import Record
from exporter.model import Unavailable
from tests.support import until

NVRM, NVME = re.compile(b"NVRM"), re.compile(b"nvme|lockup")
BOOT = 1_000_000_000.0
"""Wall time in seconds at which the kernel's clock is 0."""


class Log:
    """A log of ours and what its subscribers have received."""

    def __init__(self, path: Path) -> None:
        self.path, self._sequence = path, 0
        self.received: dict[Subscription, list[tuple[Record, float]]] = {}
        path.touch()
        self.kernel_log = self.again()

    def again(self, from_processes: bool = False) -> KernelLog:
        settings = KmsgSettings(str(self.path), from_processes)
        self.kernel_log = KernelLog(settings, lambda monotonic_ns: int(BOOT * 1e9) + monotonic_ns)
        return self.kernel_log

    def subscribe(self, words: re.Pattern[bytes]) -> Subscription:
        received: list[tuple[Record, float]] = []
        subscription = self.kernel_log.subscribe(words, lambda record, time: received.append((record, time)))
        self.received[subscription] = received
        return subscription

    def write(self, text: str, priority: int = 3, flag: str = "-") -> None:
        self._sequence += 1
        with self.path.open("a") as file:
            file.write(f"{priority},{self._sequence},5000000,{flag};{text}\n")

    def texts(self, subscription: Subscription) -> list[str]:
        return [record.text for record, _ in self.received[subscription]]

    def catch_up(self) -> None:
        assert self.kernel_log.reader and self.kernel_log.reader.caught_up.wait(20)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path / "kmsg")
    yield made
    for subscription in made.received:
        subscription.close()
    until(lambda: not threads(), "the reader ends")


def threads() -> list[str]:
    return [it.name for it in threading.enumerate() if it.name == "kmsg"]


def test_the_log_is_read_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two subscriptions are one open file and one thread; each receives the records with its own words, old and new."""
    opened: list[Path] = []
    real = reader.open_source
    monkeypatch.setattr(reader, "open_source", lambda path: opened.append(path) or real(path))
    for text in ("NVRM: old", "usb 1-1: new device", "nvme nvme0: old"):
        log.write(text)
    one, two = log.subscribe(NVRM), log.subscribe(NVME)
    one.start()
    log.catch_up()
    two.start()
    assert (["kmsg"], [log.path]) == (threads(), opened)
    log.write("nvme nvme0: NVRM")
    until(lambda: len(log.texts(one)) == 2 == len(log.texts(two)))

    assert ["NVRM: old", "nvme nvme0: NVRM"] == log.texts(one)
    assert ["nvme nvme0: old", "nvme nvme0: NVRM"] == log.texts(two)
    assert [True, False] == [record.replayed for record, _ in log.received[two]]


def test_the_reader_ends_with_the_last_subscription(log: Log) -> None:
    """A subscription that has ended receives nothing more while others do; the thread ends with the last one."""
    one, two, never = log.subscribe(NVRM), log.subscribe(NVRM), log.subscribe(NVRM)
    one.start()
    two.start()
    one.close()
    log.write("NVRM: x")
    until(lambda: len(log.texts(two)) == 1)
    assert [] == log.texts(one)
    two.close()
    until(lambda: not threads(), "the reader ends")
    two.close()
    never.close()


def test_a_later_start_reads_from_the_beginning(log: Log) -> None:
    """After the end of the reader other subscriptions begin with the oldest record."""
    log.write("NVRM: x")
    for _ in range(2):
        subscription = log.subscribe(NVRM)
        subscription.start()
        log.catch_up()
        assert ["NVRM: x"] == log.texts(subscription)
        subscription.close()


def test_a_late_subscription_is_an_error(log: Log) -> None:
    """A subscription to a log that is being read would miss the records before it."""
    log.subscribe(NVRM).start()
    with pytest.raises(RuntimeError):
        log.subscribe(NVME)


def test_times(log: Log) -> None:
    """A replayed record has the kernel's time converted to wall time, a live one the time of its arrival."""
    log.write("NVRM: old")
    subscription = log.subscribe(NVRM)
    subscription.start()
    log.catch_up()
    before = time.time()
    log.write("NVRM: new")
    until(lambda: len(log.texts(subscription)) == 2)

    [(_, old), (_, new)] = log.received[subscription]
    assert BOOT + 5 == old
    assert before <= new <= time.time()


@pytest.mark.parametrize("from_processes", [False, True])
def test_lines_of_processes(log: Log, from_processes: bool) -> None:
    """A record that a process wrote is passed on only with `from_processes`."""
    log.again(from_processes)
    log.write("NVRM: of a process", priority=11)
    log.write("NVRM: the rest of a message, which a name may begin", flag="c")
    log.write("NVRM: of the kernel")
    subscription = log.subscribe(NVRM)
    subscription.start()
    log.catch_up()

    assert ["NVRM: of a process"] * from_processes + ["NVRM: of the kernel"] == log.texts(subscription)


def test_a_subscriber_that_fails(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """A record on which one subscriber fails is lost to that one alone, counted and logged once."""

    def fail(record: Record, time: float) -> None:
        raise RuntimeError("no")

    failing = log.kernel_log.subscribe(NVRM, fail)
    other = log.subscribe(NVRM)
    log.write("NVRM: a")
    log.write("NVRM: b")
    failing.start()
    other.start()
    log.catch_up()

    assert (2, 0, ["NVRM: a", "NVRM: b"]) == (failing.lost, other.lost, log.texts(other))
    assert 1 == len(caplog.records)
    failing.close()


def test_lost_to_all(log: Log) -> None:
    """A line that the reader cannot take is lost to every subscriber, because nobody knows what it was."""
    one, two = log.subscribe(NVRM), log.subscribe(NVME)
    one.start()
    two.start()
    log.write("x" * 10 * reader.LONGEST)
    until(lambda: one.lost == 1)

    assert 1 == two.lost


def test_no_log(log: Log) -> None:
    """A log that cannot be opened is an error of each start, and a problem with the remedy from then on."""
    log.path.unlink()
    one, two = log.subscribe(NVRM), log.subscribe(NVME)
    for subscription in (one, two):
        assert "" == subscription.problem
        with pytest.raises(Unavailable, match="there is no"):
            subscription.start()
        assert subscription.problem.startswith(f"there is no {log.path}; grant CAP_SYSLOG")
        assert 0 == subscription.lost
    assert [] == threads()


def test_a_log_that_breaks(log: Log) -> None:
    """The end of the reader by an error is a problem of every subscription."""
    log.path.unlink()
    log.path.mkdir()
    one, two = log.subscribe(NVRM), log.subscribe(NVME)
    one.start()
    two.start()
    until(lambda: bool(one.problem))

    assert [f"{log.path} is no longer read: Is a directory"] * 2 == [one.problem, two.problem]
