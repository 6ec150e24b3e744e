"""Functions, code and build ids of ELF files: real ones, hand-made ones, and broken ones."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporter.bpf import elf
from exporter.bpf.elf import Elf, ElfError
from exporter.nccl.layout import has_device_code

SOURCE = r"""
#include <stddef.h>
int plain(int a) { return a + 1; }
__attribute__((weak)) int weak(int a) { return a + 2; }
int aliased(int a) { return a + 3; }
__attribute__((alias("aliased"))) int another(int a);
static int __attribute__((noinline, used)) hidden_in_symtab(int a) { return a * 7; }
static int chosen(int a) { return a; }
static void *choose(void) { return chosen; }
__attribute__((ifunc("choose"))) int indirect(int a);
int variable = 3;
int undefined_here(int a);
int caller(int a) { return undefined_here(a) + hidden_in_symtab(a); }
int xsend(int a) { return a; }
int send(int a) { return a - 1; }
"""


@pytest.fixture(scope="module")
def library(compile_library: Callable[[str, str], Path]) -> Path:
    return compile_library("libsample.so", SOURCE)


def functions(path: Path, *wanted: str) -> dict[str, elf.Function]:
    with Elf.open(path) as opened:
        return opened.functions(wanted)


def test_functions_are_where_another_reader_finds_them(library: Path) -> None:
    """Address, size and binding of every function agree with pyelftools, and the offset with its segments."""
    with library.open("rb") as stream, Elf.open(library) as opened:
        reference = ELFFile(stream)
        symbols = {
            symbol.name: symbol
            for table in (".symtab", ".dynsym")
            for symbol in reference.get_section_by_name(table).iter_symbols()
            if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_shndx"] != "SHN_UNDEF"
        }
        found = opened.functions(None)
        assert set(symbols) == set(found)
        for name, function in found.items():
            assert [function.offset] == list(reference.address_offsets(symbols[name]["st_value"]))
            assert (symbols[name]["st_value"], symbols[name]["st_size"]) == (function.address, function.size)


def test_only_wanted_functions_are_returned(library: Path) -> None:
    """Of the wanted names those that are defined functions here: not variables, imports, or names that do not exist."""
    assert {"plain", "caller"} == set(functions(library, "plain", "caller", "variable", "undefined_here", "nowhere"))


def test_weak_functions_count(library: Path) -> None:
    """A weak function is found, and its binding is weak."""
    assert 2 == functions(library, "weak")["weak"].binding


def test_aliases_share_an_offset(library: Path) -> None:
    """Two names of one address are two functions at one place."""
    found = functions(library, "aliased", "another")
    assert {"aliased", "another"} == set(found)
    assert found["aliased"].offset == found["another"].offset


def test_indirect_functions_are_refused(library: Path) -> None:
    """An IFUNC's symbol is its resolver, so it is not offered."""
    assert {} == functions(library, "indirect")


def test_static_functions_are_found_until_stripped(library: Path, tmp_path: Path) -> None:
    """Local symbols, as those of a statically linked cudart, are found in .symtab, and gone after strip."""
    stripped = tmp_path / "stripped.so"
    subprocess.run(["strip", "-o", stripped, library], check=True)
    assert 0 == functions(library, "hidden_in_symtab")["hidden_in_symtab"].binding
    assert {"plain"} == set(functions(stripped, "hidden_in_symtab", "plain"))


def test_names_that_share_their_end_are_found(library: Path) -> None:
    """`send` is stored as the end of `xsend`; each is found alone and both together."""
    assert library.read_bytes().count(b"\0send\0") < library.read_bytes().count(b"send\0")
    assert {"send"} == set(functions(library, "send"))
    assert {"send", "xsend"} == set(functions(library, "send", "xsend"))


def test_the_default_version_of_a_name_wins(tmp_path: Path) -> None:
    """Of two versions of one symbol the one that new programs link to is taken."""
    source, script, built = tmp_path / "v.c", tmp_path / "v.map", tmp_path / "libv.so"
    source.write_text(
        "int older(int a) { return a; }\nint newer(int a) { return a + 1; }\n"
        '__asm__(".symver older,entry@V_1");\n__asm__(".symver newer,entry@@V_2");\n'
    )
    script.write_text("V_1 { global: entry; local: *; }; V_2 { global: entry; } V_1;")
    subprocess.run(["gcc", "-shared", "-fPIC", f"-Wl,--version-script={script}", "-o", built, source], check=True)
    found = functions(built, "entry", "newer")
    assert found["newer"].address == found["entry"].address


