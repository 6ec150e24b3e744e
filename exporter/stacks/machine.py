"""Parameters of a processor for unwinding: the DWARF numbers of its registers."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """DWARF numbers of registers, in the order of `registers` of struct stack (bpf/stacks/stacks.h)."""

    count: int
    stack: int
    frame: int
    program: int
    """Index of the program counter in the record; not a DWARF number on arm64."""
    link: int | None
    """The register with a function's return address when it is called; None: the address is on the stack."""
    preserved: tuple[int, ...]
    code_mask: int
    """The bits of a return address that are not its signature."""


X86_64 = Machine(17, 7, 6, 16, None, (3, 6, 12, 13, 14, 15), (1 << 64) - 1)
ARM64 = Machine(33, 31, 29, 32, 30, (*range(19, 30),), (1 << 48) - 1)


def this() -> Machine:
    return ARM64 if os.uname().machine == "aarch64" else X86_64
