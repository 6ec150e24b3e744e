"""Hints: which processes are looked at, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.bpf import hints as hints_module
from exporter.bpf.hints import Hints
from tests.unit.bpf.mapped import PID, START, Proc


def test_when_a_file_was_mapped(proc: Proc, built: Path) -> None:
    """The time of a mapping is the first of all records of the file, or that of the hint where no record fits."""
    hints = Hints()
    for since, place in ((20, (1, b"b")), (30, (2, b"a")), (40, (START, b"a"))):
        hints.add(PID, since, place=place)
    hint = hints.take_all()[PID]
    assert (30, 20) == (hint.mapped_ns(proc.map(built)), hint.mapped_ns(proc.map(built, 0x10, 0x20)))


def test_hints_on_one_process_join() -> None:
    """Two hints are one look: at the earlier time, since the earlier moment, with all places."""
    hints = Hints()
    assert hints.add(PID, 20, delay=100, place=(1, b"a"))
    assert hints.next_due() > 0
    assert {} == hints.take_due()
    assert hints.add(PID, 30, place=(2, b"b"))
    [(pid, hint)] = hints.take_due().items()
    assert (PID, 20, [(1, b"a"), (2, b"b")]) == (pid, hint.since_ns, hint.places)
    assert PID not in hints


def test_a_resting_process_waits() -> None:
    """A resting process is not due before its rest is over, whatever it maps meanwhile."""
    hints = Hints()
    hints.rest(PID, 100)
    hints.add(PID, 1)
    hints.add(PID + 1, 1)
    assert [PID + 1] == list(hints.take_due())
    assert [PID] == list(hints.take_all())


def test_hints_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for so many processes and so many places of each; `add` returns False without room."""
    monkeypatch.setattr(hints_module, "MAX_HINTS", 2)
    monkeypatch.setattr(hints_module, "MAX_PLACES", 3)
    hints = Hints()
    assert [True, True, False] == [hints.add(pid, 1) for pid in (1, 2, 3)]
    for place in range(5):
        assert hints.add(1, 1, place=(place, b""))
    assert 3 == len(hints.take_all()[1].places)
