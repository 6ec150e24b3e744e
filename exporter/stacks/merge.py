"""Native frames and those of Python, in the order in which they were called.

Each run of the interpreter's loop is a call of the C function _PyEval_EvalFrameDefault. In that function's part of the
stack is a structure that the last Python frame of the run leads to: CPython 3.12 and newer has an entry frame there,
3.10 and 3.11 a cframe. So the native frame that holds this address is replaced by the Python frames of that run, and
others of the interpreter's own are left out. No symbol is needed for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from exporter.stacks.unwind import NativeFrame


class PythonFrame(NamedTuple):
    """struct python_frame of bpf/stacks/stacks.h; a `code` of 0 is an entry frame, which is nobody's."""

    code: int
    instruction: int
    loop: int


Merged = NativeFrame | PythonFrame


def merge(native: Sequence[NativeFrame], python: Sequence[PythonFrame], interpreter: int | None) -> Iterator[Merged]:
    """Yield the frames, leaf first. `interpreter` is the module of the interpreter.

    Python frames of which the native one was not reached come last: they called what is before them.
    """
    rest = 0
    for frame in native:
        runs = _runs_in(frame, python, rest)
        if runs > rest:
            yield from (it for it in python[rest:runs] if it.code)
            rest = runs
        elif interpreter is None or frame.place is None or frame.place.module != interpreter:
            yield frame
    yield from (it for it in python[rest:] if it.code)


def _runs_in(frame: NativeFrame, python: Sequence[PythonFrame], start: int) -> int:
    """Return behind which Python frame the runs end that belong to a native frame; `start` if there are none."""
    for at in range(start, len(python)):
        if python[at].loop:
            return at + 1 if frame.low <= python[at].loop < frame.high else start
    return start
