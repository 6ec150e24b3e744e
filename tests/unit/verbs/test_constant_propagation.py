"""Constants that reach a call: on arm64, for which nothing here links stand-ins, and at branches of x86-64."""

from __future__ import annotations

import pytest

from exporter.bpf.elf import AARCH64, X86_64
from exporter.bpf.trial_program import assemble
from exporter.verbs.code.constant_propagation import UNKNOWN, Code

ARM = """
e1 00 00 f0  adrp x1, 0x1f000
21 c0 0d 91  add x1, x1, #0x370
e1 07 00 f9  str x1, [sp, #8]
fd ff ff 97  bl f
e1 07 40 f9  ldr x1, [sp, #8]
80 00 00 34  cbz w0, 0x24
21 40 17 91  add x1, x1, #0x5d0
f9 ff ff 97  bl f
c0 03 5f d6  ret
21 a0 0b 91  add x1, x1, #0x2e8
f6 ff ff 97  bl f
e1 03 02 aa  mov x1, x2
f4 ff ff 97  bl f
c0 03 5f d6  ret
"""
X86 = """
48 8d 35 f9 0f 00 00  lea rsi, [rip + 0xff9]
85 ff  test edi, edi
74 07  je 0x12
48 8d 35 ee 1f 00 00  lea rsi, [rip + 0x1fee]
e8 00 00 00 00  call 0x17
e8 00 00 00 00  call 0x1c
c3  ret
"""


@pytest.mark.parametrize(
    ("site", "tables"),
    [
        pytest.param(0xC, {0x1F370}, id="address in two parts"),
        pytest.param(0x1C, {0x1F940}, id="kept on the stack over a call"),
        pytest.param(0x28, {0x1F658}, id="on a branch"),
        pytest.param(0x30, UNKNOWN, id="from another argument"),
    ],
)
def test_arm64(site: int, tables: set[int]) -> None:
    """The second argument is followed through pages, offsets, the stack and branches."""
    assert {site: tables} == Code(AARCH64, assemble(ARM), 0).constants_at({site}, 1)


def test_ways_join() -> None:
    """After two paths join, the constants of both may be there; a call leaves nothing of an argument."""
    assert {0x12: {0x1000, 0x2000}, 0x17: UNKNOWN} == Code(X86_64, assemble(X86), 0).constants_at({0x12, 0x17}, 1)


def test_an_instruction_that_is_not_reached_has_no_constants() -> None:
    """A place between instructions is none that code comes to."""
    assert {} == Code(X86_64, assemble(X86), 0).constants_at({0x13}, 1)
