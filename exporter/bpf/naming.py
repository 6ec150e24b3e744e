"""What libraries are called in labels: bounded in length and number, though anybody may have any file anywhere."""

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


def names(libraries: Iterable[Library]) -> dict[int, str]:
    """The name of each library by its id(). Those of one build id share the first one's; beyond MOST it is OTHERS."""
    of_content: dict[str, str] = {}
    shown: set[str] = set()
    found: dict[int, str] = {}
    for library in libraries:
        name = of_content.setdefault(library.build_id or library.path, shorten(library.path))
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
