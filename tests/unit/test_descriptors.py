"""Descriptors that the limit of open files leaves for probes, and the functions that keep to it."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exporter import descriptors
from exporter.bpf import uprobe
from exporter.bpf.native import BpfError, require_descriptors
from exporter.bpf.uprobe import AttachError, Point
from exporter.web.connections import MOST, Connections


@pytest.mark.parametrize(
    ("most", "reserved"), [(32, 64), (128, 64), (256, 64), (512, 128), (1024, 256), (4096, 320), (1 << 20, 320)]
)
def test_reserve(most: int, reserved: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter, 64 at least and 320 at most; the ceiling of probes is below."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    assert (reserved, most - reserved) == (descriptors.reserve(most), descriptors.ceiling())


def test_room_is_what_is_not_in_use() -> None:
    """Each open file takes one of the room."""
    before = descriptors.room()
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(Path("/dev/null").open())
        assert before - 5 == descriptors.room()
    assert before == descriptors.room()


def test_room_by_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 6.2, where the folder has no size, the open files are listed."""
    exact = descriptors.room()
    listed = list(descriptors.FOLDER.iterdir())
    monkeypatch.setattr(
        descriptors,
        "FOLDER",
        SimpleNamespace(stat=lambda: SimpleNamespace(st_size=0), iterdir=lambda: iter(listed)),
    )
    assert abs(exact - descriptors.room()) <= 1  # listing takes one itself


def test_no_room_when_nothing_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """If not even the folder can be listed, nothing is left."""

    def refuse() -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(descriptors, "FOLDER", SimpleNamespace(stat=refuse))
    assert descriptors.room() < 0


def test_the_soft_limit_is_raised() -> None:
    """To the hard one."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
        descriptors.raise_limit()
        assert before[1] == descriptors.limit()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_programs_leave_the_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that needs more than the room is not loaded, and the error names the limits to raise."""
    monkeypatch.setattr(descriptors, "room", lambda: 40)
    require_descriptors(40, "load x")
    with pytest.raises(BpfError, match=r"load x: .*LimitNOFILE, ulimit -n") as refused:
        require_descriptors(41, "load x")
    assert errno.EMFILE == refused.value.errno


@pytest.mark.parametrize(("multi", "room"), [(True, 0), (False, 5)])
def test_links_leave_the_reserve(multi: bool, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links that would take some of the reserve are not made, and all points are refused at once."""
    monkeypatch.setattr(descriptors, "room", lambda: room)
    program: Any = SimpleNamespace(multi=multi, name="program", fd=-1, handle=0)
    points = [Point(1), Point(2), Point(3)]
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(AttachError, match="LimitNOFILE") as refused:
        uprobe.attach(program, os.devnull, points)
    assert (errno.EMFILE, tuple(points)) == (refused.value.errno, refused.value.failed)
    assert before == len([*Path("/proc/self/fd").iterdir()])


@pytest.mark.parametrize(("limit", "most"), [(32, 8), (400, 100), (1024, MOST), (65536, MOST)])
def test_connections_are_fewer_where_the_limit_is_low(limit: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the descriptors at most, so that connections themselves do not use them up."""
    monkeypatch.setattr(descriptors, "limit", lambda: limit)
    assert most == Connections(lambda: None).most


@pytest.mark.parametrize(
    ("code", "named"),
    [(errno.ENOENT, r"counted in /proc/self/fd \(No such .*mount procfs"), (errno.EMFILE, "raise the limit of open")],
)
def test_the_reason_why_programs_have_no_room(monkeypatch: pytest.MonkeyPatch, code: int, named: str) -> None:
    """If the open files cannot be counted, the folder is named, not a limit that was not reached."""

    class Unreadable(type(Path())):  # type: ignore[misc]
        def stat(self, **_: Any) -> Any:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(descriptors, "FOLDER", Unreadable("/proc/self/fd"))
    with pytest.raises(BpfError, match=named) as refused:
        require_descriptors(1, "load x")
    assert code == refused.value.errno
