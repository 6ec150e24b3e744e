"""struct stack of bpf/stacks/stacks.h as it travels to the child that unwinds: what is there of it, no more."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Protocol, SupportsBytes

from exporter.stacks.merge import PythonFrame

OF_THREAD = 1 << 31
"""Of the `id` of a thread that was not in a probed call but anywhere: OF_THREAD | tid."""
_HEAD = struct.Struct("=IIIIHHHHIHHI")
_HIJACK, _FRAME, _WORD = struct.Struct("=QQ"), struct.Struct("=QQQ"), struct.Struct("=Q")


class Stack(Protocol):
    """struct stack of bpf/stacks/stacks.h."""

    tgid: int
    tid: int
    id: int
    weight: int
    api: int
    python: int
    hijacked: int
    truncated: int
    bytes: int
    interpreter: int
    absent: int

    @property
    def registers(self) -> SupportsBytes: ...
    @property
    def hijacks(self) -> SupportsBytes: ...
    @property
    def frames(self) -> SupportsBytes: ...
    @property
    def memory(self) -> SupportsBytes: ...


@dataclass(slots=True)
class StackRecord:
    """One stack: `memory` is that of the thread from the stack pointer on."""

    tgid: int
    tid: int
    id: int
    program: int
    """Of the programs of that process: what exporter.stacks.ledger counts."""
    weight: int
    api: int
    truncated: bool
    interpreter: bool
    """True if the interpreter of the process was known when the stack was taken."""
    absent: int
    """Pages of `memory` that were not there, a bit for each from that of the stack pointer on."""
    registers: tuple[int, ...]
    hijacks: tuple[tuple[int, int], ...]
    frames: tuple[PythonFrame, ...]
    memory: bytearray

    @property
    def anywhere(self) -> bool:
        """Return whether the thread was anywhere, not at the first instruction of a function."""
        return bool(self.id & OF_THREAD)


def pack(raw: Stack, program: int) -> bytes:
    """Return the used parts of a ctypes struct stack."""
    head = _HEAD.pack(
        *(raw.tgid, raw.tid, raw.id, raw.weight, raw.api, raw.python, raw.hijacked, raw.truncated),
        *(raw.bytes, raw.interpreter, raw.absent, program),
    )
    used = (
        bytes(raw.registers),
        bytes(raw.hijacks)[: raw.hijacked * _HIJACK.size],
        bytes(raw.frames)[: raw.python * _FRAME.size],
        bytes(raw.memory)[: raw.bytes],
    )
    return b"".join((head, len(used[0]).to_bytes(4, "little"), *used))


def unpack(data: bytes) -> StackRecord:
    """Return what `pack` made. Raises struct.error for anything else."""
    head = _HEAD.unpack_from(data)
    tgid, tid, number, weight, api, python, hijacked, truncated, size, known, absent, program = head
    at = _HEAD.size + 4
    registers = int.from_bytes(data[_HEAD.size : at], "little")
    first, second = at + registers, at + registers + hijacked * _HIJACK.size
    third = second + python * _FRAME.size
    return StackRecord(
        *(tgid, tid, number, program, weight, api, bool(truncated), bool(known), absent),
        tuple(value for (value,) in _WORD.iter_unpack(data[at:first])),
        tuple((a, b) for a, b in _HIJACK.iter_unpack(data[first:second])),
        tuple(PythonFrame(*it) for it in _FRAME.iter_unpack(data[second:third])),
        bytearray(data[third : third + size]),
    )
