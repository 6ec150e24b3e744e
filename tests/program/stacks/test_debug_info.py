"""Lines and inlined functions by debug information, in the file or beside it, whole and broken."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exporter.stacks import files, libdw
from exporter.stacks.debug_files import WantedFile
from exporter.stacks.debug_info import SourceLine
from exporter.stacks.files import CodeFile
from exporter.stacks.libdw import MappedFile
from exporter.stacks.object_file import ObjectFile

CODE = """
extern "C" int called(int);
namespace one {
static inline __attribute__((always_inline)) int inner(int n) { return called(n) + 1; } // line 4
struct Two { static inline __attribute__((always_inline)) int middle(int n) { return inner(n) + 2; } }; // line 5
}
extern "C" __attribute__((noinline)) int outer(int n) {
    return one::Two::middle(n * 3) + 3; // line 8
}
"""
FUNCTIONS = ["one::inner(int)", "one::Two::middle(int)", "outer"]
LINES = [4, 5, 8]


def build(folder: Path, *flags: str) -> Path:
    (folder / "code.cpp").write_text(CODE)
    library = folder / "libcode.so"
    command = ["clang++", "-O2", "-shared", "-fPIC", "-Wl,--build-id", *flags, folder / "code.cpp", "-o", library]
    subprocess.run([*map(str, command)], check=True)
    return library


def opened(path: Path) -> CodeFile:
    return CodeFile(os.open(path, os.O_RDONLY), str(path), ())


def call_in(library: Path) -> int:
    """The address of the call of `called` in `outer`."""
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", library], check=True, capture_output=True, text=True)
    outer = text.stdout.partition("<outer>:\n")[2]
    return next(int(line.partition(":")[0], 16) for line in outer.splitlines() if "called" in line)


def sources(file: CodeFile, address: int) -> list[SourceLine]:
    file.look_up([address])
    return [*file.sources(address)]


@pytest.mark.parametrize(
    "flags", [["-g"], ["-gdwarf-4"], ["-g", "-gz"], ["-g", "-gdwarf-aranges"], ["-gline-tables-only"]], ids=" ".join
)
def test_inlined_functions(tmp_path: Path, flags: list[str]) -> None:
    """Each with its line, the innermost first, the last by its symbol."""
    library = build(tmp_path, *flags)
    file = opened(library)
    found = sources(file, call_in(library))
    file.close()

    assert LINES == [it.line for it in found]
    assert {str(tmp_path / "code.cpp")} == {it.file for it in found}
    names = FUNCTIONS if "-gline-tables-only" not in flags else ["inner", "middle", "outer"]
    assert names == [it.function for it in found]


def test_none(tmp_path: Path) -> None:
    """Without debug information the function has its symbol, and a debug file is wanted."""
    library = build(tmp_path, "-g0")
    file = opened(library)
    assert [SourceLine("outer", "", 0)] == sources(file, call_in(library))
    assert [SourceLine("", "", 0)] == sources(file, 1)
    assert file.wanted == WantedFile(file.build_id)
    file.close()


def test_a_file_of_its_own(tmp_path: Path) -> None:
    """Stripped debug information is found in the file with the same build id, and not in another."""
    library = build(tmp_path, "-g")
    debug, stripped = tmp_path / "code.debug", tmp_path / "stripped.so"
    subprocess.run(["objcopy", "--only-keep-debug", library, debug], check=True)
    subprocess.run(["strip", "-o", stripped, library], check=True)
    (tmp_path / "other").mkdir()
    other = build(tmp_path / "other", "-g", "-DOTHER", "-Wl,--build-id=0x0123456789abcdef")
    file, address = opened(stripped), call_in(library)
    assert [SourceLine("outer", "", 0)] == sources(file, address)  # of .dynsym

    wanted = file.wanted
    for wrong in (other, tmp_path / "code.cpp", debug):
        assert [SourceLine("outer", "", 0)] == sources(file, address)
        file.wanted = wanted
        file.take_debug_file(os.open(wrong, os.O_RDONLY))
        assert file.wanted is None
    found = sources(file, address)
    file.close()
    assert list(zip(FUNCTIONS, LINES, strict=True)) == [(it.function, it.line) for it in found]


def supplemented(folder: Path) -> tuple[Path, Path, Path]:
    """Build a library; return it stripped, its debug file, and the supplementary file that dwz made of two of these."""
    debug_files, header = [], folder / "common.h"
    fields = " ".join(f"long number_{n};" for n in range(50))
    header.write_text(f"struct Common {{ {fields} }}; __attribute__((used)) static Common common;\n")
    for name in ("one", "two"):
        (folder / name).mkdir()
        flags = "-gdwarf-4", f"-Wl,--build-id=0x{name.encode().hex() * 2}", "-include", str(header)
        library = build(folder / name, *flags)
        debug_files.append(folder / f"{name}.debug")
        subprocess.run(["objcopy", "--only-keep-debug", library, debug_files[-1]], check=True)
    place = folder / ".dwz" / "x86_64-linux-gnu" / "package.debug"
    place.parent.mkdir(parents=True)
    subprocess.run(["dwz", "-m", place, "-M", f"/usr/lib/debug/{place.relative_to(folder)}", *debug_files], check=True)
    stripped = folder / "stripped.so"
    subprocess.run(["strip", "-o", stripped, folder / "one" / "libcode.so"], check=True)
    return stripped, debug_files[0], place


def test_a_supplementary_file(tmp_path: Path) -> None:
    """The names of inlined functions are in the file that dwz made, and are found there; without it lines remain."""
    stripped, debug, supplement = supplemented(tmp_path)
    address = call_in(tmp_path / "one" / "libcode.so")
    for given in (debug, supplement):
        file = opened(stripped)
        file.take_debug_file(os.open(debug, os.O_RDONLY))
        wanted = file.wanted
        assert wanted and wanted.dwz == "x86_64-linux-gnu/package.debug"
        file.take_debug_file(os.open(given, os.O_RDONLY))  # the first has another build id
        assert file.wanted is None
        found = sources(file, address)
        file.close()
        assert LINES == [it.line for it in found]
        assert (FUNCTIONS if given == supplement else ["", "", "outer"]) == [it.function for it in found]


def test_too_much_to_unpack(tmp_path: Path) -> None:
    """A compressed section has its length once unpacked in its header."""
    library = build(tmp_path, "-g", "-gz")
    with ObjectFile(os.open(library, os.O_RDONLY)) as file:
        [section] = [it for it in file.sections() if it.flags & 1 << 11][:1]
        assert 0 < (file.unpacked_debug_info or 0) < 1 << 20
    content = bytearray(library.read_bytes())
    content[section.offset + 8 : section.offset + 16] = (1 << 40).to_bytes(8, "little")
    address = call_in(library)
    library.write_bytes(content)
    file = opened(library)
    assert [SourceLine("outer", "", 0)] == sources(file, address)
    file.close()


BROKEN = """
import os, random, sys
from pathlib import Path
from exporter.stacks.files import CodeFile
path, address, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
whole, chance = path.read_bytes(), random.Random(seed)
for n in range(100):
    broken = bytearray(whole)
    for _ in range(chance.randint(1, 30)):
        broken[chance.randrange(0x400, len(broken))] = chance.randrange(256)
    copy = path.with_suffix(f".{seed}.{n}")
    copy.write_bytes(broken[: chance.choice([len(broken), chance.randrange(len(broken))])])
    file = CodeFile(os.open(copy, os.O_RDONLY), str(copy), ())
    file.look_up([address, 0, 1 << 40])
    assert all(len(it.function) <= 512 and len(it.file) <= 512 for it in file.sources(address))
    file.close()
    copy.unlink()
