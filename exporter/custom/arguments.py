"""The arguments of a USDT probe, from the compiler's notation to the structure that BPF programs read.

`4@%eax`, `-4@112(%rsp)`, `8@$5` on x86-64, `8@x0`, `4@[sp, 12]`, `4@5` on arm64: the size in bytes, negative for signed
ones, and an operand (systemtap's wiki, UserSpaceProbeImplementation). Registers are given by their place in struct
pt_regs (x86) or user_pt_regs (arm64).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from exporter.bpf.elf import AARCH64, X86_64

MOST = 12
_ARGUMENT = struct.Struct("=QIIII")  # struct accel_usdt_arg of compiler.py
_ABSENT, _CONSTANT, _REGISTER, _MEMORY = range(4)
_SIZED = re.compile(r"\s*(-?)([1248])@(.*?)(?=\s+-?[1248]@|\s*$)")

_X86_PLACES = ("r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di")
_X86_SP = 152
_X86 = re.compile(r"(?:(-?[0-9]+)?\((%[a-z0-9]+)\))|(%[a-z0-9]+)|\$(-?[0-9]+)")
_ARM = re.compile(r"(?:\[(sp|x[0-9]+)(?:, *#?(-?[0-9]+))?\])|(sp|[xw][0-9]+)|(-?[0-9]+)")


def encode(text: str, machine: int) -> bytes:
    """Return struct accel_usdt_args for the arguments in `text`; one of unknown form is marked as absent."""
    found = [*_arguments(text, machine)][:MOST]
    return b"".join(found) + _ARGUMENT.pack(0, _ABSENT, 0, 0, 0) * (MOST - len(found))


def _arguments(text: str, machine: int) -> Iterator[bytes]:
    for sign, size, operand in _SIZED.findall(text):
        kind, place, value = _operand(operand, machine)
        yield _ARGUMENT.pack(value & (1 << 64) - 1, kind, place, int(size), int(bool(sign)))


def _operand(operand: str, machine: int) -> tuple[int, int, int]:
    """Return an operand's kind, its register's offset in bytes, and its constant or displacement."""
    pattern, register_at = {X86_64: (_X86, _x86_place), AARCH64: (_ARM, _arm_place)}[machine]
    match = pattern.fullmatch(operand)
    if match is None:
        return _ABSENT, 0, 0
    first, second, register, constant = match.groups()
    if constant is not None:
        return _CONSTANT, 0, int(constant)
    displacement, base = (first, second) if machine == X86_64 else (second, first)
    place = register_at(register or base)
    if place is None:
        return _ABSENT, 0, 0
    return (_REGISTER, place, 0) if register else (_MEMORY, place, int(displacement or 0))


def _x86_place(name: str) -> int | None:
    """Return a register's offset in bytes, for widths from the lowest bit up: %rax, %eax, %ax and %al, not %ah."""
    plain = name.removeprefix("%")
    if re.fullmatch(r"r(?:8|9|1[0-5])[dwb]?", plain):
        plain = plain.rstrip("dwb")
    elif re.fullmatch(r"[re]?(?:[abcd]x|[sd]i|[sb]p)", plain):
        plain = plain[-2:]
    elif re.fullmatch(r"[abcd]l|(?:[sd]i|[sb]p)l", plain):
        plain = plain[0] + "x" if len(plain) == 2 else plain[:2]
    if plain == "sp":
        return _X86_SP
    return _X86_PLACES.index(plain) * 8 if plain in _X86_PLACES else None


def _arm_place(name: str) -> int | None:
    number = 31 if name == "sp" else int(name[1:])
    return number * 8 if number <= 31 else None
