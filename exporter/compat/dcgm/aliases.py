"""Fields that DCGM 4.6 renamed: old and new names, from DCGM's own aliases (renamed.txt)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


class Aliases:
    """Old and new names of fields. A field that was not renamed is its own alias."""

    def __init__(self) -> None:
        lines = Path(__file__).with_name("renamed.txt").read_text("ascii").splitlines()
        self._new = dict(line.split() for line in lines)
        self._old = {new: old for old, new in self._new.items()}

    def old(self, name: str) -> str:
        """Returns the name up to DCGM 4.5."""
        return self._old.get(name, name)

    def new(self, name: str) -> str:
        """Returns the name since DCGM 4.6."""
        return self._new.get(name, name)

    def __iter__(self) -> Iterator[str]:
        """Yields both names of every renamed field."""
        return iter((*self._new, *self._old))