print("all")
"""


def test_broken(tmp_path: Path) -> None:
    """Nothing is raised. libdw itself may crash, as far as the child that is there for it is."""
    library = build(tmp_path, "-g")
    command = [sys.executable, "-c", BROKEN, str(library), str(call_in(library))]
    ended = []
    for seed in range(4):
        done = subprocess.run([*command, str(seed)], capture_output=True, text=True, timeout=60, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        ended.append(done.stdout.strip())
    assert ended.count("all") >= 3


def test_sections_that_are_not_used(tmp_path: Path) -> None:
    """Places of variables are left out for libelf, and not of the file."""
    library = build(tmp_path, "-g", "-gz")
    with ObjectFile(os.open(library, os.O_RDONLY)) as file:
        [unused] = file.unused_debug_sections
        sections, places = file.sections(), file.named_section(b".debug_loclists")
        assert places == sections[unused]
        mapped_file = MappedFile(file.fileno(), [unused])
        elf, header = libdw.libraries()[1], (ctypes.c_uint32 * 16)()
        elf.elf_getscn.restype, elf.elf_getscn.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t)
        elf.gelf_getshdr.restype, elf.gelf_getshdr.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_void_p)
        kinds = []
        for number in range(len(sections)):
            assert elf.gelf_getshdr(elf.elf_getscn(mapped_file.elf, number), ctypes.byref(header))
            kinds.append(header[1])
        mapped_file.close()
        absent = 8  # SHT_NOBITS
        assert kinds == [absent if number == unused else it.kind for number, it in enumerate(sections)]
        assert file.sections() == sections


def test_room_for_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that have to be unpacked share one room, as they share the memory of the child, while they are in use."""
    library = build(tmp_path, "-g", "-gz")
    with ObjectFile(os.open(library, os.O_RDONLY)) as file:
        size = file.unpacked_debug_info or 0
    monkeypatch.setattr(files, "MOST_UNPACKED", 2 * size)
    monkeypatch.setattr(CodeFile, "unpacked", 0)
    address, all_files = call_in(library), [opened(library) for _ in range(4)]
    first, second, third, fourth = all_files
    assert [3, 3, 1] == [len(sources(it, address)) for it in (first, second, third)]
    first.close_debug()
    assert 3 == len(sources(fourth, address))
    for file in all_files:
        file.close()
    assert 0 == CodeFile.unpacked


def mapped(library: Path) -> int:
    return sum(line.endswith(str(library)) for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize("flags", [["-g"], ["-g", "-gz"]], ids=" ".join)
def test_debug_information_that_is_not_in_use(tmp_path: Path, flags: list[str]) -> None:
    """The file is unmapped some time after the last lookup. Results stay, and the next lookup opens it again."""
    library = build(tmp_path, *flags)
    address, file = call_in(library), opened(library)
    before, began = mapped(library), time.monotonic()
    found = sources(file, address)
    assert mapped(library) > before
    assert file.debug_until > began

    for _ in range(3):
        file.close_debug()
        assert mapped(library) == before
    assert found == [*file.sources(address)]
    assert LINES == [it.line for it in sources(file, address + 1)]
    assert mapped(library) > before
    file.close()
