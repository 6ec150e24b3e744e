"""The program: exporter.cli, and one sentence in place of a traceback where memory or threads do not suffice for it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from exporter import shortage

_RESERVE: list[object] = []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; 1 with a sentence on standard error in a shortage."""
    # The signal's default would end the program before App handles it: imports take a second or two.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sentence = shortage.foreseen()
    if not sentence:
        try:
            from mmap import mmap  # address space: bytes would be written, and so take memory

            _RESERVE.append(mmap(-1, shortage.RESERVE))
            from exporter import cli  # here: importing takes most of the memory of a start

            return cli.main(arguments)
        except Exception as error:
            _RESERVE.clear()
            sentence = shortage.explain(error)
            if not sentence:
                raise
    print(f"accel-exporter: {sentence}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
