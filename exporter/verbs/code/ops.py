"""Offsets of functions in struct verbs_context_ops: read from the code of libibverbs, or known by version.

The struct is private to rdma-core and changes with releases. verbs_set_ops copies the members into struct
verbs_context, which is public and does not change, so the code of verbs_set_ops shows their offsets. layout.yaml has
both from the sources.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from exporter.bpf.elf import Elf, ElfError
from exporter.verbs.code.constant_propagation import MAX_CODE, Code
from exporter.verbs.code.eh_frame import Frames
from exporter.verbs.code.tables import SET_OPS

POINTER = 8
_CONTEXT_FROM_PRIV = 112
"""Bytes from verbs_context.priv, which verbs_set_ops loads first, to verbs_context.context."""
_CALIBRATION = frozenset({"poll_cq", "post_recv", "post_send", "post_srq_recv", "req_notify_cq", "create_qp_ex"})
"""Members that a calibration has to find."""
_RELEASE = re.compile(r"\.so\.\d+\.\d+\.(\d+)\.\d+$")


@dataclass(frozen=True, slots=True)
class OpsLayout:
    """Offsets in bytes of the members of struct verbs_context_ops. `size` is that of the struct, in bytes."""

    offsets: Mapping[str, int]
    size: int

    def agrees(self, other: OpsLayout) -> bool:
        """Return whether members that both have are at the same offsets."""
        return all(self.offsets.get(name, offset) == offset for name, offset in other.offsets.items())


def release(file_name: str) -> int:
    """Return the rdma-core release of names like libmlx5.so.1.24.44.0 (44); 0 where the name has none."""
    found = _RELEASE.search(file_name)
    return int(found[1]) if found else 0


def of_release(number: int) -> OpsLayout | None:
    """Return the layout in a release of rdma-core; None for an unknown release."""
    data = _data()
    if not data["oldest"] <= number <= data["newest"]:
        return None
    members = [name for name, span in data["members"].items() if span[0] <= number <= span[1]]
    return OpsLayout({name: POINTER * index for index, name in enumerate(members)}, POINTER * len(members))


def of_abi(number: int) -> list[OpsLayout]:
    """Return the layouts of releases with this private ABI, each once."""
    first, last = _data()["abi"].get(number, (1, 0))
    return _distinct(range(first, last + 1))


def complete(calibrated: OpsLayout) -> OpsLayout:
    """Return the layout with the members that no context has a copy of, if all releases that agree in everything else
    agree in these."""
    known = _distinct(range(_data()["oldest"], _data()["newest"] + 1))
    alike = [layout for layout in known if layout.size == calibrated.size and layout.agrees(calibrated)]
    if len(alike) != 1:
        return calibrated
    return OpsLayout({**alike[0].offsets, **calibrated.offsets}, calibrated.size)


def in_context() -> Mapping[str, int]:
    """Return where struct verbs_context has a copy of each function, in bytes from its ibv_context."""
    offsets: Mapping[str, int] = _data()["context"]
    return offsets


def calibrate(verbs: Elf) -> OpsLayout:
    """Return the layout by the code of verbs_set_ops in this libibverbs.

    Every member is loaded once from the table (second argument) and stored at the same offset, shifted by a constant,
    of the private copy that the first field of verbs_context points to; public members are also stored to verbs_context
    (first argument). Raises ElfError for code that does anything else.
    """
    function = verbs.functions({SET_OPS}).get(SET_OPS)
    size = function and Frames(verbs).size(function.address)
    if function is None or not size:
        raise ElfError(f"{SET_OPS} is not in this libibverbs")
    if size > MAX_CODE:
        raise ElfError(f"{SET_OPS} is larger than in any known libibverbs")
    copies = _Copies(Code(verbs.machine, verbs.read(function.address, size), function.address))
    if copies.priv_at is None or len(copies.shifts) != 1:
        raise ElfError(f"{SET_OPS} does not copy its table as it does in any known libibverbs")
    context = copies.priv_at + _CONTEXT_FROM_PRIV
    names = {offset: name for name, offset in in_context().items()}
    offsets: dict[str, int] = {}
    for member, at in copies.stores:
        name = names.get(at - context)
        if name is None or offsets.setdefault(name, member) != member:
            raise ElfError(f"{SET_OPS} stores to a place that struct verbs_context does not have")
    if not offsets.keys() >= _CALIBRATION or len(set(offsets.values())) != len(offsets):
        raise ElfError(f"{SET_OPS} does not set all functions of a context")
    return OpsLayout(offsets, POINTER + max(copies.members))


@dataclass
class _Copies:
    """Copies made by verbs_set_ops: offsets in its table, in verbs_context and in the private copy."""

    code: Code
    priv_at: int | None = None
    members: set[int] = field(default_factory=set)
    stores: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of offsets, in the table and in verbs_context."""
    shifts: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        arguments = ("x0", "x1") if self.code.arm else ("rdi", "rsi")
        self._held: dict[str, tuple[str, int]] = {arguments[0]: ("context", 0), arguments[1]: ("table", 0)}
        for instruction in self.code.instructions():
            self._follow(instruction)

    def _follow(self, instruction: Any) -> None:
        mnemonic, operands = instruction.mnemonic, instruction.operands
        memory = next((found for o in operands if (found := self.code.memory(instruction, o))), None)
        registers = [name for o in operands if (name := self.code.register(instruction, o))]
        if mnemonic in ("str", "stp") or mnemonic == "mov" and memory and self.code.memory(instruction, operands[0]):
            if memory:
                self._store(memory, registers)
            return
        held: dict[str, tuple[str, int]] = {}
        if memory and mnemonic in ("mov", "ldr", "ldp"):
            held = self._loaded(memory, registers)
        elif mnemonic == "mov" and len(registers) == 2 and registers[1] in self._held:
            held = {registers[0]: self._held[registers[1]]}
        for register in self.code.written(instruction):
            self._held.pop(register, None)
        self._held.update(held)

    def _loaded(self, memory: tuple[str, int], registers: list[str]) -> dict[str, tuple[str, int]]:
        base, offset = memory
        kind, at = self._held.get(base, ("", 0))
        if kind == "context" and self.priv_at in (None, offset):
            self.priv_at = offset
            return {registers[0]: ("private", 0)}
        if kind == "table":
            return {register: ("member", offset + POINTER * index) for index, register in enumerate(registers)}
        return {}

    def _store(self, memory: tuple[str, int], registers: list[str]) -> None:
        base, offset = memory
        for index, register in enumerate(registers):
            kind, member = self._held.get(register, ("", 0))
            at = offset + POINTER * index
            if kind == "member" and self._held.get(base) == ("context", 0):
                self.stores.append((member, at))
            elif kind == "member" and self._held.get(base) == ("private", 0):
                self.members.add(member)
                self.shifts.add(at - member)


def _distinct(releases: range) -> list[OpsLayout]:
    layouts = [layout for number in releases if (layout := of_release(number))]
    return [layout for index, layout in enumerate(layouts) if layout not in layouts[:index]]


@cache
def _data() -> dict[str, Any]:
    """Return layout.yaml, the members as pairs of first and last release."""
    import yaml  # where a provider is read only

    data: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("layout.yaml").read_text())
    spans = {name: str(span).partition("-") for name, span in data["members"].items()}
    data["members"] = {name: (int(a), int(b or data["newest"])) for name, (a, _, b) in sorted(spans.items())}
    return data
