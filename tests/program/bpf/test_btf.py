"""C types come out of a compiled object as they were declared; nonsense is a ValueError."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.bpf.btf import Btf

SOURCE = """
typedef unsigned char __u8;
typedef unsigned int __u32;
typedef unsigned long long __u64;
enum level { LOW, HIGH = 7 };
enum color { RED, BLUE = 4000000000u };
struct inner { __u32 a; __u32 b; };
struct all {
	const __u64 wide;
	volatile long long signed_wide;
	void *pointer;
	struct inner inners[3];
	union { __u32 number; __u8 bytes[4]; };
	enum level level;
	enum color color;
	_Bool flag;
	char name[11];
};
struct bits { __u32 low : 3; __u32 high : 29; };
struct packed { __u8 one; __u32 four; } __attribute__((packed));
struct all all_;
struct bits bits_;
struct packed packed_;
"""


@pytest.fixture(scope="module")
def section(tmp_path_factory) -> bytes:
    """The .BTF section of SOURCE, compiled."""
    if not (clang := shutil.which("clang")) or not (objcopy := shutil.which("llvm-objcopy")):
        pytest.skip("clang and llvm are not installed")
    folder = tmp_path_factory.mktemp("btf")
    (folder / "types.c").write_text(SOURCE)
    subprocess.run([clang, "-target", "bpf", "-g", "-c", folder / "types.c", "-o", folder / "types.o"], check=True)
    subprocess.run([objcopy, f"--dump-section=.BTF={folder / 'btf'}", folder / "types.o", "/dev/null"], check=True)
    return Path(folder / "btf").read_bytes()


@pytest.fixture(scope="module")
def btf(section) -> Btf:
    return Btf(section)


def test_a_struct_is_mirrored_field_by_field(btf):
    """Integers, pointers, arrays, nested and anonymous members, enums, bool and text keep offset, size and sign."""
    value = btf.struct("all")(wide=2**64 - 1, signed_wide=-5, level=7, color=4_000_000_000, flag=True, name=b"abc")
    value.number = 0x01020304
    value.inners[2].b = 9

    assert 72 == ctypes.sizeof(value)
    assert (2**64 - 1, -5, 7, 4_000_000_000, True, b"abc") == (
        value.wide,
        value.signed_wide,
        value.level,
        value.color,
        value.flag,
        value.name,
    )
    assert [4, 3, 2, 1] == list(value.bytes)
    assert 9 == int.from_bytes(bytes(value)[44:48], "little")


def test_enums_are_names_and_numbers(btf):
    """Constants are what C gave them."""
    assert {"LOW": 0, "HIGH": 7} == btf.enum("level")
    assert {"RED": 0, "BLUE": 4_000_000_000} == btf.enum("color")


@pytest.mark.parametrize("name", ["bits", "packed"])
def test_what_ctypes_would_get_wrong_is_refused(btf, name):
    """Bit-fields and packed structs are errors that name the struct."""
    with pytest.raises(TypeError, match=f"struct {name}"):
        btf.struct(name)


def test_an_unknown_name_is_in_the_error(btf):
    """A misspelt struct or enum is an error that names it."""
    with pytest.raises(KeyError, match="no struct al"):
        btf.struct("al")
    with pytest.raises(KeyError, match="no enum leve"):
        btf.enum("leve")


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_damaged_section_is_an_error_or_harmless(section, data):
    """Whatever bytes are changed or cut, reading ends, with types or with an error that has a text."""
    damaged = bytearray(section)
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    try:
        found = Btf(bytes(damaged[:cut]))
        found.variables(".bss")
        found.struct("all")
    except (ValueError, KeyError, TypeError) as error:
        assert str(error)
