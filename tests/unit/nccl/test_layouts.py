"""The numbers by which the kernel's programs know layouts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from exporter.bpf.elf import ElfError, Function
from exporter.bpf.file_worker import ChildError, TooLong
from exporter.bpf.library import Library
from exporter.nccl import layouts
from exporter.nccl.layout import UNKNOWN, CommunicatorLayout
from exporter.nccl.layouts import MOST, Layouts


class Kernel(dict[int, Any]):
    value = SimpleNamespace

    def set(self, key: int, value: Any) -> None:
        self[key] = value


def library(layout: CommunicatorLayout, monkeypatch: pytest.MonkeyPatch) -> Library:
    """A library that is found to have this layout when it is looked up next."""
    monkeypatch.setattr(layouts, "read", lambda _: layout)
    return Library((0, 0), "libnccl.so", "libnccl.so", 62, "", {})


def test_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layout has one number, whichever library it is of, and the kernel knows it; 0 is the unknown one."""
    kernel = Kernel()
    subject = Layouts(kernel)
    kept = [
        library(it, monkeypatch)
        for it in (CommunicatorLayout(0x400), CommunicatorLayout(0x400), CommunicatorLayout(0x800, 8, True), UNKNOWN)
    ]
    found = []
    for it, layout in zip(
        kept,
        (CommunicatorLayout(0x400), CommunicatorLayout(0x400), CommunicatorLayout(0x800, 8, True), UNKNOWN),
        strict=True,
    ):
        monkeypatch.setattr(layouts, "read", lambda _, layout=layout: layout)
        found.append(subject.number(it))

    assert [1, 1, 2, 0] == found
    assert {1: 0x400, 2: 0x800} == {number: value.identity for number, value in kernel.items()}


def test_libraries_that_were_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries with ever new layouts take no number for ever; one that is in use keeps its own."""
    kernel = Kernel()
    subject = Layouts(kernel)
    mine = library(CommunicatorLayout(0x400), monkeypatch)
    assert 1 == subject.number(mine)
    for at in range(0x800, 0x800 + 8 * MOST, 4):
        assert subject.number(library(CommunicatorLayout(at), monkeypatch))
    other = library(CommunicatorLayout(0x404), monkeypatch)

    assert 0x404 == kernel[subject.number(other) or 0].identity
    monkeypatch.setattr(layouts, "read", lambda _: CommunicatorLayout(0x400))
    assert (1, 0x400) == (subject.number(mine), kernel[1].identity)


def test_all_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """If all numbers are taken by libraries in use, the next layout is unknown."""
    subject = Layouts(Kernel())
    kept = [library(CommunicatorLayout(4 * at), monkeypatch) for at in range(1, MOST)]
    for at, it in enumerate(kept, 1):
        monkeypatch.setattr(layouts, "read", lambda _, at=at: CommunicatorLayout(4 * at))
        assert at == subject.number(it)

    assert 0 == subject.number(library(CommunicatorLayout(4 * MOST), monkeypatch))


KNOWN = CommunicatorLayout(0x400)


@pytest.mark.parametrize(
    ("layout", "other", "name", "owner", "device_code", "passed"),
    [
        (UNKNOWN, KNOWN, "libtracer.so", 1000, False, True),
        (None, KNOWN, "libnccl-tracer.so", 1000, False, True),
        (UNKNOWN, KNOWN, "libtracer.so", 0, False, True),
        (UNKNOWN, KNOWN, "libmscclpp_nccl.so", 0, True, False),
        (UNKNOWN, KNOWN, "libtracer.so", 1001, False, False),
        (UNKNOWN, KNOWN, "librccl.so.1", 1000, False, False),
        (KNOWN, KNOWN, "libtracer.so", 1000, False, False),
        (UNKNOWN, UNKNOWN, "libtracer.so", 1000, False, False),
        (UNKNOWN, None, "libtracer.so", 1000, False, False),
    ],
)
def test_passes_on(
    monkeypatch: pytest.MonkeyPatch,
    layout: CommunicatorLayout | None,
    other: CommunicatorLayout | None,
    name: str,
    owner: int,
    device_code: bool,
    passed: bool,
) -> None:
    """A library without known communicators passes NCCL's functions on, beside one with them that its owner trusts.

    One with code for GPUs is another implementation of them.
    """
    subject = Layouts(Kernel())
    functions = {it: Function(it, 0, 8, 0, 1) for it in ("ncclSend", "cuStreamEndCapture")}
    tracer = Library((0, 1), f"/a/{name}", "", 62, "", functions, owner=1000)
    nccl = Library((0, 2), "/b/libnccl.so.2", "", 62, "", functions, owner=owner)
    found = {tracer.path: layout, nccl.path: other}
    monkeypatch.setattr(layouts, "read", lambda library: found.pop(library.path))  # each once
    monkeypatch.setattr(layouts.WORKER, "call", lambda function, _: device_code)
    for _ in range(2):
        assert subject.passes_on(tracer, nccl) == (frozenset({"ncclSend"}) if passed else frozenset())


class Reader:
    """Stands for the process that reads files: raises these errors, one a call, and answers then."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    def call(self, *_: object) -> CommunicatorLayout:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return CommunicatorLayout(0x400)


def read_by(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> int | None:
    monkeypatch.setattr(layouts, "WORKER", reader)
    monkeypatch.setattr(layouts, "PAUSE", 0)
    return Layouts(Kernel()).number(Library((0, 0), "libnccl.so", "libnccl.so", 62, "", {}))


@pytest.mark.parametrize("error", [OSError(116, "Stale file handle"), OSError(12, "no memory"), ChildError("died")])
def test_a_library_that_cannot_be_read_for_a_moment(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is read again, a few times; then nothing is known of it, not even that its layout is unknown."""
    assert 1 == read_by(Reader(error, error), monkeypatch)
    reader = Reader(*[error] * layouts.ATTEMPTS)
    with pytest.raises(OSError, match=str(error.args[-1])):
        read_by(reader, monkeypatch)
    assert layouts.ATTEMPTS == reader.calls


@pytest.mark.parametrize("error", [TooLong("2 s"), ElfError("cut short")])
def test_a_library_that_makes_no_sense(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was read and not understood has the unknown layout, and is read once."""
    reader = Reader(error)
    assert (0, 1) == (read_by(reader, monkeypatch), reader.calls)
