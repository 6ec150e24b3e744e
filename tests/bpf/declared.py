"""Functions of a library as its headers have them, in short, for tests of tables of functions."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    parameters: tuple[str, ...]


class Declarations(dict[str, Function]):
    """Functions by name. One is written `name/suffix(parameters)`: with the suffix also its variant of that name."""

    def declare(self, text: str) -> tuple[str, ...]:
        """Add functions; return their names."""
        found = []
        for name, suffix, parameters in re.findall(r"(\w+)(?:/(\w+))?(?:\s*\(([^)]*)\))?", text):
            for variant in (name, f"{name}_{suffix}")[: 2 if suffix else 1]:
                assert variant not in self
                self[variant] = Function(variant, tuple(parameters.split()))
                found.append(variant)
        return tuple(found)
