"""Names and lines of code objects at addresses that are used again, and of more of them than are kept."""

from __future__ import annotations

import struct

import pytest

from exporter.stacks import python_code
from exporter.stacks.interpreter import _TABLES
from exporter.stacks.memory import Unreadable
from exporter.stacks.python_code import PythonCode

LAYOUT = _TABLES[12]
CODES, TEXTS, LINES = 0x10000, 0x8000000, 0x9000000


class Made:
    """The memory of a CPython 3.12 with made-up code objects."""

    def __init__(self) -> None:
        self._parts: dict[int, bytearray] = {}

    def text(self, at: int, text: str) -> int:
        head = bytearray(LAYOUT.code.text)
        struct.pack_into("=Q", head, LAYOUT.code.text_length, len(text))
        struct.pack_into("=I", head, LAYOUT.code.text_state, 1 << 2 | 1 << 5 | 1 << 6)
        self._parts[at] = head + text.encode()
        return at

    def code(self, at: int, name: str, first: int, lines: int = 16) -> None:
        layout = LAYOUT.code
        body = bytearray(512)
        struct.pack_into("=i", body, layout.first_line, first)
        for field, value in (
            (layout.name, self.text(TEXTS + at, name)),
            (layout.filename, self.text(TEXTS + at + 4096, "a.py")),
            (layout.lines, LINES + at),
        ):
            struct.pack_into("=Q", body, field, value)
        table = bytes(16) + struct.pack("=Q", lines) + bytes(8) + bytes([0xD8]) * lines  # code 11: a line further
        self._parts[LINES + at], self._parts[at] = bytearray(table), body

    def read(self, address: int, size: int) -> bytes:
        for start, part in self._parts.items():
            if start <= address and address + size <= start + len(part):
                return bytes(part[address - start : address - start + size])
        raise Unreadable("nothing is there")

    def word(self, address: int) -> int:
        return int(struct.unpack("=Q", self.read(address, 8))[0])


def named(made: Made) -> PythonCode:
    return PythonCode(made, LAYOUT, 0)  # type: ignore[arg-type]


def test_a_place_that_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another code object at an address has its own name and line, also if the first had been forgotten meanwhile."""
    made = Made()
    names = named(made)
    at = CODES + LAYOUT.code.bytecode
    made.code(CODES, "first", 10)
    frame = names.frame(CODES, at)
    assert (frame.function, frame.line) == ("first", 11)
    monkeypatch.setattr(python_code, "MOST_BYTES", 60)
    made.code(CODES + 8192, "other", 50)
    assert names.frame(CODES + 8192, at + 8192).function == "other"
    assert CODES not in names.known
    made.code(CODES, "second", 20)
    frame = names.frame(CODES, at)
    assert (frame.function, frame.line) == ("second", 21)


def test_what_is_kept_is_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large tables make room for one another."""
    monkeypatch.setattr(python_code, "MOST_BYTES", 100_000)
    made = Made()
    names = named(made)
    for n in range(20):
        made.code(CODES + (n << 16), f"f{n}", 1, 30_000)
        assert names.frame(CODES + (n << 16), 0).function == f"f{n}"
    assert len(names.known) == 3
    assert names.bytes == sum(it.size for it in names.known.values()) <= 100_000
