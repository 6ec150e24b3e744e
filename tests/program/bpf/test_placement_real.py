"""Placement on libraries that other people built, checked against what objdump reads in them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from exporter.bpf.elf import X86_64, Elf, Function
from exporter.bpf.placement import Placement, place
from tests import wheels

pytestmark = pytest.mark.skipif(not shutil.which("objdump"), reason="objdump (package binutils) is not installed")

WHEELS = {  # library: the names we probe, how many of them it has at least
    wheels.CUDART_12: ("cuda", 250),
    wheels.CUDART_13: ("cuda", 250),
    wheels.NCCL_12: ("nccl", 40),
}
DEBIAN = {
    "libibverbs.so.1": ("ibv_", 80),
    "libmlx5.so.1": ("mlx5", 50),
    "libmlx4.so.1": ("mlx4", 2),
    "libefa.so.1": ("efa", 3),
}

LINE = re.compile(r"^ +([0-9a-f]+):\t(\S+) *([^#<\n]*)", re.MULTILINE)
LABEL = re.compile(r"^([0-9a-f]+) <", re.MULTILINE)
DIRECT = re.compile(r"^[0-9a-f]+ *$")
HOLDS_ARGUMENT = re.compile(r"^(r?[ds]il?|[er]?[ds]i|[re]?[cd]x|[cd][lh]|r[89][dwb]?|[re]?spl?)$")
READS_ONLY = {"cmp", "test", "endbr64", "nop", "nopw", "nopl"}
CHEAP = re.compile(r"^(push|nop|xchg|jmp|j[a-z]+)$")


@dataclass
class Disassembly:
    lines: dict[int, tuple[str, str]]
    """Address to mnemonic and operands (Intel's order: what is written comes first)."""
    entered: set[int]
    """Targets of direct jumps and calls from anywhere in the library, and addresses of symbols."""

    @classmethod
    def of(cls, path: Path) -> Disassembly:
        command = ["objdump", "-d", "-M", "intel", "--no-show-raw-insn", path]
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
        lines = {int(at, 16): (name, operands.strip()) for at, name, operands in LINE.findall(text)}
        jumps = ((name, operands) for name, operands in lines.values() if name[0] == "j" or name in ("call", "loop"))
        targets = {int(operands, 16) for _, operands in jumps if DIRECT.match(operands)}
        return cls(lines, targets | {int(at, 16) for at in LABEL.findall(text)})

    def between(self, start: int, end: int) -> Iterator[tuple[str, str]]:
        return (self.lines[at] for at in range(start, end) if at in self.lines)


@dataclass
class Case:
    placements: dict[str, tuple[Function, Placement]]
    code: Disassembly
    at_least: int


@pytest.fixture(scope="module", params=[*WHEELS, *DEBIAN], ids=lambda case: case if isinstance(case, str) else case[1])
def case(request: pytest.FixtureRequest) -> Case:
    if isinstance(request.param, str):
        path, (prefix, at_least) = Path("/usr/lib/x86_64-linux-gnu") / request.param, DEBIAN[request.param]
        if not path.exists():
            pytest.skip(f"{path} is not installed (packages libibverbs1, ibverbs-providers)")
    else:
        path, (prefix, at_least) = wheels.library(*request.param), WHEELS[request.param]
    with Elf.open(path) as elf:
        if elf.machine != X86_64:
            pytest.skip(f"{path.name} is not for x86-64")
        functions = elf.functions(exported(path, prefix))
        placements = {name: (function, place(elf, function)) for name, function in functions.items()}
    return Case(placements, Disassembly.of(path), at_least)


def exported(path: Path, prefix: str) -> list[str]:
    """The functions of a library that others can call and that have names with this prefix."""
    command = ["nm", "--dynamic", "--defined-only", "--without-symbol-versions", path]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    return [name for _, kind, name in map(str.split, symbols) if kind in "TW" and name.startswith(prefix)]


def address(function: Function, placement: Placement) -> int:
    return function.address + placement.offset - function.offset


def test_interface(case: Case) -> None:
    """The library has the functions that the other tests speak of."""
    assert case.at_least <= len(case.placements)


def test_instruction_starts(case: Case) -> None:
    """Every chosen place is the start of an instruction, inside its function."""
    outside = {
        name: placement
        for name, (function, placement) in case.placements.items()
        if address(function, placement) not in case.code.lines
        or not 0 <= placement.offset - function.offset < function.size
    }
    assert {} == outside


def test_kind(case: Case) -> None:
    """A place called emulated has an instruction of the kinds that were measured to be cheap."""
    wrong = {
        name: line
        for name, (function, placement) in case.placements.items()
        if (line := case.code.lines[address(function, placement)])
        and (placement.kind == "emulated") != bool(CHEAP.match(line[0]) and not line[1].startswith(("QWORD", "r")))
        and not (placement.kind == "emulated" and line[0] == "push")
    }
    assert {} == wrong


def test_arguments(case: Case) -> None:
    """Before the chosen place no argument register, stack pointer or memory is written, and nothing jumps."""
    wrong = {
        name: line
        for name, (function, placement) in case.placements.items()
        for line in case.code.between(function.address, address(function, placement))
        if line[0] not in READS_ONLY
        and (
            not re.match(r"^(mov|lea|add|sub|and|or|xor|sh|sa|not|neg)", line[0])
            or HOLDS_ARGUMENT.match(line[1].split(",")[0])
            or "PTR" in line[1].split(",")[0]
        )
    }
    assert {} == wrong


def test_reached_once(case: Case) -> None:
    """No direct jump or call of the whole library, and no other symbol, leads past the symbol up to the place."""
    wrong = {
        name: reached
        for name, (function, placement) in case.placements.items()
        if (reached := case.code.entered & set(range(function.address + 1, address(function, placement) + 1)))
    }
    assert {} == wrong
