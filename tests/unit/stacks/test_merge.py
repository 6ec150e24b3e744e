"""Order of frames, the bound of processor time, and records that were cut."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest

from exporter.stacks.budget import MOST, SAVED_SECONDS, CpuBudget
from exporter.stacks.expression import ExpressionError, evaluate
from exporter.stacks.merge import PythonFrame, merge
from exporter.stacks.record import pack, unpack
from exporter.stacks.unwind import ModuleOffset, NativeFrame

INTERPRETER, LIBRARY = 1, 2


def native(module: int, low: int, high: int) -> NativeFrame:
    return NativeFrame(ModuleOffset(module, low), low, low, high)


NATIVE = [native(LIBRARY, 0, 16), native(INTERPRETER, 16, 32), native(INTERPRETER, 32, 96), native(LIBRARY, 96, 128)]
NATIVE += [native(INTERPRETER, 128, 256), native(INTERPRETER, 256, 272)]


def test_runs_of_the_loop_replace_their_native_frames() -> None:
    python = [PythonFrame(11, 0, 0), PythonFrame(12, 0, 64), PythonFrame(21, 0, 0), PythonFrame(0, 0, 200)]
    merged = list(merge(NATIVE, python, INTERPRETER))
    assert merged == [NATIVE[0], python[0], python[1], NATIVE[3], python[2]]


def test_python_that_was_not_reached_comes_last() -> None:
    python = [PythonFrame(11, 0, 64), PythonFrame(21, 0, 200)]
    assert list(merge(NATIVE[:2], python, INTERPRETER)) == [NATIVE[0], *python]
    assert list(merge([], python, None)) == python
    assert list(merge(NATIVE[:2], [], None)) == NATIVE[:2], "no interpreter is known, so nothing is left out"


def test_a_run_with_more_frames_than_were_taken() -> None:
    """The last frame, which has the address, is missing: the run is where the interpreter's next frame is."""
    begun = [PythonFrame(11, 0, 0), PythonFrame(12, 0, 0)]
    assert list(merge(NATIVE, begun, INTERPRETER)) == [NATIVE[0], *begun, NATIVE[3]]
    python = [PythonFrame(10, 0, 64), *begun]
    assert list(merge(NATIVE, python, INTERPRETER)) == [NATIVE[0], python[0], NATIVE[3], *begun]


def test_the_interpreter_stays_where_no_frames_of_python_are_known() -> None:
    assert list(merge(NATIVE, [], INTERPRETER)) == NATIVE


def test_a_program_that_contains_the_interpreter_keeps_its_functions() -> None:
    python = [PythonFrame(11, 0, 0), PythonFrame(12, 0, 64), PythonFrame(21, 0, 0), PythonFrame(0, 0, 200)]
    merged = list(merge(NATIVE, python, INTERPRETER, embedded=True))
    assert merged == [NATIVE[0], NATIVE[1], python[0], python[1], NATIVE[3], python[2], NATIVE[5]]


def test_a_run_elsewhere_on_the_stack_is_not_taken_for_one_here() -> None:
    python = [PythonFrame(11, 0, 4096)]
    assert list(merge(NATIVE, python, INTERPRETER)) == [NATIVE[0], NATIVE[3], *python]


def test_a_minute_of_the_share_may_be_used_at_once() -> None:
    budget = CpuBudget(0.05)
    assert budget.allowance(0.5, 0.0, 0, 0) == 0.05 * SAVED_SECONDS / 0.001
    spent = 0.05 * SAVED_SECONDS
    assert budget.allowance(0.5, spent, 3000, 0) <= 0.05 * 0.5 / 0.001 + 1
    assert budget.allowance(0.0, spent + 1, 4000, 0) == 0
    assert 0 < budget.allowance(60.0, spent + 1, 4000, 100) < MOST


def test_the_first_stacks_of_a_program_cost_more() -> None:
    """Symbols of its files are read for them. Others that it makes meanwhile are within the budget all the same."""
    budget = CpuBudget(0.05)
    for tick in range(1, 4):
        left = budget.allowance(0.5, 0.7 * tick, 2 * tick, 0)
    assert left > 30
    assert budget.allowance(0.5, 2.2, 206, 0) > 150
    for tick in range(1, 400):
        left = budget.allowance(0.5, 2.2 + 0.025 * tick, 206 + tick, 0)
    assert left < 80, "a stack costs 25 ms for a while"


def test_a_record_is_what_it_was() -> None:
    raw = SimpleNamespace(
        tgid=7, tid=8, id=9, weight=1, api=3, python=2, hijacked=1, truncated=0, bytes=4, interpreter=1, absent=2
    )
    raw.registers, raw.hijacks = struct.pack("=3Q", 1, 2, 3), struct.pack("=4Q", 5, 6, 0, 0)
    raw.frames, raw.memory = struct.pack("=9Q", *range(1, 10)), b"abcdefgh"
    record = unpack(pack(raw, 5))
    assert (record.tgid, record.id, record.program, record.registers, record.hijacks) == (7, 9, 5, (1, 2, 3), ((5, 6),))
    assert record.frames == (PythonFrame(1, 2, 3), PythonFrame(4, 5, 6))
    assert (record.memory, record.absent) == (b"abcd", 2)
    with pytest.raises(struct.error):
        unpack(b"short")


def test_expressions() -> None:
    plt = ((0x77, 8, 0), (0x80, 0, 0), (0x3F, 0, 0), (0x1A, 0, 0), (0x3B, 0, 0), (0x2A, 0, 0), (0x33, 0, 0))
    plt += ((0x24, 0, 0), (0x22, 0, 0))  # DW_OP_breg7+8, breg16, lit15, and, lit11, ge, lit3, shl, plus: GNU ld's PLT
    registers = [0] * 17
    registers[7], registers[16] = 1000, 0x100B
    assert evaluate(plt, registers, lambda _: 0) == 1016
    registers[16] = 0x1006
    assert evaluate(plt, registers, lambda _: 0) == 1008
    assert evaluate(((0x77, 0, 0), (0x06, 0, 0)), registers, {1000: 77}.__getitem__) == 77
    for broken in (((0x22, 0, 0),), ((0xE0, 0, 0),), ((0x30, 0, 0),) * 40):
        with pytest.raises(ExpressionError):
            evaluate(broken, registers, lambda _: 0)
