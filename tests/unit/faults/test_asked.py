"""What is asked now and then in a thread of its own; test_smart.py and test_ipmi.py have who asks so."""

from __future__ import annotations

import errno
import time
import traceback

import pytest

from exporter.faults import metrics
from exporter.faults.asked import Asked
from exporter.model import Sample

ANSWER = metrics.CPUS.sample(8, {})


class Somebody(Asked):
    """Answers with what it is given, one after the other."""

    def __init__(self, *answers: Sample | Exception) -> None:
        super().__init__("somebody", 0.01, 60)
        self._answers = list(answers)

    def ask(self) -> list[Sample]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [answer]


def test_nothing_is_known_before_the_first_answer() -> None:
    with pytest.raises(BlockingIOError, match="not asked yet"):
        Somebody().samples()


def test_no_answer_takes_the_last_one_away() -> None:
    """And it is there again with the next."""
    asked = Somebody(ANSWER, OSError(errno.EIO, "gone"), ANSWER)
    asked.look()
    assert [ANSWER] == asked.samples()
    asked.look()
    with pytest.raises(OSError, match="gone"):
        asked.samples()
    asked.look()
    assert [ANSWER] == asked.samples()


def test_a_mistake_of_ours_is_not_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """It is in the log, and the next question is asked."""
    asked = Somebody(ValueError("oh"), *[ANSWER] * 1000)
    asked.start()
    until = time.monotonic() + 10
    while asked._refusal is not None:
        assert time.monotonic() < until
        time.sleep(0.01)
    asked.close()
    assert "asking somebody failed" in caplog.text


def test_a_refusal_does_not_grow() -> None:
    """It is raised at every look, for weeks: what it remembers of where stays the same."""
    asked = Somebody(OSError(errno.EIO, "gone"))
    asked.look()
    sizes = set()
    for _ in range(50):
        with pytest.raises(OSError, match="gone") as refused:
            asked.samples()
        sizes.add(len(traceback.extract_tb(refused.value.__traceback__)))
    assert 1 == len(sizes)
