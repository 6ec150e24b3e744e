"""DWARF expressions, as call frame information has them: those of PLTs and of signal frames, in the main."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from exporter.stacks.libdw import Operations

_WORD = (1 << 64) - 1
_MOST = 32


class ExpressionError(ValueError):
    """An expression that is malformed, or uses what call frame information has no use for."""


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


_BINARY: Mapping[int, Callable[[int, int], int]] = {
    0x1A: lambda a, b: a & b,
    0x1C: lambda a, b: a - b,
    0x1E: lambda a, b: a * b,
    0x21: lambda a, b: a | b,
    0x22: lambda a, b: a + b,
    0x24: lambda a, b: a << (b & 63),
    0x25: lambda a, b: a >> (b & 63),
    0x27: lambda a, b: a ^ b,
    0x29: lambda a, b: int(a == b),
    0x2A: lambda a, b: int(_signed(a) >= _signed(b)),
    0x2B: lambda a, b: int(_signed(a) > _signed(b)),
    0x2C: lambda a, b: int(_signed(a) <= _signed(b)),
    0x2D: lambda a, b: int(_signed(a) < _signed(b)),
    0x2E: lambda a, b: int(a != b),
}
"""DW_OP_and, minus, mul, or, plus, shl, shr, xor, eq, ge, gt, le, lt and ne (DWARF 5, section 7.7.1)."""


def evaluate(
    operations: Operations, registers: Sequence[int], read: Callable[[int], int], cfa: int | None = None
) -> int:
    """Return the value of an expression. `read` gives the word at an address. Raises ExpressionError."""
    stack: list[int] = []
    try:
        for code, first, second in operations:
            _step(code, first, second, stack, registers, read, cfa)
            if len(stack) > _MOST:
                raise ExpressionError("too deep")
        return stack[-1]
    except IndexError as error:
        raise ExpressionError("an operand is missing") from error


def _step(
    code: int,
    first: int,
    second: int,
    stack: list[int],
    registers: Sequence[int],
    read: Callable[[int], int],
    cfa: int | None,
) -> None:
    if code in _BINARY:
        right, left = stack.pop(), stack.pop()
        stack.append(_BINARY[code](left, right) & _WORD)
    elif 0x70 <= code < 0x90:  # DW_OP_breg0 …
        stack.append((registers[code - 0x70] + first) & _WORD)
    elif code == 0x92:  # DW_OP_bregx
        stack.append((registers[first] + second) & _WORD)
    elif 0x30 <= code < 0x50:  # DW_OP_lit0 …
        stack.append(code - 0x30)
    elif 0x08 <= code <= 0x11:  # DW_OP_const1u … DW_OP_consts
        stack.append(first & _WORD)
    elif code == 0x23:  # DW_OP_plus_uconst
        stack.append((stack.pop() + first) & _WORD)
    elif code == 0x06:  # DW_OP_deref
        stack.append(read(stack.pop()))
    elif code == 0x12:  # DW_OP_dup
        stack.append(stack[-1])
    elif code == 0x9C and cfa is not None:  # DW_OP_call_frame_cfa
        stack.append(cfa)
    else:
        raise ExpressionError(f"operation {code:#x}")
