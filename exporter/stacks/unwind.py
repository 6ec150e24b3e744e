"""From registers and a piece of stack to the native frames of a call."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from exporter.stacks.expression import ExpressionError, evaluate
from exporter.stacks.libdw import UnwindRule
from exporter.stacks.machine import Machine

MOST_FRAMES = 512
_WORD = struct.Struct("=Q")
_PAGE_BITS = 12
"""PAGE of bpf/stacks/stacks.h is 4,096."""


class ModuleOffset(NamedTuple):
    """A place in a module: `address` is before relocation."""

    module: int
    address: int


class NativeFrame(NamedTuple):
    """A native frame: where it is, and which part of the stack is its own, from `low` to below `high`."""

    place: ModuleOffset | None
    pc: int
    low: int
    high: int


class Unwound(NamedTuple):
    """Frames, the leaf first. `truncated`: why there are no more, empty where the outermost one was reached."""

    frames: list[NativeFrame]
    truncated: str


class Modules(Protocol):
    """The code of one process."""

    def place(self, pc: int) -> ModuleOffset | None:
        """Return where an address is; None where no file is mapped."""
        ...

    def rule(self, place: ModuleOffset) -> UnwindRule | None: ...

    def is_code(self, pc: int) -> bool:
        """Return whether an address is in a file's code, or in code made at run time that has a name."""
        ...


class StackSnapshot:
    """The copied piece of a thread's stack: `memory` is that from the address `sp` on. It changes by `restore`.

    `absent` has a bit for each page, from that of `sp` on, that was not there.
    """

    def __init__(self, memory: bytearray, sp: int, absent: int = 0) -> None:
        self._memory, self._sp, self._absent = memory, sp, absent

    def word(self, address: int) -> int:
        """Return the word at an address. Raises LookupError where it was not copied."""
        at = address - self._sp
        if at < 0 or at + 8 > len(self._memory) or (self._absent and self._is_absent(address)):
            raise LookupError(address)
        return int(_WORD.unpack_from(self._memory, at)[0])

    def _is_absent(self, address: int) -> bool:
        first = self._sp >> _PAGE_BITS
        return any(self._absent >> (it >> _PAGE_BITS) - first & 1 for it in (address, address + 7))

    def restore(self, address: int, value: int) -> None:
        """Put back what a return probe has taken from the stack."""
        at = address - self._sp
        if at >= 0 and at + 8 <= len(self._memory):
            _WORD.pack_into(self._memory, at, value)


class Unwinder:
    """Unwinds stacks of one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def unwind(
        self, registers: Sequence[int], stack: StackSnapshot, modules: Modules, anywhere: bool = False
    ) -> Unwound:
        """Return the frames of a thread that is at the first instruction of a function, or as good as.

        With `anywhere` it may be at any instruction.
        """
        now = list(registers)
        if anywhere:
            return self._callers(now, now[self._machine.program], True, [], stack, modules)
        return self._at_entry(now, stack, modules)

    def _at_entry(self, now: list[int], stack: StackSnapshot, modules: Modules) -> Unwound:
        machine = self._machine
        pc, sp = now[machine.program], now[machine.stack]
        try:
            if machine.link is None:
                back, high = stack.word(sp), sp + 8
            else:
                back, high = now[machine.link] & machine.code_mask, sp
        except LookupError:
            return Unwound([NativeFrame(modules.place(pc), pc, sp, sp)], "stack")
        now[machine.stack] = high
        return self._callers(now, back, False, [NativeFrame(modules.place(pc), pc, sp, high)], stack, modules)

    def _callers(
        self,
        now: list[int],
        pc: int,
        interrupted: bool,
        frames: list[NativeFrame],
        stack: StackSnapshot,
        modules: Modules,
    ) -> Unwound:
        """Return these frames, and those from `pc` on: the instruction that was interrupted, or a return address."""
        machine = self._machine
        while pc and len(frames) < MOST_FRAMES:
            place = modules.place(pc if interrupted else pc - 1)
            sp = now[machine.stack]
            step = self._step(now, place, stack, modules)
            if isinstance(step, str):
                frames.append(NativeFrame(place, pc, sp, sp))
                return Unwound(frames, step)
            back, high, interrupted = step
            frames.append(NativeFrame(place, pc, sp, high))
            if back and high <= sp:
                return Unwound(frames, "frame_information")
            pc, now[machine.stack] = back, high
        return Unwound(frames, "" if not pc else "depth")

    def _step(
        self, now: list[int], place: ModuleOffset | None, stack: StackSnapshot, modules: Modules
    ) -> tuple[int, int, bool] | str:
        """Change the registers to those of the caller. Returns its pc (0: there is none), its stack pointer, and
        whether it was interrupted; or why it is not known.
        """
        rule = modules.rule(place) if place else None
        if rule is None:
            return self._by_frame_pointer(now, stack, modules)
        if rule.outermost:
            return 0, now[self._machine.stack], False
        try:
            cfa = self._cfa(rule, now, stack)
            found = {register: stack.word(cfa + at & (1 << 64) - 1) for register, at in rule.saved}
            for register, expression in rule.computed:
                found[register] = stack.word(evaluate(expression, now, stack.word, cfa))
        except LookupError:
            return "stack"
        except ExpressionError:
            return "frame_information"
        for register, value in found.items():
            now[register] = value
        return now[rule.returns] & self._machine.code_mask, cfa, rule.signal

    def _cfa(self, rule: UnwindRule, now: Sequence[int], stack: StackSnapshot) -> int:
        if rule.base < 0:
            return evaluate(rule.cfa, now, stack.word)
        if rule.base >= len(now):
            raise ExpressionError("no such register")
        return now[rule.base] + rule.offset & (1 << 64) - 1

    def _by_frame_pointer(self, now: list[int], stack: StackSnapshot, modules: Modules) -> tuple[int, int, bool] | str:
        """Return the caller by the frame pointer, for code without frame information, if that leads to code."""
        frame = now[self._machine.frame]
        try:
            if frame < now[self._machine.stack]:
                return "frame_information"
            before, back = stack.word(frame), stack.word(frame + 8) & self._machine.code_mask
        except LookupError:
            return "frame_information"
        if not modules.is_code(back - 1):
            return "frame_information"
        now[self._machine.frame] = before
        return back, frame + 16, False
