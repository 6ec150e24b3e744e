"""Libraries: what a mapped file holds."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from exporter.bpf import library
from exporter.bpf.library import Vanished
from tests.unit.bpf.mapped import END, Proc


def test_wanted_functions_are_found_and_the_file_stays_open(proc: Proc, built: Path, tmp_path: Path) -> None:
    """A library has the identity and the functions of its file, which can be opened after its name is removed."""
    path = Path(shutil.copy(built, tmp_path / "lib.so"))
    found = library.examine(proc.root, proc.map(path), {"wanted", "unknown"})
    assert found
    examined = found.library
    identity = (path.stat().st_dev, path.stat().st_ino)
    path.unlink()
    assert (identity, str(path), {"wanted"}) == (examined.identity, examined.path, set(examined.functions))
    assert built.read_bytes() == Path(examined.open_path).read_bytes()
    os.close(found.held.descriptor)


def test_files_of_other_architectures_are_no_libraries(proc: Proc, built: Path, tmp_path: Path) -> None:
    """An emulator maps them, and would run into breakpoints that it does not know."""
    path = Path(shutil.copy(built, tmp_path / "lib.so"))
    content = bytearray(path.read_bytes())
    content[18:20] = (243).to_bytes(2, "little")  # e_machine: RISC-V
    path.write_bytes(content)
    assert library.examine(proc.root, proc.map(path), {"wanted"}) is None


def test_importers_and_definers(proc: Proc, built: Path, calling: Path) -> None:
    """A file that imports a function is found for interests in importers, and for no others."""
    assert library.examine(proc.root, proc.map(calling), {"wanted"}) is None
    assert library.examine(proc.root, proc.map(built), {"other"}, {"wanted"}) is None
    found = library.examine(proc.root, proc.map(calling), {"other"}, {"wanted", "caller"})
    assert found
    os.close(found.held.descriptor)
    assert ({}, {"wanted"}) == (found.library.functions, found.library.imports)


def test_another_file_in_the_same_place(proc: Proc, built: Path, other: Path) -> None:
    """A mapping that vanished, or that shows another file by now, is no library."""
    mapping = proc.map(built)
    proc.map(other)
    with pytest.raises(Vanished):
        library.examine(proc.root, mapping, {"wanted"})
    with pytest.raises(Vanished):
        library.examine(proc.root, mapping._replace(end=END + 1), {"wanted"})
