"""Polling of slow sources; test_smart.py and test_ipmi.py have the sources that are polled."""

from __future__ import annotations

import errno
import time
import traceback

import pytest

from exporter.faults import metrics
from exporter.faults.poller import Poller
from exporter.model import Sample

ANSWER = metrics.CPUS.sample(8, {})


class Scripted(Poller):
    """Answers with the given samples and errors, one after the other."""

    def __init__(self, *answers: Sample | Exception) -> None:
        super().__init__("source", 0.01, 60)
        self._answers = list(answers)

    def query(self) -> list[Sample]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [answer]


def test_nothing_is_known_before_the_first_answer() -> None:
    with pytest.raises(BlockingIOError, match="not queried yet"):
        Scripted().samples()


def test_no_answer_takes_the_last_one_away() -> None:
    """And it is there again with the next."""
    poller = Scripted(ANSWER, OSError(errno.EIO, "gone"), ANSWER)
    poller.poll()
    assert [ANSWER] == poller.samples()
    poller.poll()
    with pytest.raises(OSError, match="gone"):
        poller.samples()
    poller.poll()
    assert [ANSWER] == poller.samples()


def test_a_mistake_of_ours_is_not_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """The error is in the log, and polling continues."""
    poller = Scripted(ValueError("oh"), *[ANSWER] * 1000)
    poller.start()
    until = time.monotonic() + 10
    while poller._refusal is not None:
        assert time.monotonic() < until
        time.sleep(0.01)
    poller.close()
    assert "polling source failed" in caplog.text


def test_a_refusal_does_not_grow() -> None:
    """An error that is raised at every scrape, for weeks, keeps a traceback of constant size."""
    poller = Scripted(OSError(errno.EIO, "gone"))
    poller.poll()
    sizes = set()
    for _ in range(50):
        with pytest.raises(OSError, match="gone") as refused:
            poller.samples()
        sizes.add(len(traceback.extract_tb(refused.value.__traceback__)))
    assert 1 == len(sizes)
