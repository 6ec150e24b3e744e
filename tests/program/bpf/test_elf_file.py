"""Headers, segments and content of ELF files: what is refused before any table is read, and what an address has."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.bpf.elf_file import ElfError, ElfFile


@pytest.fixture(scope="module")
def library(compile_library: Callable[[str, str], Path]) -> Path:
    return compile_library("libcontent.so", "int plain(int a) { return a + 1; }\n")


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", b"#!/bin/sh\n" * 20, b"\x7fELF\x01\x01\x01" + bytes(60), bytes(4096)]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    """A file that is no 64-bit little-endian ELF file raises ElfError."""
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ElfError):
        ElfFile.open(path)


def test_an_object_file_is_refused(library: Path, tmp_path: Path) -> None:
    """A relocatable object has no segments to attach in."""
    (tmp_path / "a.c").write_text("int f(void) { return 0; }")
    subprocess.run(["gcc", "-c", "-o", tmp_path / "a.o", tmp_path / "a.c"], check=True)
    with pytest.raises(ElfError, match="neither a program nor a shared library"):
        ElfFile.open(tmp_path / "a.o")


def test_pipes_and_folders_are_refused_without_waiting(tmp_path: Path) -> None:
    """Only regular files are opened: a pipe nobody writes to does not hang us, a missing file is an OSError."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        with pytest.raises(ElfError, match="not a regular file"):
            ElfFile.open(path)
    with pytest.raises(FileNotFoundError):
        ElfFile.open(tmp_path / "missing")


@pytest.mark.parametrize(("address", "size"), [(1 << 63, 8), (-8, 8), (1 << 40, 1)])
def test_addresses_outside_the_file_are_errors(library: Path, address: int, size: int) -> None:
    """An address that no segment has is an error of the file, whatever it is."""
    with ElfFile.open(library) as opened, pytest.raises(ElfError):
        opened.read(address, size)


def test_reading_past_a_segment_is_an_error(library: Path) -> None:
    """A table that begins in a segment has to end in it."""
    with ElfFile.open(library) as opened:
        part = opened.code_parts[0]
        with pytest.raises(ElfError):
            opened.read(part.address + part.size - 4, 1 << 20)
