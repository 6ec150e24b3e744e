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


def merge(
    native: Sequence[NativeFrame], python: Sequence[PythonFrame], interpreter: int | None, embedded: bool = False
) -> Iterator[Merged]:
    """Yield the frames, leaf first. `interpreter` is the module of the interpreter; with `embedded` it is a program
    that has functions of its own, so that all frames stay that are not replaced.

    Python frames of which the native one was not reached come last: they called what is before them. A run of which
    the last frames are not in `python`, as there are too many, has no address: it is in the interpreter's next frame.
    Without any Python frame nothing stands for the interpreter's own frames, so they stay.
    """
    rest = 0
    for frame in native:
        of_interpreter = frame.place is not None and frame.place.module == interpreter
        runs = _runs_in(frame, python, rest)
        if runs == rest and of_interpreter and not any(it.loop for it in python[rest:]):
            runs = len(python)
        if runs > rest:
            yield from (it for it in python[rest:runs] if it.code)
            rest = runs
        elif embedded or not (of_interpreter and python):
            yield frame
    yield from (it for it in python[rest:] if it.code)


def _runs_in(frame: NativeFrame, python: Sequence[PythonFrame], start: int) -> int:
    """Return behind which Python frame the runs end that belong to a native frame; `start` if there are none."""
    for at in range(start, len(python)):
        if python[at].loop:
            return at + 1 if frame.low <= python[at].loop < frame.high else start
    return start
