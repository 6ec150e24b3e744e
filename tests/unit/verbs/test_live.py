"""What addresses of a running process are, and which of its memory has them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.bpf.elf import Elf, Function
from exporter.verbs import live, objects, ops
from exporter.verbs.providers import OPS, Refused

PID, START = 4711, 0x7F0000001000
SOURCE = "int first(int a) { return a * 3; }\nint second(int a) { return a / 7 + first(a); }"


@pytest.fixture(scope="module")
def library(compile_library: Callable[[str, str], Path]) -> Path:
    return compile_library("libprovider.so", SOURCE)


@pytest.fixture
def second(library: Path) -> Function:
    with Elf.open(library) as elf:
        return elf.functions({"second"})["second"]


@pytest.fixture
def proc(tmp_path: Path, library: Path) -> Path:
    """A process that has the library's code mapped, and a piece of memory that is no file's."""
    with Elf.open(library) as elf:
        part = elf.code_parts[0]
    page, end = part.offset & ~0xFFF, START + 0x1000
    files = tmp_path / str(PID) / "map_files"
    files.mkdir(parents=True)
    (files / f"{START:x}-{end:x}").symlink_to(library)
    (tmp_path / str(PID) / "maps").write_text(
        f"{START - 0x1000:x}-{START:x} r--p 00000000 08:01 77   /x\n"
        f"{START:x}-{end:x} r-xp {page:08x} 08:01 77   /x\n"
        f"{end:x}-{end + 0x1000:x} r-xp 00000000 00:00 0\n"
    )
    return tmp_path


def address_of(function: Function) -> int:
    return START + (function.offset & 0xFFF)


def test_an_address_is_a_function_of_a_file(proc: Path, library: Path, second: Function) -> None:
    """Its file can be opened for as long as it is mapped, and offset and size are those of its symbol."""
    found = live.locate(PID, address_of(second), "start_poll", proc)
    assert ("start_poll", second.offset, second.size) == (
        found.function.name,
        found.function.offset,
        found.function.size,
    )
    assert second.address == found.function.address
    assert (library.stat().st_dev, library.stat().st_ino) == found.identity
    assert library.read_bytes() == Path(found.open_path).read_bytes()


@pytest.mark.parametrize("wrong", [1, -1, 0x1000, -0x1000, -START])
def test_an_address_where_no_function_starts_is_refused(proc: Path, second: Function, wrong: int) -> None:
    """Inside a function, outside of code, in memory without a file: there is nothing to attach to."""
    with pytest.raises(Refused):
        live.locate(PID, address_of(second) + wrong, proc=proc)


def test_a_file_that_is_no_elf_is_refused(proc: Path, second: Function, tmp_path: Path) -> None:
    """A mapped file that is something else is told, and no error of ours."""
    (tmp_path / "text").write_text("not a library" * 100)
    link = next((proc / str(PID) / "map_files").iterdir())
    link.unlink()
    link.symlink_to(tmp_path / "text")
    with pytest.raises(Refused, match="cannot be understood"):
        live.locate(PID, address_of(second), proc=proc)


def test_a_process_that_is_gone_is_an_error(tmp_path: Path) -> None:
    """A process that ended meanwhile is the caller's to know."""
    with pytest.raises(FileNotFoundError):
        live.locate(PID, START, proc=tmp_path)


def test_a_table_is_read_by_the_layout() -> None:
    """Of a table given to verbs_set_ops, the functions that are set are told by name."""
    layout = ops.of_release(44)
    assert layout
    block = live.table_block(layout)
    memory = bytearray(layout.size)
    struct.pack_into("<Q", memory, 0x1B8, 0xABC)
    struct.pack_into("<Q", memory, 0x1A8, 0xDEF)
    content = bytes(memory[block.start : block.start + block.size])
    assert {"post_send": 0xABC, "poll_cq": 0xDEF} == block.addresses(content)


def test_a_context_is_read_around_its_pointer() -> None:
    """What lies around a pointer to struct ibv_context is told by name; its create_cq_ex is libibverbs's own."""
    block = live.context_block()
    before = -block.start
    memory = bytearray(block.size)
    for number, at in enumerate((96, 208, -56), start=1):
        struct.pack_into("<Q", memory, before + at, number)
    assert {"poll_cq": 1, "post_send": 2, "create_qp_ex": 3} == block.addresses(bytes(memory))
    assert set(OPS) - {"create_cq_ex"} == set(block.offsets)


def test_what_was_not_read_is_left_out() -> None:
    """Memory cut short gives the pointers that it holds, and no part of one."""
    memory = struct.pack("<QQ", 7, 8)[:-1]
    assert {"wr_start": 7} == objects.pointers(memory, objects.QP_EX, start=320)


@pytest.mark.parametrize(
    ("release", "poll_cq"),
    [(17, 38), (18, 44), (19, 47), (20, 48), (22, 49), (28, 50), (31, 52), (33, 52), (34, 52), (35, 53), (36, 53)]
    + [(58, 53), (59, 55), (61, 55), (62, 56), (64, 58), (65, 62)],
)
def test_layouts_by_release(release: int, poll_cq: int) -> None:
    """Where poll_cq is in each release's table, as counted in rdma-core's driver.h; the others follow it."""
    layout = ops.of_release(release)
    assert layout
    assert (8 * poll_cq, 8 * poll_cq + 8, 8 * poll_cq + 16) == tuple(
        layout.offsets[op] for op in ("poll_cq", "post_recv", "post_send")
    )


def test_releases_that_are_not_known() -> None:
    """Of a release before or after those there is no layout, and of a name without one no release."""
    assert (None, None) == (ops.of_release(16), ops.of_release(66))
    assert (44, 0) == (ops.release("libmlx5.so.1.24.44.0"), ops.release("librxe-rdmav34.so"))
