"""Choice of the cheapest instruction of a function for a uprobe that sees all arguments of the caller.

A uprobe always traps once. When the kernel can do the probed instruction's work itself ("emulated") that is all; any
other instruction is also executed out of line and single-stepped, a second trap that costs ten times the first in a
virtual machine. x86: arch/x86/kernel/uprobes.c, push_setup_xol_ops and branch_setup_xol_ops; arm64:
arch/arm64/kernel/probes/decode-insn.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from exporter.bpf.elf import AARCH64, X86_64, Elf, Function

Kind = Literal["emulated", "stepped"]

_PROLOGUE = 64
"""Bytes from the symbol on in which a place is searched."""
_NEAR = _PROLOGUE + 2 + 128
"""Bytes that contain every short branch (8-bit displacement) that can reach back into the prologue."""
_LARGEST = 1 << 20
"""A longer function is probed at its symbol: looking for branches in it would take too long."""
_UNSIZED = 4096
"""The size in bytes that is assumed for a function without one in its symbol."""

# push of a register; jmp and jcc, short and near; the one- and two-byte nop. Left out on purpose: longer nops (6.18
# rewrites a 5-byte one into a call), nops with other prefixes (REX.B makes 0x90 an xchg) and call (before 6.18 the
# emulation does not update the shadow stack).
_EMULATED = re.compile(rb"\x41?[\x50-\x57]|\xe9|\xeb|[\x70-\x7f]|\x0f[\x80-\x8f]|\x66?\x90", re.DOTALL)
_CALL = b"\xe8"

_SHORT_BRANCH = re.compile(rb"[\x2e\x3e\x40-\x4f\x66\x67\xf2\xf3]*[\x70-\x7f\xe0-\xe3\xeb](.)", re.DOTALL)
_BACKWARD_NEAR_BRANCH = re.compile(rb"(?=[\x80-\x8f\xe8\xe9](...\xff))", re.DOTALL)

_ONLY_READ = frozenset({"cmp", "endbr64", "nop", "test"})
_WRITE_FIRST_OPERAND = frozenset(
    {"add", "and", "lea", "mov", "movabs", "movsx", "movsxd", "movzx", "neg", "not", "or", "sar", "shl", "shr", "sub"}
    | {"xor"},
)
_HOLD_NO_ARGUMENT = frozenset(
    {"rax", "eax", "ax", "al", "rbx", "ebx", "bx", "bl", "rbp", "ebp", "bp", "bpl"}
    | {f"r{number}{width}" for number in range(10, 16) for width in ("", "d", "w", "b")},
)

_ARM64_SIMULATED = (  # mask, value
    (0x7C000000, 0x14000000),  # b, bl
    (0xFF000010, 0x54000000),  # b.cond
    (0x7C000000, 0x34000000),  # cbz, cbnz, tbz, tbnz
    (0x1F000000, 0x10000000),  # adr, adrp
    (0xFF9FFC1F, 0xD61F0000),  # br, blr, ret
    (0xBF000000, 0x18000000),  # ldr (literal)
)


@dataclass(frozen=True, slots=True)
class Placement:
    """A place for a probe: `offset` in bytes from the start of the file.

    `kind` determines the cost of a hit; `moved` is true if the place is past the symbol.
    """

    offset: int
    kind: Kind
    moved: bool


def place(elf: Elf, function: Function) -> Placement:
    """Chooses the probed instruction of a function, for entry and return probes alike.

    The place is reached exactly once a call, with the argument registers, the stack pointer and the arguments' memory
    as the caller left them. Where no cheaper one is proven, it is the symbol. Raises what `elf.code` raises.
    """
    if elf.machine != X86_64:
        word = int.from_bytes(elf.code(function, 4), "little")
        simulated = elf.machine == AARCH64 and any(word & mask == value for mask, value in _ARM64_SIMULATED)
        return Placement(function.offset, "emulated" if simulated else "stepped", moved=False)
    code = elf.code(function, _LARGEST if function.size else _UNSIZED)
    if _EMULATED.match(code) or code.startswith(_CALL):
        return Placement(function.offset, "emulated", moved=False)
    if function.size <= _LARGEST and (past_symbol := cheaper(code)):
        return Placement(function.offset + past_symbol, "emulated", moved=True)
    return Placement(function.offset, "stepped", moved=False)


def cheaper(code: bytes) -> int:
    """Return how many bytes past the symbol the first emulated instruction is; 0 when there is none to be trusted."""
    import capstone  # type: ignore[import-untyped]  # 13 MB: in the child that reads files only

    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    near = [(at, at + size, name, operands) for at, size, name, operands in decoder.disasm_lite(code[:_NEAR], 0)]
    for at, end, name, operands in near:
        if at > _PROLOGUE:
            break
        if _EMULATED.match(code, at):
            short = [target for begin, end, *_ in near if (target := _short_target(code, begin, end)) is not None]
            return 0 if any(0 < target <= at for target in (*short, *_backward_targets(code))) else at
        if not _keeps_arguments(name, operands):
            break
    return 0


def _keeps_arguments(name: str, operands: str) -> bool:
    """Return whether an instruction leaves arguments, stack pointer and memory alone and goes on to the next one."""
    return name in _ONLY_READ or name in _WRITE_FIRST_OPERAND and operands.split(",")[0] in _HOLD_NO_ARGUMENT


def _short_target(code: bytes, begin: int, end: int) -> int | None:
    branch = _SHORT_BRANCH.fullmatch(code, begin, end)
    return end + int.from_bytes(branch[1], "little", signed=True) if branch else None


def _backward_targets(code: bytes) -> list[int]:
    """Return targets of bytes that look like near backward branches; a false match only loses a cheaper place."""
    branches = _BACKWARD_NEAR_BRANCH.finditer(code)
    return [branch.end(1) + int.from_bytes(branch[1], "little", signed=True) for branch in branches]
