"""Listing processes of which one keeps the kernel waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.background.patience import Unanswered
from exporter.bpf import patient_lister
from exporter.bpf.mappings import Mapping
from exporter.bpf.native import BpfError
from exporter.bpf.patient_lister import PatientLister
from tests.support import PATIENCE, until

STUCK, OTHERS = 7, (8, 9)


class Source:
    """A lister of three processes: what lists one of `locked` waits until it is not."""

    name = "source"

    def __init__(self) -> None:
        self.one_process = True
        self.answers = threading.Event()
        self.locked = {STUCK}
        self.closed = False

    def everything(self) -> list[Mapping]:
        return self.of((STUCK, *OTHERS))

    def of(self, pids: Collection[int]) -> list[Mapping]:
        if self.locked.intersection(pids):
            self.answers.wait()
        if 666 in pids:
            raise BpfError(5, "listing failed")
        return [Mapping._make((*[0] * 10, pid, 0)) for pid in pids]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def source() -> Iterator[Source]:
    source = Source()
    yield source
    source.answers.set()


@pytest.fixture
def lister(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PatientLister]:
    monkeypatch.setattr(patient_lister, "ALL_SECONDS", 2.0)
    monkeypatch.setattr(patient_lister, "ONE_SECONDS", 2.0)
    for name in (STUCK, *OTHERS, "self"):
        (tmp_path / str(name)).mkdir()
    lister = PatientLister(source, tmp_path)
    call = lister.patience.call

    def patiently(key: int, function: Any, seconds: float | None) -> Any:
        """Only what is locked has a time limit: what a busy machine does late is not."""
        pids = getattr(function.args[0], "args", [(STUCK, *OTHERS)])[0]
        return call(key, function, seconds if seconds is None or source.locked.intersection(pids) else PATIENCE)

    monkeypatch.setattr(lister.patience, "call", patiently)
    yield lister
    lister.close()
    assert source.closed


def pids(found: list[Mapping]) -> list[int]:
    return sorted(mapping.pid for mapping in found)


def test_a_process_that_cannot_be_listed_is_left_out(source: Source, lister: PatientLister) -> None:
    """All others are listed, and it is too when the kernel has answered."""
    assert [*OTHERS] == pids(lister.everything())
    assert {STUCK} == lister.left_out
    assert [8] == pids(lister.of([STUCK, 8]))
    threads = {*threading.enumerate()}
    for _ in range(100):
        assert [8] == pids(lister.of([STUCK, 8]))
    assert {*threading.enumerate()} <= threads  # nobody waits for it again
    source.locked.clear()
    source.answers.set()
    until(lambda: [STUCK, *OTHERS] == pids(lister.everything()), "listed again")
    assert not lister.left_out


def test_one_that_is_locked_later(source: Source, lister: PatientLister) -> None:
    """A process that becomes locked is left out; the others of the same listing are listed."""
    source.locked.clear()
    assert [STUCK, *OTHERS] == pids(lister.everything())
    source.locked.add(STUCK)
    assert [*OTHERS] == pids(lister.of([STUCK, *OTHERS]))


def test_errors_are_those_of_the_lister(source: Source, lister: PatientLister) -> None:
    """An error reaches who lists, and the next listing works."""
    with pytest.raises(BpfError, match="listing failed"):
        lister.of([666])
    assert [8] == pids(lister.of([8]))


def test_where_one_process_cannot_be_listed(source: Source, lister: PatientLister) -> None:
    """There nothing is left out."""
    source.one_process = False
    threading.Timer(3.0, source.answers.set).start()
    assert [STUCK, *OTHERS] == pids(lister.everything())


def test_time_is_counted(source: Source, lister: PatientLister) -> None:
    """The processor time of the thread that lists is known to who lists."""
    source.locked.clear()
    for _ in range(1000):
        lister.everything()
    assert 0 < lister.cpu_seconds


def test_a_user_with_many_that_cannot_be_listed(
    source: Source, lister: PatientLister, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond some, all of that user's are left out, and those of others listed: nobody is waited for without end."""
    monkeypatch.setattr(patient_lister, "ONE_SECONDS", 0.2)
    monkeypatch.setattr(patient_lister, "ALL_SECONDS", 0.2)
    monkeypatch.setattr(patient_lister, "user_of", lambda proc, pid: 1000 if pid >= 100 else 0)
    hostile = range(100, 150)
    source.locked = {*hostile}
    assert [8] == pids(lister.of([*hostile, 8]))
    assert {*hostile} == lister.left_out
    assert patient_lister.MOST_OF_USER == len(lister.waiting())

    source.locked = set()
    source.answers.set()
    until(lambda: not lister.waiting(), "answered")
    assert [*hostile] == pids(lister.of(hostile)) and not lister.left_out


def test_where_those_of_many_users_cannot_be_listed(
    source: Source, lister: PatientLister, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit of all together, users who have one are left out, and others are listed."""
    monkeypatch.setattr(patient_lister, "ONE_SECONDS", 0.2)
    monkeypatch.setattr(patient_lister, "ALL_SECONDS", 0.2)
    monkeypatch.setattr(patient_lister, "user_of", lambda proc, pid: pid // 100)
    source.locked = {*range(100, 2000)}
    found = lister.of([*(100 * user + number for number in range(5) for user in range(1, 11)), 8])
    assert [8] == pids(found)


def test_one_that_is_locked_again_and_again(
    source: Source, lister: PatientLister, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting is shorter each time, and others are not listed together with the process for a while; the first limit is
    that of all.
    """
    limits: list[float] = []
    call = lister.patience.call

    def noted(key: int, function: Callable[[], Any], seconds: float) -> Any:
        limits.append(seconds)
        if key in (0, STUCK):
            raise Unanswered(new=True)
        return call(key, function, seconds)

    monkeypatch.setattr(patient_lister, "user_of", lambda proc, pid: pid)
    monkeypatch.setattr(lister.patience, "call", noted)
    for _ in range(3):
        assert [8] == pids(lister.of([STUCK, 8]))
    assert [2.0, 2.0, 2.0, 2.0 / 2, 2.0, 2.0 / 3, 2.0] == limits
