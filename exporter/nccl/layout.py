"""Offset of a communicator's identity in a library's `struct ncclComm`, found in the library's own code.

The struct is private and changes with every release, but ncclCommUserRank, ncclCommCount and ncclCommCuDevice each read
one number from the struct, and the three are adjacent after commHash: checked against the debug information of NCCL
2.18 to 2.32. Earlier releases have the three and no hash; the hash is then computed from the id passed to
ncclCommInitRank. A library without a version is not trusted. Files are hostile: a bounded amount of code is read, and
the result is one of few offsets or none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from exporter.bpf.elf import AARCH64, X86_64, Elf, Function

ACCESSORS = ("ncclCommUserRank", "ncclCommCount", "ncclCommCuDevice")
"""Every NCCL has all of these; a library with other functions of its names only passes calls on to one."""
_DEVICE_CODE = (b".nv_fatbin", b".hip_fatbin")
"""Sections with code for GPUs, as nvcc and clang name them."""
_VERSION = "ncclGetVersion"
_CODE, _VERSION_CODE, _CALLEE_CODE = 2048, 64, 64
_MOST_CALLEES = 16
_LEAST_OFFSET, _MOST_OFFSET = 0x200, 1 << 24
_BEFORE_RANK = 8  # commHash

_MAGIC = struct.pack("<Q", 0x0280028002800280)
"""NCCL_MAGIC of comm.h: what a communicator begins with, since 2.19."""
_ARM64_MOVK_MAGIC = 0xF2A05000  # movk of 0x280 into bits 16 to 31

_FIRST_WITH_HASH = 21800
"""Releases before it have a pointer before the rank. Where no version is found, the guard of 2.19 shows a later one."""
_SEQUENCE = {  # version: commHash, seqNumber (uint64_t[5]), from the debug information of the wheels for CUDA 12
    22304: (246944, 252568),
    22403: (246944, 252536),
    22501: (492704, 500984),
    22602: (492720, 501008),
    22605: (492720, 501008),
    22703: (1066160, 1074512),
    22705: (1066160, 1074512),
    22706: (1066160, 1074512),
    22707: (1066160, 1074512),
    22803: (1066176, 1075720),
    22807: (1066184, 1075728),
    22809: (1066184, 1075728),
    22902: (1066704, 1076856),
    22903: (1066704, 1076856),
    22907: (1181392, 1191544),
    23003: (1181400, 1191560),
    23004: (1181400, 1191560),
    23007: (1181416, 1191576),
    23102: (1181408, 1193776),
    23203: (1181408, 1193800),
}


@dataclass(frozen=True, slots=True)
class CommunicatorLayout:
    """Offsets in bytes, 0 where they are not known: struct layout of bpf/nccl/nccl.h."""

    identity: int = 0
    """Of commHash, which rank, nRanks and cudaDev follow."""
    sequence: int = 0
    """Of seqNumber, by which the library counts calls."""
    guarded: bool = False
    """True if the struct begins with NCCL_MAGIC."""
    hashless: bool = False
    """True if the struct has something else in the place of commHash."""


UNKNOWN = CommunicatorLayout()


def has_device_code(elf: Elf) -> bool:
    """Return whether a file has code for GPUs: then it does not only pass calls on. Called where files are read."""
    return any(map(elf.has_section, _DEVICE_CODE))


def find_layout(elf: Elf) -> CommunicatorLayout:
    """Return the layout in a library; UNKNOWN without one in its code. Raise OSError or ElfError for a broken file."""
    functions = elf.functions([*ACCESSORS, _VERSION])
    if not functions.keys() >= set(ACCESSORS) or elf.machine not in (X86_64, AARCH64):
        return UNKNOWN
    read = [_Reads(elf, functions[name]) for name in ACCESSORS]
    ranks, counts, devices = (set(it.offsets()) for it in read)
    found = [at for at in ranks if at + 4 in counts and at + 8 in devices]
    if len(found) != 1:
        return UNKNOWN
    identity, guarded = found[0] - _BEFORE_RANK, read[0].calls_a_check()
    version = _version(elf, functions.get(_VERSION))
    if not guarded and not version:
        return UNKNOWN
    if not guarded and version < _FIRST_WITH_HASH:
        return CommunicatorLayout(identity, hashless=True)
    known, sequence = _SEQUENCE.get(version, (0, 0))
    return CommunicatorLayout(identity, sequence if known == identity else 0, guarded)


class _Reads:
    """Memory reads and calls in the code of a function."""

    def __init__(self, elf: Elf, function: Function) -> None:
        self._elf, self._function = elf, function
        self._code = list(_disassemble(elf, function, _CODE))

    def offsets(self) -> Iterator[int]:
        """Far offsets from some register at which it reads 32 bits."""
        found = self._offsets_arm64() if self._elf.machine == AARCH64 else self._offsets_x86()
        return (at for at in found if _LEAST_OFFSET <= at < _MOST_OFFSET and at % 4 == 0)

    def calls_a_check(self) -> bool:
        """Return whether a function that it calls compares something with NCCL_MAGIC."""
        move = self._function.offset - self._function.address
        targets = list(dict.fromkeys(self._call_targets()))[:_MOST_CALLEES]
        return any(self._has_magic(Function("", target + move, 0, target, 0)) for target in targets)

    def _offsets_x86(self) -> Iterator[int]:
        import capstone.x86 as x86  # type: ignore[import-untyped]

        frame = (0, x86.X86_REG_RIP, x86.X86_REG_RSP, x86.X86_REG_RBP)
        for it in self._code:
            for op in it.operands:
                if op.type == x86.X86_OP_MEM and op.size == 4 and op.mem.base not in frame and not op.mem.index:
                    yield op.mem.disp

    def _offsets_arm64(self) -> Iterator[int]:
        """ldr of 32 bits; offsets too far for it are put together with an add just before."""
        import capstone.arm64 as arm64  # type: ignore[import-untyped]

        high: dict[int, int] = {}
        for it in self._code:
            operands = it.operands
            if it.mnemonic == "ldr" and it.op_str.startswith("w") and operands[1].type == arm64.ARM64_OP_MEM:
                memory = operands[1].mem
                if memory.base != arm64.ARM64_REG_SP and not memory.index:
                    yield high.get(memory.base, 0) + memory.disp
            if it.mnemonic == "add" and len(operands) == 3 and operands[2].type == arm64.ARM64_OP_IMM:
                high[operands[0].reg] = operands[2].imm << operands[2].shift.value
            elif operands and operands[0].type == arm64.ARM64_OP_REG:
                high.pop(operands[0].reg, None)

    def _call_targets(self) -> Iterator[int]:
        for it in self._code:
            if it.mnemonic in ("call", "bl") and it.op_str.lstrip("#").startswith("0x"):
                yield int(it.op_str.lstrip("#"), 16)

    def _has_magic(self, callee: Function) -> bool:
        try:
            code = self._elf.code(callee, _CALLEE_CODE)
        except ValueError:
            return False
        if self._elf.machine == X86_64:
            return _MAGIC in code
        words = struct.unpack(f"<{len(code) // 4}I", code[: len(code) // 4 * 4])
        return any(word & 0xFFFFFFE0 == _ARM64_MOVK_MAGIC for word in words)


def _version(elf: Elf, function: Function | None) -> int:
    """Return what ncclGetVersion gives: the first number it stores, 22304 for 2.23.4; 0 if it is not found."""
    for it in _disassemble(elf, function, _VERSION_CODE) if function else ():
        name, _, operands = it.op_str.partition(", ")
        if it.mnemonic == "mov" and (name.startswith("dword ptr [") or elf.machine == AARCH64):
            text = operands.lstrip("#")
            number = int(text, 0) if text[:1].isdigit() else 0
            if number >= 20000:
                return number
    return 0


def _disassemble(elf: Elf, function: Function, limit: int) -> Iterator[Any]:
    """The instructions of a function's first bytes, at their addresses; what is none is passed over."""
    import capstone  # 9 MB and 60 ms: only where there is an NCCL

    arm = elf.machine == AARCH64
    decoder = (
        capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
        if arm
        else capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    )
    decoder.detail = decoder.skipdata = True
    return (it for it in decoder.disasm(elf.code(function, limit), function.address) if it.id)