def test_sections_by_name(library: Path, tmp_path: Path) -> None:
    """A section is found by its whole name, as one with code for GPUs is."""
    with_code = tmp_path / "libcode.so"
    (content := tmp_path / "content").write_bytes(b"code")
    subprocess.run(["objcopy", f"--add-section=.nv_fatbin={content}", library, with_code], check=True)
    for path, has in ((library, False), (with_code, True)):
        with Elf.open(path) as elf:
            assert has == has_device_code(elf)
            assert elf.has_section(b".text")
            assert not elf.has_section(b".nv_fat")


def test_code_is_the_function_and_no_more(library: Path) -> None:
    """Code is cut at the limit and at the end of the function, and equals the bytes at its offset."""
    with Elf.open(library) as opened:
        function = opened.functions(["plain"])["plain"]
        assert library.read_bytes()[function.offset :][: function.size] == opened.code(function, 4096)
        assert 2 == len(opened.code(function, 2))


def test_build_id_and_machine(library: Path, tmp_path: Path) -> None:
    """The build id is what readelf prints, empty if there is none; the machine is this one."""
    printed = subprocess.run(["readelf", "-n", library], check=True, capture_output=True, text=True).stdout
    without = tmp_path / "without.so"
    subprocess.run(["objcopy", "--remove-section=.note.gnu.build-id", library, without], check=True)
    with Elf.open(library) as opened, Elf.open(without) as other:
        assert f"Build ID: {opened.build_id}" in printed
        assert 40 == len(opened.build_id)
        assert "" == other.build_id
        assert {"x86_64": elf.X86_64, "aarch64": elf.AARCH64}[os.uname().machine] == opened.machine


def test_the_running_program_can_be_read() -> None:
    """An executable is read as a library is."""
    with Elf.open(sys.executable) as opened:
        assert opened.functions(None)


def test_no_wanted_names_find_nothing(library: Path) -> None:
    """An empty wish has an empty answer."""
    assert {} == functions(library)


def test_a_file_cut_short_while_open_is_an_error(library: Path, tmp_path: Path) -> None:
    """Truncating a file under the reader is an ElfError, not a crash."""
    path = tmp_path / "copy.so"
    path.write_bytes(library.read_bytes())
    with Elf.open(path) as opened:
        os.truncate(path, 4096)
        with pytest.raises(ElfError, match="cut short"):
            opened.functions(["plain"])


def test_descriptors_are_given_back(library: Path, tmp_path: Path) -> None:
    """Neither reading nor refusing leaves a descriptor open."""
    broken = tmp_path / "broken"
    broken.write_bytes(library.read_bytes()[:100])
    before = len(list(Path("/proc/self/fd").iterdir()))
    functions(library, "plain")
    with pytest.raises(ElfError):
        functions(broken, "plain")
    assert before == len(list(Path("/proc/self/fd").iterdir()))


def large(symbols: int) -> bytes:
    """A library with a .dynsym of `symbols` functions, the last of them `needle`."""
    names = [b"_ZN3lib%dEvvv" % i for i in range(symbols - 1)] + [b"needle"]
    strings, at, entries = [b"\0"], 1, [bytes(24)]
    for name in names:
        entries.append(struct.pack("<IBBHQQ", at, 0x12, 0, 1, 0x1000, 16))
        strings.append(name + b"\0")
        at += len(name) + 1
    table, text = b"".join(entries), b"".join(strings)
    code_at, table_at = 0x1000, 0x2000
    text_at = table_at + len(table)
    sections_at = text_at + len(text)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, sections_at, 0, 64, 56, 1, 64, 3, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, code_at, code_at, 0, 0x1000, 0x1000, 0x1000)
    sections = bytes(64)
    sections += struct.pack("<IIQQQQIIQQ", 0, 11, 0, 0, table_at, len(table), 2, 0, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, text_at, len(text), 0, 0, 1, 0)
    return (header + segment).ljust(table_at, b"\xc3") + table + text + sections


def sparse(path: Path) -> Path:
    """A file of 470 MB, of which 4 KiB are there, with as many symbols and names as are read at most."""
    content = bytearray(large(3))
    sections = struct.unpack_from("<Q", content, 40)[0]
    symbols, strings = elf.MAX_SYMBOLS * 24, elf.MAX_STRINGS
    struct.pack_into("<QQ", content, sections + 64 + 24, 0x4000, symbols)
    struct.pack_into("<QQ", content, sections + 128 + 24, 0x4000 + symbols, strings)
    path.write_bytes(content)
    os.truncate(path, 0x4000 + symbols + strings)
    return path


def test_reading_ends_with_its_time(tmp_path: Path) -> None:
    """A file with endless tables is left as soon as its time is over, with another error than a malformed one."""
    with Elf.open(sparse(tmp_path / "sparse.so")) as opened:
        began = time.thread_time()
        opened.until = began + 0.02
        with pytest.raises(elf.TakesLonger):
            opened.functions(["needle"])
        assert time.thread_time() > opened.until


