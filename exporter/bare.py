"""Execution of a program without capabilities: `python -m exporter.bare PARENT PROGRAM ARGUMENT...`.

The program ends with PARENT. It is not run when a capability cannot be dropped.
"""

from __future__ import annotations

import os
import sys

from exporter.background.child import die_with_parent
from exporter.bpf import privileges


def command(words: list[str]) -> list[str]:
    """Return the command line that runs a program without capabilities; `words` are its path and arguments."""
    return [sys.executable, "-P", "-S", "-m", "exporter.bare", str(os.getpid()), *words]


def main(parent: str, *words: str) -> None:
    """Replace this process by the program. Raises OSError."""
    die_with_parent(int(parent))
    privileges.drop(())
    os.execv(words[0], words)


if __name__ == "__main__":
    main(*sys.argv[1:])
