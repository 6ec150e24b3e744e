"""Placement on hand-made code: which instruction is chosen, and what forbids to leave the symbol."""

from __future__ import annotations

from dataclasses import dataclass

import capstone
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.bpf.elf import AARCH64, X86_64, Function
from exporter.bpf.placement import Placement, place

START = 0x1000


@dataclass
class File:
    """Stands in for an Elf that holds one function."""

    text: bytes
    machine: int = X86_64

    def code(self, function: Function, limit: int) -> bytes:
        return self.text[: min(limit, function.size or limit)]


def placed(text: bytes, size: int | None = None, machine: int = X86_64) -> Placement:
    function = Function("cudaMalloc", START, len(text) if size is None else size, 0x401000, 1)
    return place(File(text, machine), function)


def code(*instructions: str) -> bytes:
    return bytes.fromhex(" ".join(instructions))


ENDBR64, PUSH_RBP, PUSH_R12, RET = "f30f1efa", "55", "4154", "c3"
AT_SYMBOL = Placement(START, "emulated", False)
STEPPED = Placement(START, "stepped", False)


def past(distance: int) -> Placement:
    return Placement(START + distance, "emulated", True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(code(PUSH_RBP, "4889e5", RET), AT_SYMBOL, id="push"),
        pytest.param(code(PUSH_R12, RET), AT_SYMBOL, id="push r12"),
        pytest.param(code("90", RET), AT_SYMBOL, id="nop"),
        pytest.param(code("6690", RET), AT_SYMBOL, id="two-byte nop"),
        pytest.param(code("e910000000"), AT_SYMBOL, id="jmp"),
        pytest.param(code("e810000000", RET), AT_SYMBOL, id="call of a profiling hook"),
        pytest.param(code("eb10"), AT_SYMBOL, id="short jmp"),
        pytest.param(code(ENDBR64, PUSH_RBP, RET), past(4), id="endbr64, push"),
        pytest.param(code(ENDBR64, "0f1f440000", PUSH_RBP, RET), past(9), id="a patchable 5-byte nop is passed over"),
        pytest.param(code(ENDBR64, "e910000000"), past(4), id="endbr64, tail call"),
        pytest.param(code("488b07", PUSH_R12, RET), past(3), id="mov rax, [rdi]; push"),
        pytest.param(code("4885ff", "7410", "55"), past(3), id="test rdi, rdi; je"),
        pytest.param(code("4885ff", "0f8410010000", "55"), past(3), id="test rdi, rdi; near je"),
        pytest.param(code("4889f8", "4989f2", "83c001", PUSH_RBP), past(9), id="copies of arguments"),
        pytest.param(code("31c0", RET), STEPPED, id="xor eax, eax; ret"),
        pytest.param(code("31c0", RET, PUSH_RBP), STEPPED, id="nothing past a return"),
        pytest.param(code(ENDBR64, "4883ec08", PUSH_RBP), STEPPED, id="stack pointer moved"),
        pytest.param(code(ENDBR64, "4889f7", PUSH_RBP), STEPPED, id="mov rdi, rsi"),
        pytest.param(code(ENDBR64, "40b701", PUSH_RBP), STEPPED, id="mov dil, 1"),
        pytest.param(code(ENDBR64, "b201", PUSH_RBP), STEPPED, id="mov dl, 1"),
        pytest.param(code(ENDBR64, "b601", PUSH_RBP), STEPPED, id="mov dh, 1"),
        pytest.param(code(ENDBR64, "66b90100", PUSH_RBP), STEPPED, id="mov cx, 1"),
        pytest.param(code(ENDBR64, "41b001", PUSH_RBP), STEPPED, id="mov r8b, 1"),
        pytest.param(code(ENDBR64, "4531c9", PUSH_RBP), STEPPED, id="xor r9d, r9d"),
        pytest.param(code(ENDBR64, "c70700000000", PUSH_RBP), STEPPED, id="argument's memory written"),
        pytest.param(code(ENDBR64, "48897c24f8", PUSH_RBP), STEPPED, id="stack written"),
        pytest.param(code(ENDBR64, "4987c0", PUSH_RBP), STEPPED, id="xchg rax, r8"),
        pytest.param(code(ENDBR64, "4990", PUSH_RBP), STEPPED, id="xchg r8, rax looks like a nop"),
        pytest.param(code(ENDBR64, "0f31", PUSH_RBP), STEPPED, id="rdtsc writes rdx unsaid"),
        pytest.param(code(ENDBR64, "0f05", PUSH_RBP), STEPPED, id="system call"),
        pytest.param(code(ENDBR64, "e800000000", PUSH_RBP), STEPPED, id="call"),
        pytest.param(code(ENDBR64, "ffe0", PUSH_RBP), STEPPED, id="indirect jump"),
        pytest.param(code(ENDBR64, "66e90000", PUSH_RBP), STEPPED, id="16-bit jump, refused by uprobes"),
        pytest.param(code(ENDBR64, "06", PUSH_RBP), STEPPED, id="no instruction"),
        pytest.param(code(ENDBR64), STEPPED, id="cut short"),
        pytest.param(code(ENDBR64, "4885ff", "7402", "ebf9", RET), STEPPED, id="short jmp back past the symbol"),
        pytest.param(code(ENDBR64, "4885ff", "7405", "e9f6ffffff", RET), STEPPED, id="near jmp back past the symbol"),
        pytest.param(code(ENDBR64, PUSH_RBP, "e8f6ffffff"), past(4), id="recursion through the symbol"),
        pytest.param(code(ENDBR64, PUSH_RBP, "e8f7ffffff"), STEPPED, id="call into the prologue"),
        pytest.param(code(ENDBR64, PUSH_RBP, "e8faffffff"), STEPPED, id="call of the place"),
        pytest.param(code(ENDBR64, PUSH_RBP, "e8fbffffff"), past(4), id="call of what follows the place"),
        pytest.param(code(ENDBR64, PUSH_RBP, "e2f9"), past(4), id="loop through the symbol"),
        pytest.param(code(ENDBR64, PUSH_RBP, "e2fd"), STEPPED, id="loop to the place"),
        pytest.param(code(ENDBR64, PUSH_RBP, "e2fe"), past(4), id="loop to what follows the place"),
        pytest.param(code(ENDBR64, PUSH_RBP, "f275fc"), STEPPED, id="prefixed jcc to the place"),
    ],
)
def test_choice(text: bytes, expected: Placement) -> None:
    """The first emulated instruction is taken if nothing the probe reads was changed and no branch leads to it."""
    assert expected == placed(text)


