"""USDT arguments, as compilers write them, are found where they are."""

from __future__ import annotations

import struct

import pytest

from exporter.bpf.elf import AARCH64, X86_64
from exporter.custom.arguments import MOST, encode

ABSENT, CONSTANT, REGISTER, MEMORY = range(4)
Argument = tuple[int, int, int, int, int]


def decoded(text: str, machine: int = X86_64) -> list[Argument]:
    """Value, kind, place, size and sign of each."""
    encoded = encode(text, machine)
    assert MOST * 24 == len(encoded)
    found = [*struct.iter_unpack("=qIIII", encoded)]
    while found and found[-1] == (0, ABSENT, 0, 0, 0):
        found.pop()
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8@%rdi", (0, REGISTER, 112, 8, 0)),
        ("-4@%edx", (0, REGISTER, 96, 4, 1)),
        ("1@%al", (0, REGISTER, 80, 1, 0)),
        ("1@%sil", (0, REGISTER, 104, 1, 0)),
        ("2@%r9w", (0, REGISTER, 64, 2, 0)),
        ("8@%r15", (0, REGISTER, 0, 8, 0)),
        ("8@%rsp", (0, REGISTER, 152, 8, 0)),
        ("4@$5", (5, CONSTANT, 0, 4, 0)),
        ("-4@$-1", (-1, CONSTANT, 0, 4, 1)),
        ("-4@112(%rsp)", (112, MEMORY, 152, 4, 1)),
        ("8@-24(%rbp)", (-24, MEMORY, 32, 8, 0)),
        ("8@(%rax)", (0, MEMORY, 80, 8, 0)),
        ("1@%ah", (0, ABSENT, 0, 1, 0)),
        ("8@name(%rip)", (0, ABSENT, 0, 8, 0)),
        ("8@8(%rax,%rbx,4)", (0, ABSENT, 0, 8, 0)),
        ("8@%xmm0", (0, ABSENT, 0, 8, 0)),
    ],
)
def test_x86(text: str, expected: Argument) -> None:
    """Registers of each width, constants and memory; what is not known is absent, never guessed."""
    assert [expected] == decoded(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8@x0", (0, REGISTER, 0, 8, 0)),
        ("-4@w19", (0, REGISTER, 152, 4, 1)),
        ("4@[sp, 12]", (12, MEMORY, 248, 4, 0)),
        ("8@[x29]", (0, MEMORY, 232, 8, 0)),
        ("8@[x1, -8]", (-8, MEMORY, 8, 8, 0)),
        ("4@7", (7, CONSTANT, 0, 4, 0)),
        ("8@x99", (0, ABSENT, 0, 8, 0)),
        ("8@[x0, x1]", (0, ABSENT, 0, 8, 0)),
    ],
)
def test_arm64(text: str, expected: Argument) -> None:
    """The same for arm64, where operands hold spaces."""
    assert [expected] == decoded(text, AARCH64)


def test_several() -> None:
    """Arguments keep their places, also after one that is not understood."""
    kinds = [it[1] for it in decoded("8@%rdi -4@%ah 4@$5 8@16(%rsp)")]
    assert [REGISTER, ABSENT, CONSTANT, MEMORY] == kinds
    assert [MEMORY, REGISTER] == [it[1] for it in decoded("4@[sp, 12] 8@x0", AARCH64)]


@pytest.mark.parametrize("text", ["", "nonsense", "3@%rdi", "8@", "@" * 5000, "8@%rdi " * 5000, "8@$" + "9" * 300])
def test_hostile_texts(text: str) -> None:
    """A note of a file that lies makes no more than twelve arguments, and no error."""
    assert len(decoded(text)) <= MOST
