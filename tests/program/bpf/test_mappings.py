"""Mappings as /proc lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.bpf.mappings import MappedFile, ProcLister
from tests.unit.bpf.mapped import END, PID, START, STAT, Proc


def test_executable_files_are_listed(proc: Proc, built: Path) -> None:
    """Of /proc/PID/maps the executable file mappings are listed, whatever the names in it hold."""
    proc.map(built)
    number = built.stat().st_ino
    lines = [
        b"7f0000001000-7f0000003000 r-xp 00001000 08:01 %d /a name\\012 r-xp with (deleted)" % number,
        b"7f0000003000-7f0000004000 r--p 00003000 08:01 %d /a name" % number,
        b"7f0000005000-7f0000006000 r-xp 00000000 00:00 0 [vdso]",
        b"7f0000007000-7f0000008000 r-xp 00000000 08:01 99 /gone meanwhile",
    ]
    (proc.folder / "maps").write_bytes(b"\n".join(lines) + b"\n")
    [mapping] = ProcLister(proc.root).everything()
    found = built.stat()
    assert (PID, START, END) == (mapping.pid, mapping.start, mapping.end)
    assert MappedFile(0, number, found.st_size, found.st_mtime_ns, 8 << 20 | 1, 0) == mapping.file


def test_overlays_of_one_layer_are_one_file(proc: Proc, built: Path) -> None:
    """On an overlay the device identifies no file, so it is left out of a file's identity."""
    proc.map(built)
    (proc.folder / "maps").write_bytes(b"7f0000001000-7f0000003000 r-xp 00001000 00:27 5 /merged/lib.so\n")
    [mapping] = ProcLister(proc.root).of([PID])
    assert (0, 5) == (mapping.device, mapping.number)


def test_another_program_has_other_addresses(proc: Proc, built: Path) -> None:
    """The image changes when code, stack and heap start elsewhere, and only then."""
    proc.map(built)
    (proc.folder / "maps").write_bytes(b"7f0000001000-7f0000003000 r-xp 00001000 08:01 5 /lib.so\n")
    lister = ProcLister(proc.root)
    images = [lister.of([PID])[0].image]
    (proc.folder / "stat").write_bytes(STAT.replace(b" S 1 ", b" R 1 "))
    images.append(lister.of([PID])[0].image)
    (proc.folder / "stat").write_bytes(STAT.replace(b" 26 ", b" 626 "))
    images.append(lister.of([PID])[0].image)
    assert images[0] == images[1] != images[2]


@pytest.mark.parametrize("content", [b"", b"x", b"1-2 r-xp\n", b"z-y r-xp 0 0:0 7 /a\n", b"\xff\n\0\n"])
def test_malformed_files_are_skipped(proc: Proc, content: bytes) -> None:
    """A process that is gone, or has files that are cut short, is left out."""
    (proc.folder / "maps").write_bytes(content)
    assert [] == ProcLister(proc.root).of([PID, PID + 1])
    (proc.folder / "stat").write_bytes(content)
    assert [] == ProcLister(proc.root).of([PID])
