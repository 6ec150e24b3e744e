"""Offsets of threads, frames and code objects in CPython: from _Py_DebugOffsets of the interpreter since 3.13, from
tables for older versions.

The tables are offsets of fields in the public and internal headers of CPython 3.10, 3.11 and 3.12, which are the same
in all builds of a minor version for 64 bits. For 3.13 and 3.14 the order of fields is as in
Include/internal/pycore_runtime.h and pycore_debug_offsets.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from struct import unpack

from exporter.stacks.memory import Memory

NONE = 0xFFFFFFFF
EACH, FLAG, OWNER = 0, 1, 2
"""enum loop_ends of bpf/stacks/python.h."""
_COOKIE = b"xdebugpy"
_MAIN_BEHIND_HEAD = 8
"""From `head` of struct pyinterpreters to `main`, in all versions."""
_MOST_OFFSET = 1 << 20
_WINDOW = 248
"""Bytes of a structure that the kernel's program reads at once."""
FIRST_VERSION = 0x030A0000
VERSIONS = "CPython 3.10 to 3.14"


class UnknownInterpreter(ValueError):
    """An interpreter of a version, or with a layout, that is not known."""


def _last(*offsets: int) -> int:
    """Return the greatest of these offsets of fields that there are."""
    return max((it for it in offsets if it != NONE), default=0)


@dataclass(frozen=True, slots=True)
class Walk:
    """Offsets in bytes that the kernel's program needs: fields of struct interpreter of bpf/stacks/python.h.

    `heads` is that of interpreters.main: the head of the list is the newest interpreter, which may be one of others.
    """

    heads: int
    threads: int
    next: int
    thread_id: int
    previous: int
    code: int
    instruction: int
    end: int
    ends: int
    frame: int = NONE
    cframe: int = NONE
    frame_of_cframe: int = 0
    previous_of_cframe: int = 0
    native_id: int = 0
    state_size: int = field(init=False)
    frame_size: int = field(init=False)
    """Bytes of a thread's state, and of a frame, that have all of these fields."""

    def __post_init__(self) -> None:
        state = self.next, self.thread_id, self.frame, self.cframe
        frame = self.previous, self.code, self.instruction
        object.__setattr__(self, "state_size", _last(*state) + 8)
        object.__setattr__(self, "frame_size", max(_last(*frame) + 8, _last(self.end) + 1))
        if max(self.state_size, self.frame_size) > _WINDOW:
            raise UnknownInterpreter("Python with structures that are larger than those of any version that is known")


@dataclass(frozen=True, slots=True)
class CodeLayout:
    """Offsets in bytes in code objects, strings and bytes objects, by which names and lines are read.

    `bytecode` is where instructions begin, 0 where frames count them from 0. `ascii` is the number of the bit of a
    string's state that ASCII strings have; bits `kind` (three) and `compact` are right below it.
    """

    filename: int
    name: int
    first_line: int
    lines: int
    bytecode: int
    text: int
    text_wide: int
    type: int = 8
    text_length: int = 16
    text_state: int = 32
    ascii: int = 6
    bytes_length: int = 16
    bytes_data: int = 32


@dataclass(frozen=True, slots=True)
class InterpreterLayout:
    """Layout of one interpreter; `version` is (major, minor)."""

    version: tuple[int, int]
    walk: Walk
    code: CodeLayout


_TABLES: Mapping[int, InterpreterLayout] = {
    10: InterpreterLayout(
        (3, 10),
        Walk(40, 8, 8, 176, 24, 32, 96, NONE, EACH, frame=24, cframe=48, previous_of_cframe=8),
        CodeLayout(104, 112, 40, 120, 0, 48, 72),
    ),
    11: InterpreterLayout(
        (3, 11),
        Walk(48, 16, 8, 152, 48, 32, 56, 68, FLAG, cframe=56, frame_of_cframe=8, previous_of_cframe=16),
        CodeLayout(112, 128, 72, 136, 184, 48, 72),
    ),
    12: InterpreterLayout(
        (3, 12),
        Walk(48, 72, 8, 136, 8, 0, 56, 70, OWNER, cframe=56),
        CodeLayout(112, 128, 68, 136, 192, 40, 56),
    ),
}

_HEAD = "version free_threaded"
_RUNTIME = "runtime.size runtime.finalizing runtime.heads"
_INTERPRETER = (
    "interpreter.size interpreter.id interpreter.next interpreter.threads {main} interpreter.gc interpreter.imports "
    "interpreter.sysdict interpreter.builtins interpreter.gil gil.state gil.enabled gil.locked gil.holder {generations}"
)
_THREAD = (
    "thread.size thread.prev thread.next thread.interp thread.frame thread.id thread.native thread.chunk thread.status"
)
_FRAME = "frame.size frame.previous frame.code frame.instruction frame.locals frame.owner {stackpointer}"
_CODE = (
    "code.size code.filename code.name code.qualname code.lines code.first_line code.arguments code.names code.kinds "
    "code.bytecode {tlbc} object.size object.type type.size type.name type.repr type.flags tuple.size tuple.item "
    "tuple.length list.size list.item list.length {set} dict.size dict.keys dict.values float.size float.value "
    "long.size long.tag long.digit bytes.size bytes.length bytes.data text.size text.state text.length text.ascii"
)
_NEWER = {
    "main": "threads.main",
    "generations": "interpreter.codes interpreter.tlbc",
    "stackpointer": "frame.stackpointer frame.tlbc",
    "tlbc": "code.tlbc",
    "set": "set.size set.used set.table set.mask",
}
"""Fields of 3.14; tlbc is the bytecode of a thread."""
_OLDER = dict.fromkeys(_NEWER, "")


