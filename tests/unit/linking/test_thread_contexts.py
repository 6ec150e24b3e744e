"""The trace context of GPU work, from contexts of its thread that were read later."""

from __future__ import annotations

import pytest

from exporter.linking import thread_contexts
from exporter.linking.obi import Context
from exporter.linking.thread_contexts import LONGEST_NS, ThreadContexts
from exporter.linking.work import Work

A, B = ("a" * 32, "a" * 16), ("b" * 32, "b" * 16)


class Thread:
    """A thread of which the contexts are read after its work."""

    def __init__(self) -> None:
        self.now, self.context = 0, None
        self._contexts = ThreadContexts(lambda pid, tid: self.context, lambda: self.now)

    def work(self, start: int, end: int, read: int, context: Context | None, tid: int = 2) -> str:
        """Return the first letter of the context of the work, nothing where it is not known."""
        self.now, self.context = read, context
        work = Work(1, tid, start, end, "c" * 32, "c" * 16)
        reading = self._contexts.after(work)
        return reading.link.span_id[0] if reading and reading.during(work) else ""


@pytest.fixture
def thread() -> Thread:
    return Thread()


def test_contexts_before_and_after(thread: Thread) -> None:
    """The context is that of the work if it was there before the work began."""
    assert "" == thread.work(10, 20, 30, A)
    assert "a" == thread.work(40, 50, 60, A)
    assert "a" == thread.work(52, 55, 60, A)
    assert "" == thread.work(25, 26, 60, A)  # it was read late
    assert "" == thread.work(70, 80, 90, B)
    assert "b" == thread.work(91, 95, 99, B)
    assert "" == thread.work(100, 110, 120, None)
    assert "" == thread.work(130, 140, 150, B)


def test_other_threads(thread: Thread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has times of its own, a bounded number of them; a thread that is not known has no context."""
    monkeypatch.setattr(thread_contexts, "MOST_THREADS", 2)
    thread.work(10, 20, 30, A)
    assert "" == thread.work(40, 50, 60, A, tid=3)
    assert "a" == thread.work(61, 62, 63, A)
    thread.work(64, 65, 66, A, tid=4)
    assert "" == thread.work(70, 71, 72, A, tid=3)
    assert "" == thread.work(73, 74, 75, A, tid=0)


def test_a_context_that_was_not_removed(thread: Thread) -> None:
    """A thread that has it for minutes has none."""
    thread.work(10, 20, 30, A)
    assert "a" == thread.work(40, 50, 30 + LONGEST_NS, A)
    assert "" == thread.work(60, 70, 31 + LONGEST_NS, A)
