"""The numbers by which the kernel's programs know layouts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from exporter.bpf.library import Library
from exporter.nccl import layouts
from exporter.nccl.layout import UNKNOWN, Layout
from exporter.nccl.layouts import MOST, Layouts


class Kernel(dict[int, Any]):
    value = SimpleNamespace

    def set(self, key: int, value: Any) -> None:
        self[key] = value


def library(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> Library:
    """One that is found to have this layout, when it is asked for next."""
    monkeypatch.setattr(layouts, "_read", lambda _: layout)
    return Library((0, 0), "libnccl.so", "libnccl.so", 62, "", {})


def test_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layout has one number, whichever library it is of, and the kernel knows it; 0 is the unknown one."""
    kernel = Kernel()
    subject = Layouts(kernel)
    kept = [library(it, monkeypatch) for it in (Layout(0x400), Layout(0x400), Layout(0x800, 8, True), UNKNOWN)]
    found = []
    for it, layout in zip(kept, (Layout(0x400), Layout(0x400), Layout(0x800, 8, True), UNKNOWN), strict=True):
        monkeypatch.setattr(layouts, "_read", lambda _, layout=layout: layout)
        found.append(subject.number(it))

    assert [1, 1, 2, 0] == found
    assert {1: 0x400, 2: 0x800} == {number: value.identity for number, value in kernel.items()}


def test_libraries_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries with ever new layouts take no number for ever; one that is in use keeps its own."""
    kernel = Kernel()
    subject = Layouts(kernel)
    mine = library(Layout(0x400), monkeypatch)
    assert 1 == subject.number(mine)
    for at in range(0x800, 0x800 + 8 * MOST, 4):
        assert subject.number(library(Layout(at), monkeypatch))
    other = library(Layout(0x404), monkeypatch)

    assert 0x404 == kernel[subject.number(other) or 0].identity
    monkeypatch.setattr(layouts, "_read", lambda _: Layout(0x400))
    assert (1, 0x400) == (subject.number(mine), kernel[1].identity)


def test_all_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all numbers are taken by libraries that are there, the next one is unknown."""
    subject = Layouts(Kernel())
    kept = [library(Layout(4 * at), monkeypatch) for at in range(1, MOST)]
    for at, it in enumerate(kept, 1):
        monkeypatch.setattr(layouts, "_read", lambda _, at=at: Layout(4 * at))
        assert at == subject.number(it)

    assert 0 == subject.number(library(Layout(4 * MOST), monkeypatch))
