"""Pointers of a running process: functions of a file, if a table of the file has them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.bpf.elf import Elf, Function
from exporter.verbs.code import live, ops
from exporter.verbs.code.live import POINTERS

PID, START = 4711, 0x7F0000001000
FUNCTIONS = "".join(f"int {op}(int a) {{ return a * {len(op)}; }}\n" for op in (*POINTERS, "modify_qp"))
TABLE = f"void *const table[] = {{ 0, {', '.join(POINTERS)}, modify_qp }};"
APART = f"void *const table[] = {{ {', 0, '.join(POINTERS)} }};"


@pytest.fixture(scope="module")
def library(compile_library: Callable[..., Path]) -> Path:
    return compile_library("libprovider.so", FUNCTIONS + TABLE)


def functions_of(path: Path, names: tuple[str, ...] = POINTERS) -> dict[str, Function]:
    with Elf.open(path) as elf:
        return elf.functions(names)


def offsets_of(path: Path) -> dict[str, int]:
    return {name: it.offset for name, it in functions_of(path).items()}


def opened(path: Path) -> Any:
    return SimpleNamespace(open_path=str(path), identity=(0, 0))


@pytest.fixture
def proc(tmp_path: Path, library: Path) -> Path:
    """A process that has the library's code mapped, another file, and a piece of memory that is no file's."""
    with Elf.open(library) as elf:
        part = elf.code_parts[0]
    page, end = part.offset & ~0xFFF, START + 0x1000
    files = tmp_path / str(PID) / "map_files"
    files.mkdir(parents=True)
    (files / f"{START:x}-{end:x}").symlink_to(library)
    (tmp_path / "other").write_bytes(b"other")
    (files / f"{end:x}-{end + 0x1000:x}").symlink_to(tmp_path / "other")
    (tmp_path / str(PID) / "maps").write_text(
        f"{START - 0x1000:x}-{START:x} r--p 00000000 08:01 77   /x\n"
        f"{START:x}-{end:x} r-xp {page:08x} 08:01 77   /x\n"
        f"{end:x}-{end + 0x1000:x} r-xp {page:08x} 08:01 78   /y\n"
        f"{end + 0x1000:x}-{end + 0x2000:x} r-xp 00000000 00:00 0\n"
    )
    return tmp_path


def test_addresses_are_places_of_the_file(proc: Path, library: Path) -> None:
    """Addresses in the file's code are returned as offsets; those in other files or memory, or nowhere, are not."""
    places = offsets_of(library)
    addresses = {op: START + (offset & 0xFFF) for op, offset in places.items()}
    assert places == live.offsets_in(opened(library), PID, addresses, proc)
    for shift in (0x1000, 0x2000, -0x1000, -START):
        elsewhere = {op: address + shift for op, address in addresses.items()}
        assert {} == live.offsets_in(opened(library), PID, elsewhere, proc)
    assert {} == live.offsets_in(opened(proc / "other"), PID, addresses, proc)


def test_a_process_that_has_ended_is_an_error(tmp_path: Path, library: Path) -> None:
    """A process that ended meanwhile is the caller's to know."""
    with pytest.raises(FileNotFoundError):
        live.offsets_in(opened(library), PID, {"poll_cq": START}, tmp_path)


def test_functions_that_a_table_has_are_certain(library: Path, tmp_path: Path) -> None:
    """The functions found are those of the symbols, in a file without symbols too."""
    stripped = tmp_path / "libstripped.so"
    subprocess.run(["strip", "-o", stripped, library], check=True)
    for path in (library, stripped):
        found = live.learn(opened(path), offsets_of(library))
        assert {} == found.refused
        assert set(POINTERS) == found.functions.keys()
        for op, (function,) in found.functions.items():
            symbol = functions_of(library)[op]
            assert (symbol.offset, symbol.size, symbol.address) == (function.offset, function.size, function.address)


def test_a_program_at_a_fixed_address(tmp_path: Path) -> None:
    """The program's table needs no relocations, and is found in the file."""
    source, path = tmp_path / "program.c", tmp_path / "program"
    source.write_text(FUNCTIONS + TABLE + "int main(void) { return table[0] != 0; }")
    subprocess.run(["gcc", "-O2", "-no-pie", "-fno-pic", "-o", path, source], check=True)
    assert set(POINTERS) == live.learn(opened(path), offsets_of(path)).functions.keys()


def test_functions_that_no_table_has_next_to_each_other(compile_library: Callable[..., Path]) -> None:
    """Functions of the file that may be anything are refused, with the reason."""
    path = compile_library("libapart.so", FUNCTIONS + APART)
    found = live.learn(opened(path), offsets_of(path))
    assert {} == found.functions
    assert set(POINTERS) == found.refused.keys()
    assert "next to each other" in found.refused["post_send"]


@pytest.mark.parametrize(
    ("op", "by"), [("poll_cq", 1), ("post_send", -1), ("post_recv", 1 << 20), ("post_send", -(1 << 40))]
)
def test_where_no_function_begins(library: Path, op: str, by: int) -> None:
    """Inside a function, outside of code and of the file: refused."""
    offsets = offsets_of(library)
    found = live.learn(opened(library), offsets | {op: offsets[op] + by})
    assert {} == found.functions
    assert "no function begins" in found.refused[op]


def test_the_wrong_function_is_refused(library: Path) -> None:
    """Another function of the same table in the place of one."""
    other = functions_of(library, ("modify_qp",))["modify_qp"].offset
    assert {} == live.learn(opened(library), offsets_of(library) | {"post_send": other}).functions


def test_functions_of_several_files_are_refused(library: Path) -> None:
    """If one of the three functions is in another file, nothing is certain."""
    offsets = offsets_of(library)
    del offsets["post_recv"]
    found = live.learn(opened(library), offsets)
    assert ({}, set(POINTERS)) == (found.functions, found.refused.keys())


def test_a_file_that_is_no_elf_is_an_error(tmp_path: Path) -> None:
    """A mapped file that is something else is an ElfError, no error of another kind."""
    (tmp_path / "text").write_text("not a library" * 100)
    with pytest.raises(ValueError, match="ELF"):
        live.learn(opened(tmp_path / "text"), dict.fromkeys(POINTERS, 0))


@pytest.mark.parametrize(
    ("release", "poll_cq"),
    [(17, 38), (18, 44), (19, 47), (20, 48), (22, 49), (28, 50), (31, 52), (33, 52), (34, 52), (35, 53), (36, 53)]
    + [(58, 53), (59, 55), (61, 55), (62, 56), (64, 58), (65, 62)],
)
def test_layouts_by_release(release: int, poll_cq: int) -> None:
    """The index of poll_cq in each release's table is as counted in rdma-core's driver.h; the others follow it."""
    layout = ops.of_release(release)
    assert layout
    assert (8 * poll_cq, 8 * poll_cq + 8, 8 * poll_cq + 16) == tuple(
        layout.offsets[op] for op in ("poll_cq", "post_recv", "post_send")
    )


def test_releases_that_are_not_known() -> None:
    """Of a release before or after those there is no layout, and of a name without one no release."""
    assert (None, None) == (ops.of_release(16), ops.of_release(66))
    assert (44, 0) == (ops.release("libmlx5.so.1.24.44.0"), ops.release("librxe-rdmav34.so"))