def _fields(minor: int) -> list[str]:
    more = _NEWER if minor >= 14 else _OLDER
    return " ".join((_HEAD, _RUNTIME, _INTERPRETER, _THREAD, _FRAME, _CODE)).format(**more).split()


def layout(memory: Memory, runtime: int, version: int) -> InterpreterLayout:
    """Return the layout of the interpreter that has its _PyRuntime at this address.

    `version` is as PY_VERSION_HEX, 0 where it is not known, as without symbols: from 3.13 on it is in _PyRuntime.
    Raises UnknownInterpreter, and Unreadable.
    """
    if memory.read(runtime, len(_COOKIE)) == _COOKIE:
        return _from_debug_offsets(memory, runtime)
    minor = version >> 16 & 0xFF if version >> 24 == 3 else 0
    if minor not in _TABLES:
        name = f"Python of version {version:#x}" if version else "Python before 3.10, or without symbols"
        raise UnknownInterpreter(f"{name}: known are {VERSIONS}")
    return _TABLES[minor]


def _from_debug_offsets(memory: Memory, runtime: int) -> InterpreterLayout:
    (version,) = unpack("=Q", memory.read(runtime + len(_COOKIE), 8))
    minor = version >> 16 & 0xFF
    if version >> 24 != 3 or minor not in (13, 14):
        raise UnknownInterpreter(f"Python of version {version:#x}: known are {VERSIONS}")
    names = _fields(minor)
    words = unpack(f"={len(names)}Q", memory.read(runtime + len(_COOKIE), 8 * len(names)))
    at = dict(zip(names, words, strict=True))
    if any(
        value > _MOST_OFFSET for name, value in at.items() if name not in ("version", "gil.enabled", "runtime.size")
    ):
        raise UnknownInterpreter(f"Python of version {version:#x} has offsets that cannot be")
    walk = Walk(
        heads=at["runtime.heads"] + _MAIN_BEHIND_HEAD,
        threads=at["interpreter.threads"],
        next=at["thread.next"],
        thread_id=at["thread.id"],
        previous=at["frame.previous"],
        code=at["frame.code"],
        instruction=at["frame.instruction"],
        end=at["frame.owner"],
        ends=OWNER,
        frame=at["thread.frame"],
    )
    code = CodeLayout(
        filename=at["code.filename"],
        name=at["code.qualname"],
        first_line=at["code.first_line"],
        lines=at["code.lines"],
        bytecode=at["code.bytecode"],
        text=at["text.ascii"],
        text_wide=at["text.ascii"] + 16,
        type=at["object.type"],
        text_length=at["text.length"],
        text_state=at["text.state"],
        ascii=12 if at["free_threaded"] else 6,  # behind `interned`: a byte, or two bits
        bytes_length=at["bytes.length"],
        bytes_data=at["bytes.data"],
    )
    return InterpreterLayout((3, minor), walk, code)


def line_of(table: bytes, first: int, offset: int, minor: int) -> int:
    """Return the source line of the instruction at an offset in bytes of a code object; 0 where that has none.

    `table` is co_linetable: pairs of bytes in 3.10 (Objects/lnotab_notes.txt), entries of varying length from 3.11 on
    (Objects/locations.md).
    """
    return _line_in_pairs(table, first, offset) if minor == 10 else _line_in_entries(table, first, offset)


def _line_in_pairs(table: bytes, first: int, offset: int) -> int:
    at, line = 0, first
    for instructions, lines in zip(table[::2], table[1::2], strict=False):
        delta = lines - 256 if lines > 127 else lines
        line += 0 if delta == -128 else delta
        at += instructions
        if offset < at:
            return 0 if delta == -128 else line
    return 0


def _line_in_entries(table: bytes, first: int, offset: int) -> int:
    address, line, at = 0, first, 0
    while at < len(table):
        head, at = table[at], at + 1
        code, length = head >> 3 & 15, 2 * ((head & 7) + 1)
        if code in (13, 14):
            delta, at = _signed(table, at)
            line += delta
        elif 10 <= code <= 12:
            line += code - 10
        address += length
        if offset < address:
            return 0 if code == 15 else line
        at = next((end for end in count(at) if end >= len(table) or table[end] & 128), at)
    return 0


def _signed(table: bytes, at: int) -> tuple[int, int]:
    """Return a signed number of six bits a byte, and where it ends."""
    value = shift = 0
    while at < len(table):
        byte, at = table[at], at + 1
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
    return (-(value >> 1) if value & 1 else value >> 1), at
