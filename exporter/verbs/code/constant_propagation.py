"""Constant propagation: the constants that a register may hold when a function reaches an instruction.

One forward pass over the function's code: backward branches are not followed, so a constant in the result is present on
some path to the instruction, and None among the constants means that the value is unknown on another path.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from exporter.bpf.elf import AARCH64

Constants = frozenset[int | None]
UNKNOWN: Constants = frozenset({None})
MAX_CODE = 1 << 16
"""Bytes of a function that are analysed."""
_MOST = 8
"""Constants that a register may hold before it counts as unknown."""

_WIDTHS = {  # the general registers of x86-64 by the names of their parts
    part: f"r{base}"
    for base in ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp")
    for part in (f"r{base}", f"e{base}", base, f"{base[0]}l", f"{base}l" if base[1] in "ip" else f"{base[0]}h")
} | {f"r{number}{width}": f"r{number}" for number in range(8, 16) for width in ("", "d", "w", "b")}
_X86_PRESERVED = frozenset({"rbx", "rbp", "rsp", "r12", "r13", "r14", "r15"})
_STACK = frozenset({"rsp", "rbp", "sp", "x29"})
_SPILLED = "stack:"
_ARM_PRESERVED = frozenset({f"x{number}" for number in range(19, 30)} | {"sp"})


class Code:
    """A function's instructions, decoded. `instructions` are capstone's, with details."""

    def __init__(self, machine: int, code: bytes, address: int) -> None:
        """Prepare to decode `code`, which starts at `address` of the file's addresses."""
        import capstone  # type: ignore[import-untyped]  # 9 MB: only where there is a provider

        self._capstone = capstone
        self.arm = machine == AARCH64
        if self.arm:
            self._decoder = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
        else:
            self._decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        self._decoder.detail = True
        self._code, self._address = code[:MAX_CODE], address

    def instructions(self) -> Iterator[Any]:
        """Yield instructions in the order of their addresses, until one that cannot be decoded."""
        yield from self._decoder.disasm(self._code, self._address)

    def register(self, instruction: Any, operand: Any) -> str:
        """Return the full-width name of the general register that an operand is; empty if the operand is none."""
        return self._name(instruction, operand.reg) if operand.type == self._capstone.CS_OP_REG else ""

    def memory(self, instruction: Any, operand: Any) -> tuple[str, int] | None:
        """Return base register and displacement of a memory operand without an index; None for another operand."""
        if operand.type != self._capstone.CS_OP_MEM or operand.mem.index:
            return None
        return self._name(instruction, operand.mem.base), operand.mem.disp

    def written(self, instruction: Any) -> set[str]:
        """Return the general registers that an instruction changes, without those that a callee may change."""
        return {self._name(instruction, register) for register in instruction.regs_access()[1]}

    def constants_at(self, sites: Collection[int], argument: int) -> dict[int, Constants]:
        """Return what the n-th argument register (from 0) may hold at each of the sites that the function reaches."""
        wanted = f"x{argument}" if self.arm else ("rdi", "rsi")[argument]
        found: dict[int, Constants] = {}
        state: dict[str, Constants] | None = {}
        branched: dict[int, dict[str, Constants]] = {}
        for instruction in self.instructions():
            arriving = branched.pop(instruction.address, None)
            if arriving is not None:
                state = arriving if state is None else _merge(state, arriving)
            if instruction.address in sites:
                found[instruction.address] = (state or {}).get(wanted, UNKNOWN)
            state = self._after(instruction, {} if state is None else state, branched)
        return found

    def _after(
        self, instruction: Any, state: dict[str, Constants], branched: dict[int, dict[str, Constants]]
    ) -> dict[str, Constants] | None:
        """Return the state at the next instruction; None if this instruction never continues there."""
        capstone = self._capstone
        if instruction.group(capstone.CS_GRP_CALL):
            preserved = _ARM_PRESERVED if self.arm else _X86_PRESERVED
            return {name: values for name, values in state.items() if name in preserved or name.startswith(_SPILLED)}
        if instruction.group(capstone.CS_GRP_RET):
            return None
        if instruction.group(capstone.CS_GRP_JUMP):
            target = instruction.operands[-1] if instruction.operands else None
            if target is not None and target.type == capstone.CS_OP_IMM and target.imm > instruction.address:
                earlier = branched.get(target.imm)
                branched[target.imm] = dict(state) if earlier is None else _merge(earlier, state)
            return None if instruction.mnemonic in ("jmp", "notrack jmp", "b", "br") else state
        assigned = self._moved(instruction, state) or self._assigned(instruction, state)
        for register in self.written(instruction):
            state.pop(register, None)
            for name in [name for name in state if name.startswith(f"{_SPILLED}{register}")]:
                del state[name]
        state.update(assigned)
        return {name: values for name, values in state.items() if values != UNKNOWN}

    def _moved(self, instruction: Any, state: dict[str, Constants]) -> dict[str, Constants]:
        """Return what a load from or a store to the stack assigns: compilers keep values there across calls."""
        mnemonic, operands = instruction.mnemonic, instruction.operands
        memory = next((found for o in operands if (found := self.memory(instruction, o))), None)
        if memory is None or memory[0] not in _STACK or mnemonic not in ("mov", "ldr", "str", "ldp", "stp"):
            return {}
        registers = [name for operand in operands if (name := self.register(instruction, operand))]
        places = [f"{_SPILLED}{memory[0]}{memory[1] + 8 * index:+}" for index in range(len(registers))]
        stores = mnemonic.startswith("st") or mnemonic == "mov" and not self.register(instruction, operands[0])
        to, of = (places, registers) if stores else (registers, places)
        return {target: state.get(source, UNKNOWN) for target, source in zip(to, of, strict=True)}

    def _assigned(self, instruction: Any, state: dict[str, Constants]) -> dict[str, Constants]:
        """Return the register that this instruction sets to constants, with the constants."""
        operands = instruction.operands
        if len(operands) < 2:
            return {}
        target = self.register(instruction, operands[0])
        sources = [state.get(self.register(instruction, operand), UNKNOWN) for operand in operands]
        mnemonic = instruction.mnemonic
        values: Constants = UNKNOWN
        if mnemonic == "mov" and operands[1].type == self._capstone.CS_OP_REG:
            values = sources[1]
        elif mnemonic == "lea" and (memory := self.memory(instruction, operands[1])) and memory[0] == "rip":
            values = frozenset({instruction.address + instruction.size + memory[1]})
        elif mnemonic.startswith("cmov"):
            values = sources[0] | sources[1]
        elif mnemonic in ("adrp", "adr"):
            values = frozenset({operands[1].imm})
        elif mnemonic == "add" and len(operands) == 3 and operands[2].type == self._capstone.CS_OP_IMM:
            added = operands[2].imm << operands[2].shift.value
            values = frozenset({None if value is None else value + added for value in sources[1]})
        elif mnemonic == "csel":
            values = sources[1] | sources[2]
        return {target: values} if target else {}

    def _name(self, instruction: Any, register: int) -> str:
        name: str = instruction.reg_name(register) or ""
        if self.arm:
            return f"x{name[1:]}" if name[:1] in ("x", "w") and name[1:].isdigit() else {"fp": "x29"}.get(name, name)
        return _WIDTHS.get(name, name)


def _merge(one: dict[str, Constants], other: dict[str, Constants]) -> dict[str, Constants]:
    merged = {name: one.get(name, UNKNOWN) | other.get(name, UNKNOWN) for name in one.keys() | other.keys()}
    return {name: values for name, values in merged.items() if values != UNKNOWN and len(values) <= _MOST}
