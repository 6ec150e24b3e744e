"""Variables in the environment block of a process, which is a /proc/PID/environ."""

from __future__ import annotations

import re


def variable(name: str, value: str = r"[^\0]*") -> re.Pattern[bytes]:
    """Return a pattern that finds a variable with a value of this pattern in a block; group 1 is the value.

    The pattern begins with the name, as literal text: so the search is some twenty times as fast as from `(?:^|\\0)`.
    """
    literal = re.escape(name) + "="
    return re.compile(rf"{literal}(?<![^\0]{literal})({value})(?=\0|\Z)".encode())
