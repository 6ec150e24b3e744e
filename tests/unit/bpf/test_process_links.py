"""Links of one process each, beside the link for all."""

from __future__ import annotations

import errno
from collections.abc import Collection
from typing import Any

import pytest

from exporter.bpf import multi
from exporter.bpf.libbpf import Link
from exporter.bpf.process_links import (
    BLIND,
    LEAVING,
    LINKED_MARK,
    MOST,
    LinkedProcesses,
    ProcessLinks,
    linked_key,
    supported,
)
from exporter.bpf.uprobe import AttachError


class Kernel:
    """Both maps and the links: what was done, in order."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.refused: Collection[int] = ()
        self.ended: Collection[int] = ()
        self.links = ProcessLinks(
            LinkedProcesses(Written("linked", self.done), Written("processes", self.done)), self._attach
        )

    def _attach(self, pid: int) -> Link:
        if pid in self.refused:
            raise AttachError(28, "no space", [])
        if pid in self.ended:
            raise AttachError(errno.ESRCH, "No such process", [])
        self.done.append(("attach", pid))
        return Link(lambda: self.done.append(("close", pid)))

    def keep(self, *pids: int) -> tuple[set[int], list[tuple[Any, ...]]]:
        self.done.clear()
        return set(self.links.keep(pids)), list(self.done)


class Written:
    def __init__(self, name: str, done: list[tuple[Any, ...]]) -> None:
        self._name, self._done = name, done

    def set(self, key: Any, value: Any) -> None:
        self._done.append((self._name, key, value))

    def delete(self, key: int) -> None:
        self._done.append((self._name, "delete", key))


def test_calls_are_handed_over_while_both_links_are_there() -> None:
    """Attached first, and closed last; nothing is done twice."""
    kernel = Kernel()
    added = [("attach", 7), ("processes", 0, 1), ("linked", 7, 1)]
    assert ({7}, added) == kernel.keep(7)
    assert ({7}, []) == kernel.keep(7)
    both = [("attach", 8), ("processes", 0, 2), ("linked", 8, 1)]
    assert ({7, 8}, both) == kernel.keep(7, 8)
    assert ({8}, [("linked", "delete", 7), ("processes", 0, 1), ("close", 7)]) == kernel.keep(8)
    kernel.done.clear()
    kernel.links.leave([8, 9])
    assert [("linked", "delete", 8), ("processes", 0, 0), ("close", 8)] == kernel.done


def test_calls_that_wait_for_their_return_are_waited_for() -> None:
    """While a process has its row, its links see calls that began in them; no time with links has the row of another
    time, nor one of which returns are not seen."""
    done: list[tuple[Any, ...]] = []
    rows = LinkedProcesses(Written("linked", done), Written("processes", done), group=2, waits=True)  # type: ignore[arg-type]
    links = ProcessLinks(
        rows, lambda pid: Link(lambda: done.append(("close", pid))), lambda pids: done.append((*pids,))
    )
    links.keep([7])
    row = LINKED_MARK | 1
    assert [("processes", 2, 1), ("linked", linked_key(7, 2), row)] == done
    done.clear()
    links.keep([])
    handed_back = ("linked", 2 << 32 | 7, row | LEAVING)
    assert [handed_back, (7,), ("linked", "delete", 2 << 32 | 7), ("processes", 2, 0), ("close", 7)] == done
    links.keep([7], since=0)
    assert ("linked", linked_key(7, 2), LINKED_MARK | BLIND | 2) == done[-1]


def test_a_process_that_cannot_be_attached_to(caplog: pytest.LogCaptureFixture) -> None:
    """The process stays with the others, and is tried again."""
    kernel = Kernel()
    kernel.refused = {7}
    assert {8} == kernel.keep(7, 8)[0]
    assert "cannot be probed on its own" in caplog.text
    kernel.refused = ()
    assert {7, 8} == kernel.keep(7, 8)[0]


def test_a_process_that_has_ended_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    kernel = Kernel()
    kernel.ended = {7}
    assert {8} == kernel.keep(7, 8)[0]
    assert not caplog.text


def test_links_are_bounded() -> None:
    """A process beyond them waits until another one has none."""
    kernel = Kernel()
    assert MOST == len(kernel.keep(*range(1, MOST + 2))[0])
    kernel.links.leave([1])
    assert MOST + 1 in kernel.keep(*range(2, MOST + 2))[0]


@pytest.mark.parametrize(
    ("release", "able"),
    [
        ("6.18.44-x", True),
        ("6.11.0", True),
        ("6.10.14", False),
        ("6.8.0-31-generic", False),
        ("7.0", True),
        ("", False),
    ],
)
def test_the_kernels_that_probe_a_process(monkeypatch: pytest.MonkeyPatch, release: str, able: bool) -> None:
    """All its threads, which older ones do not."""
    monkeypatch.setattr(multi, "supported", lambda: True)
    assert able == supported(release)
    monkeypatch.setattr(multi, "supported", lambda: False)
    assert not supported(release)
