"""Another program without any of this one's capabilities: `python -m exporter.bare PARENT PROGRAM ARGUMENT...`.

It ends with PARENT. What cannot be given up is a failure: the program is not run then.
"""

from __future__ import annotations

import os
import sys

from exporter.bpf import privileges
from exporter.child import die_with_parent


def command(words: list[str]) -> list[str]:
    """How a program is run that way; the words are its path and its arguments."""
    return [sys.executable, "-P", "-S", "-m", "exporter.bare", str(os.getpid()), *words]


def main(parent: str, *words: str) -> None:
    """Becomes that program. Raises OSError."""
    die_with_parent(int(parent))
    privileges.drop(())
    os.execv(words[0], words)


if __name__ == "__main__":
    main(*sys.argv[1:])
