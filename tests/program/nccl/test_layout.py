"""The place of a communicator's identity is found in code, or not at all."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.bpf.elf import AARCH64, X86_64, Elf, Function
from exporter.nccl.layout import UNKNOWN, CommunicatorLayout, find_layout

SOURCE = """
struct comm {{ long magic; char before[{hash} - 8]; long hash; int rank, nranks, device; }};
__attribute__((noinline)) static int check(struct comm *c) {{ return c->magic == {magic}; }}
int ncclCommUserRank(struct comm *c, int *v) {{ if (check(c)) *v = c->{rank}; return 0; }}
int ncclCommCount(struct comm *c, int *v) {{ if (check(c)) *v = c->{count}; return 0; }}
int ncclCommCuDevice(struct comm *c, int *v) {{ if (check(c)) *v = c->device; return 0; }}
int ncclGetVersion(int *v) {{ if (!v) return 4; *v = {version}; return 0; }}
"""
REAL = {"hash": 246944, "magic": "0x0280028002800280", "rank": "rank", "count": "nranks", "version": 22304}
CASES = {
    "as it is": ({}, CommunicatorLayout(246944, 252568, guarded=True)),
    "no magic": ({"magic": 5}, CommunicatorLayout(246944, 252568, guarded=False)),
    "2.18, without magic": ({"hash": 9168, "magic": 5, "version": 21801}, CommunicatorLayout(9168, 0, guarded=False)),
    "before 2.18, where a pointer is in the hash's place": (
        {"hash": 6056, "magic": 5, "version": 21403},
        CommunicatorLayout(6056, hashless=True),
    ),
    "neither magic nor version": ({"magic": 5, "version": 7}, UNKNOWN),
    "magic and no version": ({"version": 7}, CommunicatorLayout(246944, 0, guarded=True)),
    "another version": ({"version": 22399}, CommunicatorLayout(246944, 0, guarded=True)),
    "another struct": ({"hash": 250000}, CommunicatorLayout(250000, 0, guarded=True)),
    "rank and count swapped": ({"rank": "nranks", "count": "rank"}, UNKNOWN),
    "nothing far": ({"hash": 24}, UNKNOWN),
}


@pytest.mark.parametrize("case", [*CASES])
def test_layouts(case: str, compile_library: Callable[[str, str], Path]) -> None:
    """The layout follows from the code; where the three numbers do not lie side by side it is unknown."""
    changes, expected = CASES[case]
    with Elf.open(compile_library("libnccl.so.2", SOURCE.format(**REAL | changes))) as elf:
        assert expected == find_layout(elf)


def test_without_accessors(compile_library: Callable[[str, str], Path]) -> None:
    """A library without the accessors has no known layout."""
    with Elf.open(compile_library("libnccl.so.2", "int ncclAllReduce(void) { return 0; }")) as elf:
        assert find_layout(elf) is UNKNOWN


class Code:
    """An ELF file's functions, given as machine code."""

    def __init__(self, machine: int, code: dict[str, bytes]) -> None:
        self.machine, self._code, self._at = machine, code, {}
        for number, name in enumerate(code):
            self._at[0x1000 * (number + 1)] = name

    def functions(self, wanted: list[str]) -> dict[str, Function]:
        return {
            name: Function(name, at, len(self._code[name]), at, 1) for at, name in self._at.items() if name in wanted
        }

    def code(self, function: Function, limit: int) -> bytes:
        name = self._at.get(function.address)
        if name is None:
            raise ValueError("nothing there")
        return self._code[name][:limit]


def arm64(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


def accessor(low: int, at: int) -> bytes:
    """bl 0x4000; add x22, x22, #0x3c, lsl #12; ldr w0, [x22, #low]; str w0, [x23]."""
    call = 0x94000000 | (0x4000 - at) // 4 & 0x3FFFFFF
    return arm64(call, 0x9140F2D6, 0xB94002C0 | low // 4 << 10, 0xB90002E0)


def test_arm64() -> None:
    """On arm64 an offset that one load cannot hold is put together from two instructions."""
    rank = 246952 - 0x3C000
    check = arm64(0xD2805001, 0xF2A05001, 0xF2C05001, 0xF2E05001)  # mov and movk of 0x280 into x1
    version = arm64(0xB4000060, 0x5280_0002 | 22304 << 5, 0xB9000002)  # cbz; mov w2, #22304; str w2, [x0]
    code = {
        "ncclCommUserRank": accessor(rank, 0x1000),
        "ncclCommCount": accessor(rank + 4, 0x2000),
        "ncclCommCuDevice": accessor(rank + 8, 0x3000),
        "check": check,
        "ncclGetVersion": version,
    }
    assert CommunicatorLayout(246944, 252568, guarded=True) == find_layout(Code(AARCH64, code))  # type: ignore[arg-type]


@pytest.mark.parametrize("machine", [X86_64, AARCH64, 8])
def test_rubbish(machine: int) -> None:
    """Code that is none, of this machine or another, gives no layout and no error."""
    names = ("ncclCommUserRank", "ncclCommCount", "ncclCommCuDevice", "ncclGetVersion")
    for filling in (b"", b"\xff" * 5000, bytes(range(256)) * 20, b"\x8b\x87\0\0\0\x7f" * 400, b"\xe8\0\0\0\0" * 999):
        assert find_layout(Code(machine, dict.fromkeys(names, filling))) is UNKNOWN  # type: ignore[arg-type]
