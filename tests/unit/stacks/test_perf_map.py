"""Names of code made at run time, from files that their processes write while they are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exporter.stacks import opener, perf_map
from exporter.stacks.perf_map import PerfMap


def update(names: PerfMap, path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        names.update(descriptor)
    finally:
        os.close(descriptor)


def test_names(tmp_path: Path) -> None:
    """A name has spaces; the newest line of an address counts; half a line is read with its other half."""
    path, names = tmp_path / "perf-1.map", PerfMap()
    path.write_text("7f00 10 LazyCompile:*f /a b.js:1\n7f10 8 g\n7f40 1")
    update(names, path)
    assert ["", "LazyCompile:*f /a b.js:1", "g", "g", "", ""] == [
        names.name(it) for it in (0x7EFF, 0x7F0F, 0x7F10, 0x7F17, 0x7F18, 0x7F40)
    ]
    with path.open("a") as file:
        file.write("0 whole\n7f10 4 other\n")
    update(names, path)
    assert ["whole", "other", ""] == [names.name(it) for it in (0x7F4F, 0x7F10, 0x7F14)]
    path.write_text("10 10 new\n")
    update(names, path)
    assert ["", "new"] == [names.name(it) for it in (0x7F4F, 0x10)]


def test_nonsense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that are none are passed over, and no more names are kept than there is room for."""
    monkeypatch.setattr(perf_map, "MOST_NAMES", 2)
    path, names = tmp_path / "perf-1.map", PerfMap()
    path.write_bytes(
        b"\n\xff\n1 2\nx y z\n-1 10 low\n" + b"10 10 \xff\xfe\n20 -5 none\n" + b"30 5 last\n40 5 too many\n"
    )
    update(names, path)
    assert ["\ufffd\ufffd", "", "last", ""] == [names.name(it) for it in (0x10, 0x20, 0x30, 0x40)]


def test_only_files_of_the_process(tmp_path: Path) -> None:
    """No link is followed, and nothing opened that is no file: a process may put there what it likes."""
    place = [*tmp_path.parts[1:]]
    (tmp_path / "file").write_text("1")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "folder").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    descriptor = opener.open_in_root(os.getpid(), [*place, "file"])
    assert b"1" == os.read(descriptor, 9)
    os.close(descriptor)
    for name in (["link"], ["folder", "file"], ["fifo"], ["none"], []):
        assert -1 == opener.open_in_root(os.getpid(), [*place, *name])


@pytest.mark.skipif(os.geteuid() != 0, reason="files of other users are made by root")
def test_only_the_users_own_map() -> None:
    """A map of another user is not opened: the process may have linked or mounted it there."""
    path = Path(f"/tmp/perf-{os.getpid()}.map")
    assert -1 == opener.open_perf_map(os.getpid())
    path.write_text("1")
    try:
        descriptor = opener.open_perf_map(os.getpid())
        assert b"1" == os.read(descriptor, 9)
        os.close(descriptor)
        os.chown(path, 12345, 12345)
        assert -1 == opener.open_perf_map(os.getpid())
    finally:
        path.unlink()
    assert -1 == opener.open_perf_map(1 << 22)
