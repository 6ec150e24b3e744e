"""Polling of slow sources: what is kept of values and errors, when the source is read, and how polling ends."""

from __future__ import annotations

import errno
import threading
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from exporter.background.poller import Poller
from tests.support import until


class Scripted:
    """A source that returns the given values and raises the given errors, one after the other, the last for ever."""

    def __init__(self, *answers: str | Exception) -> None:
        self._answers = list(answers)

    def __call__(self) -> str:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Blocking:
    """A source that returns nothing until it is freed."""

    def __init__(self) -> None:
        self.begun, self.freed = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        self.freed.wait()
        return "value"


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    made = Blocking()
    yield made
    made.freed.set()


def polled(*answers: str | Exception, times: int = 1, **settings: Any) -> Poller[str]:
    """A poller that has read its source so many times, in this thread."""
    poller = Poller("source", Scripted(*answers), 60, **settings)
    for _ in range(times):
        poller.poll()
    return poller


def test_nothing_is_known_before_the_first_reading() -> None:
    poller = polled("value", times=0)
    assert (None, None, False) == (poller.last.age, poller.busy, poller.read_once.is_set())
    with pytest.raises(BlockingIOError, match="not queried yet"):
        poller.newest()


def test_an_error_takes_the_value_away_until_the_next() -> None:
    """The value before the error is still in `last`, with its time."""
    poller = polled("first", OSError(errno.EIO, "no answer"), "second")
    assert "first" == poller.newest()
    poller.poll()
    with pytest.raises(OSError, match="no answer"):
        poller.newest()
    assert ("first", True) == (poller.last.value, poller.last.age is not None)
    poller.poll()
    assert "second" == poller.newest()
    assert poller.last.error is None


def test_the_class_of_an_error_stays() -> None:
    poller = polled(PermissionError(errno.EACCES, "Permission denied", "/dev/nvme0"))
    with pytest.raises(PermissionError) as refused:
        poller.newest()
    assert ("/dev/nvme0", "Permission denied") == (refused.value.filename, refused.value.strerror)


def test_a_value_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    poller = polled("value", patience=5)
    at = poller.last.at or 0.0
    monkeypatch.setattr("time.monotonic", lambda: at + 5)
    assert "value" == poller.newest()
    monkeypatch.setattr("time.monotonic", lambda: at + 5.1)
    with pytest.raises(TimeoutError, match="does not answer"):
        poller.newest()


def test_a_mistake_of_ours_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the traceback; another mistake is logged too, and the same one again after a value."""
    poller = polled(ValueError("oh"), times=3)
    assert ["polling source failed; polling continues"] == caplog.messages
    assert "ValueError: oh" in caplog.text
    with pytest.raises(OSError, match="oh"):
        poller.newest()
    polled(ValueError("1"), ValueError("2"), "value", ValueError("2"), times=9)
    assert 4 == len(caplog.messages)


def test_an_expected_error_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    reported: list[str] = []
    polled(
        *(OSError("a"), OSError("a"), ValueError("b"), "value", ValueError("b")),
        times=9,
        expected=(OSError, ValueError),
        refused=lambda error: reported.append(str(error)),
    )
    assert (["a", "b", "b"], []) == (reported, caplog.messages)


def test_polling_continues_after_errors() -> None:
    poller = Poller("source", Scripted(ValueError("oh"), OSError("no"), "value"), 0.001)
    poller.start()
    until(lambda: poller.last.value == "value")
    poller.close(30)


def test_no_frame_is_kept() -> None:
    """Neither a reading's error nor the scrapes that get that error keep what their functions had."""

    class Large:
        pass

    kept: list[weakref.ref[Large]] = []

    def read() -> str:
        large = Large()
        kept.append(weakref.ref(large))
        try:
            raise KeyError("before")
        except KeyError as error:
            raise OSError(errno.EIO, "no answer") from error

    def scrape() -> None:
        large = Large()
        kept.append(weakref.ref(large))
        with pytest.raises(OSError, match="no answer"):
            poller.newest()

    poller = Poller("source", read, 60)
    poller.poll()
    scrape()
    assert [None, None] == [it() for it in kept]


def test_an_error_does_not_grow() -> None:
    """An error that is raised at every scrape, for weeks, has a traceback of constant size."""
    poller = polled(OSError(errno.EIO, "no answer"))
    sizes = set()
    for _ in range(50):
        with pytest.raises(OSError, match="no answer") as refused:
            poller.newest()
        sizes.add(len(traceback.extract_tb(refused.value.__traceback__)))
    assert 1 == len(sizes)


class Brief(threading.Event):
    """Waits are recorded, and end at once; the event is set at the third."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        if len(self.waits) == 3:
            self.set()
        return self.is_set()


def pauses(seconds: float, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[float]:
    """The pause before the first and after the first two readings, which take so many seconds, every 10 s."""
    now = 100.0

    def read() -> str:
        nonlocal now
        now += seconds
        return "value"

    with monkeypatch.context() as context:
        context.setattr("exporter.background.poller.time.monotonic", lambda: now)
        poller = Poller("source", read, 10, **settings)
        poller.closing = brief = Brief()
        poller._run()
    return brief.waits


def test_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval is the pause, or from start to start; readings longer than that follow one another at once."""
    assert [0, 10, 10] == pauses(3, monkeypatch)
    assert [5, 10, 10] == pauses(3, monkeypatch, first_after=5)
    assert [0, 7, 7] == pauses(3, monkeypatch, steady=True)
    assert [0, 0, 0] == pauses(13, monkeypatch, steady=True)


def test_a_source_that_blocks(blocking: Blocking, caplog: pytest.LogCaptureFixture) -> None:
    """Questions have answers meanwhile; closing does not wait for the source; an error afterwards is not logged."""
    poller = Poller("source", blocking, 60)
    poller.start()
    assert blocking.begun.wait(30)
    until(lambda: (poller.busy or 0.0) > 0.0)
    with pytest.raises(BlockingIOError):
        poller.newest()
    poller.close()
    assert poller.busy is not None  # closing returned before the reading
    blocking.freed.set()
    poller.close(30)
    assert ("value", None) == (poller.newest(), poller.busy)


def test_an_error_at_the_end_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A reading that fails after its resources were closed at the end is not logged."""
    poller = polled(ValueError("I/O operation on closed file"), times=0)
    poller.close()
    poller.poll()
    assert [] == caplog.messages


def test_closing_ends_a_pause() -> None:
    poller = Poller("source", Scripted("value"), 86_400)
    poller.start()
    assert poller.read_once.wait(30)
    poller.close(30)
    assert "source" not in {thread.name for thread in threading.enumerate()}


def test_closing_what_never_started() -> None:
    Poller("source", Scripted("value"), 60).close(30)
