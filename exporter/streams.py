"""The standard streams of a program: closed by the caller, not read any more, or without space to write to."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

BROKEN_PIPE = 128 + signal.SIGPIPE
"""The exit code that a shell gives a program which SIGPIPE has ended."""


def open_closed() -> None:
    """Open /dev/null in place of closed standard streams, or the next file or socket would get their number."""
    while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(lowest, True)
    os.close(lowest)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


@contextmanager
def output(program: str) -> Iterator[None]:
    """Flush standard output at the end, and exit without a traceback where it cannot be written.

    Raises SystemExit: quietly with BROKEN_PIPE when nothing reads the output; else with 1, after a sentence.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard()
        raise SystemExit(BROKEN_PIPE) from None
    except OSError as error:
        _discard()
        print(
            f"{program}: cannot write{f' {error.filename}' * bool(error.filename)}: {error.strerror}", file=sys.stderr
        )
        raise SystemExit(1) from None


def _discard() -> None:
    """Redirect what is still buffered to /dev/null; the interpreter flushes it when it ends."""
    with suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