def test_a_million_symbols_take_less_than_a_second(tmp_path: Path) -> None:
    """A library of the size of libtorch is searched for 150 names in under a second."""
    path = tmp_path / "large.so"
    path.write_bytes(large(1_000_000))
    started = time.process_time()
    found = functions(path, "needle", *(f"cuMemSomething{i}" for i in range(150)))
    assert {"needle": elf.Function("needle", 0x1000, 16, 0x1000, 1)} == found
    assert time.process_time() - started < 1.0


def test_absurd_tables_are_refused_quickly(tmp_path: Path) -> None:
    """A sparse file that claims a terabyte of symbols costs nothing."""
    path = tmp_path / "sparse.so"
    content = bytearray(large(3))
    sections = struct.unpack_from("<Q", content, 40)[0]
    struct.pack_into("<Q", content, sections + 64 + 32, 1 << 39)
    path.write_bytes(content)
    os.truncate(path, 1 << 40)
    with pytest.raises(ElfError, match="more symbols than a real library has"):
        functions(path, "needle")


def test_a_name_repeated_without_end_is_refused(tmp_path: Path) -> None:
    """A string table made of one wanted name only is refused instead of remembered."""
    content = large(3)
    sections = struct.unpack_from("<Q", content, 40)[0]
    strings = b"needle\0" * (elf.MAX_NAMES + 1)
    head = bytearray(content + strings)
    struct.pack_into("<QQ", head, sections + 128 + 24, len(content), len(strings))
    path = tmp_path / "repeated.so"
    path.write_bytes(head)
    with pytest.raises(ElfError, match="repeated too often"):
        functions(path, "needle")


def read_everything(path: Path) -> None:
    """Uses all of the reader; only ElfError may come out."""
    try:
        with Elf.open(path) as opened:
            assert isinstance(opened.build_id, str)
            for wanted in (["plain", "weak", "needle"], None):
                for function in opened.functions(wanted).values():
                    assert len(opened.code(function, 64)) <= 64
    except ElfError:
        pass


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, 1 << 14), st.binary(min_size=1, max_size=8)), min_size=1, max_size=12),
    headers=st.lists(st.tuples(st.integers(0, 63), st.integers(0, 255)), max_size=4),
    keep=st.integers(0, 1 << 15),
)
def test_broken_files_raise_nothing_but_elf_error(
    library: Path, tmp_path: Path, changes: list[tuple[int, bytes]], headers: list[tuple[int, int]], keep: int
) -> None:
    """A real library with bytes changed anywhere, its headers among them, and cut anywhere, is read or refused."""
    content = bytearray(library.read_bytes())
    for at, new in changes:
        content[at % len(content) : at % len(content) + len(new)] = new
    for at, value in headers:
        content[at] = value
    path = tmp_path / "fuzzed"
    path.write_bytes(content[: max(keep, 64)] if keep % 3 == 0 else content)
    read_everything(path)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    section=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, (1 << 64) - 1)), max_size=4),
    segment=st.lists(st.tuples(st.integers(2, 7), st.integers(0, (1 << 64) - 1)), max_size=3),
)
def test_absurd_sections_and_segments_raise_nothing_but_elf_error(
    tmp_path: Path, section: list[tuple[int, int, int]], segment: list[tuple[int, int]]
) -> None:
    """Every field of every section and segment may hold any number."""
    content = bytearray(large(5))
    sections = struct.unpack_from("<Q", content, 40)[0]
    places = ((0, "I"), (4, "I"), (8, "Q"), (16, "Q"), (24, "Q"), (32, "Q"), (40, "I"), (44, "I"), (48, "Q"), (56, "Q"))
    for index, place, value in section:
        offset, width = places[place]
        struct.pack_into(
            f"<{width}", content, sections + 64 * index + offset, value % (1 << 32) if width == "I" else value
        )
    for place, value in segment:
        struct.pack_into("<Q", content, 64 + 8 * (place - 1), value)
    path = tmp_path / "absurd"
    path.write_bytes(content)
    read_everything(path)


def test_imports_are_what_others_define(library: Path) -> None:
    """A function that is called but not defined is imported; one that is defined is not, nor one that is absent."""
    with Elf.open(library) as opened:
        assert {"undefined_here"} == opened.imports({"undefined_here", "plain", "nowhere"})
        assert frozenset() == opened.imports(())


def test_addresses_lead_to_content(library: Path) -> None:
    """A read by address returns the contents of the file at the offset given by its segments."""
    with Elf.open(library) as opened:
        function = opened.functions({"plain"})["plain"]
        assert function.offset == opened.offset(function.address)
        assert opened.code(function, 4) == opened.read(function.address, 4)
        assert any(0 <= function.address - part.address < part.size for part in opened.code_parts)