def test_far_branch() -> None:
    """A branch back from a distant part of the function forbids the place, though the first bytes do not show it."""
    filler = code("90") * 5000
    straight = code(ENDBR64, PUSH_RBP) + filler + code("0f84") + (-5001 - 6 + 1).to_bytes(4, "little", signed=True)
    looping = code(ENDBR64, PUSH_RBP) + filler + code("0f84") + (-5001 - 6).to_bytes(4, "little", signed=True)
    assert (past(4), STEPPED) == (placed(straight), placed(looping))


def test_end_of_function() -> None:
    """Bytes after the end of the function are not its code."""
    assert placed(code(ENDBR64, PUSH_RBP), size=4) == STEPPED


def test_unsized() -> None:
    """A symbol without a size is looked at all the same."""
    assert past(4) == placed(code(ENDBR64, PUSH_RBP, RET), size=0)


def test_prologue_limit() -> None:
    """A push far down is not part of a prologue."""
    assert (past(64), STEPPED) == (
        placed(code("31c0") * 32 + code(PUSH_RBP, RET)),
        placed(code("31c0") * 33 + code(PUSH_RBP, RET)),
    )


def test_giant_function() -> None:
    """A function too long to be searched for branches is probed at its symbol."""
    assert placed(code(ENDBR64, PUSH_RBP) + bytes(1 << 20)) == STEPPED


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        pytest.param(0xA9BF7BFD, "stepped", id="stp x29, x30, [sp, #-16]!"),
        pytest.param(0xD503233F, "stepped", id="paciasp"),
        pytest.param(0x14000010, "emulated", id="b"),
        pytest.param(0xB4000080, "emulated", id="cbz"),
        pytest.param(0x90000010, "emulated", id="adrp"),
        pytest.param(0xD61F0200, "emulated", id="br"),
        pytest.param(0x58000040, "emulated", id="ldr literal"),
        pytest.param(0xD10043FF, "stepped", id="sub sp, sp, #16"),
    ],
)
def test_arm64(word: int, kind: str) -> None:
    """On arm64 the symbol is taken, and its first instruction decides the cost."""
    assert Placement(START, kind, False) == placed(word.to_bytes(4, "little") * 4, machine=AARCH64)


FORBIDDEN = {
    *("rdi", "edi", "di", "dil", "rsi", "esi", "si", "sil", "rdx", "edx", "dx", "dl", "dh"),
    *("rcx", "ecx", "cx", "cl", "ch", "r8", "r8d", "r8w", "r8b", "r9", "r9d", "r9w", "r9b"),
    *("rsp", "esp", "sp", "spl"),
}
LEAVES = {capstone.CS_GRP_JUMP, capstone.CS_GRP_CALL, capstone.CS_GRP_RET, capstone.CS_GRP_INT, capstone.CS_GRP_IRET}
FRAGMENTS = [
    *("f30f1efa", "55", "4154", "4885ff", "4889f7", "31c0", "83c001", "488b07", "4883ec08", "c3", "7402", "ebf9"),
    *("e9f6ffffff", "90", "6690", "0f1f440000", "4889fb", "48897c24f8", "48c1e007", "0fb6c1", "4863c2", "e2f9", "75f0"),
    *("0f85fbffffff", "f275f8", "4990", "488d0500000000", "64488b042528000000", "c9"),
]
FRAGMENT = st.sampled_from([*map(bytes.fromhex, FRAGMENTS)])
PLAUSIBLE = st.lists(st.one_of(FRAGMENT, st.binary(max_size=4)), max_size=40).map(
    lambda parts: code(ENDBR64) + b"".join(parts)
)


@given(text=st.one_of(st.binary(max_size=200), PLAUSIBLE), machine=st.sampled_from([X86_64, AARCH64, 243]))
def test_any_bytes(text: bytes, machine: int) -> None:
    """Whatever the bytes, the place is in the function, and on the way to it the decoder's own account of registers and
    memory written shows nothing that a probe reads, and no jump."""
    chosen = placed(text, machine=machine)
    distance = chosen.offset - START
    assert chosen.moved == (distance > 0)
    assert 0 <= distance < max(len(text), 1)
    if not chosen.moved:
        return
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    decoder.detail = True
    passed = list(decoder.disasm(text[:distance], 0))
    assert distance == sum(instruction.size for instruction in passed)
    for instruction in passed:
        written = {instruction.reg_name(register) for register in instruction.regs_access()[1]}
        memory = [o for o in instruction.operands if o.type == capstone.CS_OP_MEM and o.access & capstone.CS_AC_WRITE]
        assert (set(), [], set()) == (written & FORBIDDEN, memory, LEAVES & set(instruction.groups)), instruction
