"""Names and lines of code objects of an observed interpreter, kept while the object stays what it was."""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import NamedTuple

from exporter.stack_profiles.bounds import MOST_NAME
from exporter.stack_profiles.model import Frame
from exporter.stacks.interpreter import CodeLayout, InterpreterLayout, line_of
from exporter.stacks.memory import Memory, Unreadable

UNKNOWN = Frame("[unknown Python function]", kind="python")
"""A code object that could not be read: its process has ended, or it was freed."""
_KEPT = 16_384
_MOST_TEXT, _MOST_LINES = MOST_NAME + 1, 1 << 20
MOST_BYTES = 8 << 20
"""Of names and tables of lines that are kept of a process."""
_KINDS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
_WORD, _INT = struct.Struct("=Q"), struct.Struct("=i")


_NOT_BEGUN = 0xFFFFFFFF
"""The f_lasti of a frame before its first instruction, as a function of sys.setprofile has it that is called there."""


class _Seen(NamedTuple):
    """Words of a code object that identify it: other words mean that another object has its address by now."""

    filename: int
    name: int
    lines: int
    first: int


class _Known(NamedTuple):
    seen: _Seen
    function: str
    file: str
    table: bytes

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        return 4 * (len(self.function) + len(self.file)) + len(self.table)


class PythonCode:
    """Frames of Python of one process. `code_type` is the address of PyCode_Type, or 0 where it is not known."""

    def __init__(self, memory: Memory, layout: InterpreterLayout, code_type: int) -> None:
        self._memory, self._at, self._minor, self._type = memory, layout.code, layout.version[1], code_type
        self._size = 8 + max(layout.code.filename, layout.code.name, layout.code.lines, layout.code.first_line)
        self.known: OrderedDict[int, _Known] = OrderedDict()
        self.bytes = 0
        self._frames: dict[tuple[int, _Seen, int], Frame] = {}

    def frame(self, code: int, instruction: int) -> Frame:
        """Return the frame of a code object at an instruction, as the kernel's program read both."""
        try:
            known = self._code(code)
        except (Unreadable, ValueError):
            return UNKNOWN
        key = code, known.seen, instruction  # another code object may be there later
        frame = self._frames.get(key)
        if frame is None:
            if len(self._frames) >= _KEPT:
                self._frames.clear()
            frame = self._frames[key] = self._make(known, code, instruction)
        return frame

    def _code(self, code: int) -> _Known:
        head = self._memory.read(code, self._size)
        if self._type and self._word(head, self._at.type) != self._type:
            raise ValueError("no code object")
        filename, name, lines = (self._word(head, at) for at in (self._at.filename, self._at.name, self._at.lines))
        seen = _Seen(filename, name, lines, _INT.unpack_from(head, self._at.first_line)[0])
        known = self.known.get(code)
        if known is None or known.seen != seen:
            if known is not None:
                self.bytes -= known.size
            known = _Known(seen, self._text(seen.name), self._text(seen.filename), self._lines(seen.lines))
            self.known[code] = known
            self.bytes += known.size
            while len(self.known) > _KEPT or self.bytes > MOST_BYTES:
                self.bytes -= self.known.popitem(last=False)[1].size
        return known

    def _make(self, known: _Known, code: int, instruction: int) -> Frame:
        if self._at.bytecode:
            offset = instruction - code - self._at.bytecode
        else:
            last = instruction & 0xFFFFFFFF  # f_lasti, an int; the bytes behind it are another field's
            offset = 2 * last if last < 1 << 31 else -1
            if last == _NOT_BEGUN:
                return Frame(known.function, known.file, max(known.seen.first, 0), "python")
        line = line_of(known.table, known.seen.first, offset, self._minor) if offset >= 0 else 0
        return Frame(known.function, known.file, max(line, 0), "python")

    def _text(self, address: int) -> str:
        """Return a string object's text, of which only the first characters count. Raises ValueError, Unreadable."""
        at: CodeLayout = self._at
        head = self._memory.read(address, max(at.text_length, at.text_state) + 8)
        length = min(self._word(head, at.text_length), _MOST_TEXT)
        state = int.from_bytes(head[at.text_state : at.text_state + 4], "little")
        kind = state >> at.ascii - 4 & 7
        if not state >> at.ascii - 1 & 1 or kind not in _KINDS:
            raise ValueError("no string")
        place = address + (at.text if state >> at.ascii & 1 else at.text_wide)
        return self._memory.read(place, length * kind).decode(_KINDS[kind], "replace") if length else ""

    def _lines(self, address: int) -> bytes:
        length = self._memory.word(address + self._at.bytes_length)
        return self._memory.read(address + self._at.bytes_data, length) if 0 < length <= _MOST_LINES else b""

    @staticmethod
    def _word(data: bytes, at: int) -> int:
        return int(_WORD.unpack_from(data, at)[0])
