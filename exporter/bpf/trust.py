"""Trust in one process's view of a file, such as its name, as valid for all processes that use the file."""

from __future__ import annotations

import re
from pathlib import Path

_OWN = Path("/proc/self/ns/user")
_EFFECTIVE = re.compile(r"^Uid:\t\d+\t(\d+)", re.MULTILINE)
_ROOT = 0


def may_name(proc: Path, pid: int, owner: int) -> bool:
    """Return whether a process cannot have given a file of this owner a name, or neighbours, of its choice.

    In a user namespace of its own any user may mount any file at any path (user_namespaces(7)). Nobody is deceived
    where the file is the user's own.
    """
    folder = proc / str(pid)
    try:
        if (folder / "ns/user").stat().st_ino == _OWN.stat().st_ino:
            return True
        found = _EFFECTIVE.search((folder / "status").read_text(errors="replace"))
    except OSError:
        return False
    return owner != _ROOT and found is not None and int(found[1]) == owner
