"""The search for users of libraries, with a listing of processes that were made up."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.bpf.attached import Attached
from exporter.bpf.hints import MAX_PLACES, Hint
from exporter.bpf.mappings import Mapping
from exporter.bpf.search import Search
from exporter.bpf.users import LibraryUsers
from exporter.bpf.watch import Batch, Exec, Mapped
from tests.program.bpf.test_users import Interest, attached

PID, PAGE = os.getpid(), 4096


def mapping(number: int, image: int = 1, started: int = 0) -> Mapping:
    return Mapping(image, started, number * PAGE, (number + 1) * PAGE, 0, 1, 0, 0, 0, 0, PID, 0)


class Lister:
    one_process, cpu_seconds = True, 0.0
    left_out: frozenset[int] = frozenset()
    image, started = 1, 0

    def of(self, pids: Collection[int]) -> list[Mapping]:
        time.sleep(0.001)
        return [mapping(number, self.image, self.started) for number in range(0, 2 * 23, 2)]


class Attachments:
    """One library, of which every mapping is."""

    contended = False

    def __init__(self, library: Attached) -> None:
        self._library = library
        self.verdicts = SimpleNamespace(is_uninteresting=lambda file: False, is_attached=lambda file: True)

    def __iter__(self) -> Iterator[Attached]:
        return iter([self._library])

    def on_account_of(self, pid: int) -> AbstractContextManager[None]:
        return nullcontext()

    def begin_round(self, pids: Collection[int]) -> list[int]:
        return list(pids)

    def of(self, mapping: Mapping) -> Attached:
        return self._library


def test_a_file_that_is_mapped_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a file's mapping is looked up once, not for each of a process's mappings of the file.

    A process may have 65,530 of them and a hint MAX_PLACES records: looking at that process took half a minute, and no
    library of another one was found meanwhile.
    """
    looked_up: list[Mapping] = []
    mapped_ns = Hint.mapped_ns

    def look_up(hint: Hint, mapping: Mapping) -> int:
        looked_up.append(mapping)
        return mapped_ns(hint, mapping)

    monkeypatch.setattr(Hint, "mapped_ns", look_up)
    interest = Interest()
    library = attached(interest)
    attachments: Any = Attachments(library)
    lister: Any = Lister()
    with select.epoll() as poll:
        users = LibraryUsers(poll)
        search = Search(lister, users, attachments, threading.Event(), 60.0)
        for _ in range(2):
            search.note(Batch(mapped=[Mapped(PID, number * PAGE, b"a", number + 1) for number in range(MAX_PLACES)]))
            search.look()
        users.close()

    assert ([(PID, True)], 1) == (interest.started, len(looked_up))


def test_exec_while_processes_are_listed() -> None:
    """The program that was listed is not known from the times: a second listing decides.

    On a busy node listing all processes takes seconds, and a job that began meanwhile was taken for one that had been
    replaced: its calls so far were those of an ended process.
    """
    interest = Interest()
    lister: Any = Lister()
    attachments: Any = Attachments(attached(interest))
    with select.epoll() as poll:
        users = LibraryUsers(poll)
        search = Search(lister, users, attachments, threading.Event(), 60.0)
        search.note(Batch(mapped=[Mapped(PID, 0, b"a", 1)]))
        search.look()
        meanwhile = users.listed_ns[0] + 1
        search.note(Batch(execs=[Exec(meanwhile, PID)]))
        search.look()
        assert [] == interest.replaced and PID in users
        lister.image = 2
        search.note(Batch(execs=[Exec(meanwhile, PID)]))
        search.look()
        assert [PID] == interest.replaced
        users.close()
    assert 2 == len(interest.started)


@pytest.mark.parametrize(("started", "first"), [(22, False), (23, True), (24, True)])
def test_a_process_that_starts_while_records_are_lost(started: int, first: bool) -> None:
    """After a loss the time of a mapping is unknown, but it is after the start of its process: a process that is
    younger than the attachment is seen from its first call.
    """
    interest, lister = Interest(), Lister()
    library, lister.started = attached(interest), started
    library.complete_ns = 23
    attachments: Any = Attachments(library)
    with select.epoll() as poll:
        users = LibraryUsers(poll)
        search = Search(lister, users, attachments, threading.Event(), 60.0)  # type: ignore[arg-type]
        search.count_lost(1)
        search.note(Batch(mapped=[Mapped(PID, 0, b"a", 25)]))
        search.look()
        users.close()
    assert [(PID, first)] == interest.started
