"""Names of libraries in labels: bounded in length and number, as any user may have any file at any path."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from exporter.bpf.library import Library

LONGEST = 200
"""Characters of a path; of a longer one the end is shown, behind a digest of the whole."""
MOST = 32
"""Different libraries that have a name of their own."""
OTHERS = "(others)"
_DIGEST_BYTES = 6
_ROOT = 0


def names(libraries: Iterable[Library]) -> dict[int, str]:
    """The name of each library by its id(). Copies share the first one's; beyond MOST it is OTHERS.

    Files of root, as those of the system and of images are, come first. A file of another user has none of their names,
    whatever it holds, and wherever it is seen in that user's mount namespace.
    """
    of_copies: dict[tuple[bool, bytes | str], str] = {}
    of_system: set[str] = set()
    shown: set[str] = set()
    found: dict[int, str] = {}
    for library in sorted(libraries, key=lambda library: library.owner != _ROOT):
        system, name = library.owner == _ROOT, shorten(library.path)
        if not system and name in of_system:
            name = shorten(f"{library.path} (user {library.owner})")
        name = of_copies.setdefault((system, library.digest if library.build_id else library.path), name)
        if system:
            of_system.add(name)
        if name not in shown and len(shown) < MOST:
            shown.add(name)
        found[id(library)] = name if name in shown else OTHERS
    return found


def shorten(path: str) -> str:
    """A path as a label, unlike any other's."""
    if len(path) <= LONGEST:
        return path
    digest = hashlib.blake2b(path.encode(errors="replace"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"…{digest}…{path[len(digest) + 2 - LONGEST :]}"
