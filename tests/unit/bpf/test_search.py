"""The search for users of libraries, with a listing of processes that were made up."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Collection
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.bpf.hints import MAX_PLACES, Hint
from exporter.bpf.mappings import Mapping
from exporter.bpf.search import Search
from exporter.bpf.users import Users
from exporter.bpf.watch import Batch, Mapped
from tests.program.bpf.test_users import Interest, attached

PID, PAGE = os.getpid(), 4096


def mapping(number: int) -> Mapping:
    return Mapping(1, 0, number * PAGE, (number + 1) * PAGE, 0, 1, 0, 0, 0, 0, PID, 0)


class Lister:
    one_process, cpu_seconds = True, 0.0
    left_out: frozenset[int] = frozenset()

    def of(self, pids: Collection[int]) -> list[Mapping]:
        return [mapping(number) for number in range(0, 2 * 23, 2)]


def test_a_file_that_is_mapped_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a file was mapped is looked up once, not for each of a process's mappings of the file.

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
    attachments: Any = SimpleNamespace(
        verdicts=SimpleNamespace(is_uninteresting=lambda file: False),
        on_account_of=lambda pid: nullcontext(),
        begin_round=lambda pids: list(pids),
        of=lambda mapping: library,
        contended=False,
    )
    lister: Any = Lister()
    with select.epoll() as poll:
        users = Users(poll)
        search = Search(lister, users, attachments, threading.Event(), 60.0)
        for _ in range(2):
            search.note(Batch(mapped=[Mapped(PID, number * PAGE, b"a", number + 1) for number in range(MAX_PLACES)]))
            search.look()
        users.close()

    assert ([(PID, True)], 1) == (interest.started, len(looked_up))
