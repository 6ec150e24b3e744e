"""docs/architecture.md names files and functions that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STATIONS = re.findall(
    r"^\| `([\w./-]+)` \| `(\w+)` \|", (ROOT / "docs/architecture.md").read_text(encoding="utf-8"), re.MULTILINE
)


def test_there_are_walks() -> None:
    """Four walks of ten stations and more."""
    assert len(STATIONS) > 40


@pytest.mark.parametrize(("file", "name"), STATIONS)
def test_stations_exist(file: str, name: str) -> None:
    """A station's file has the function or class in Python and C, and the name in other files."""
    text = (ROOT / file).read_text(encoding="utf-8")
    of_c = rf"\b{name}\(|^(?:UPROBE|AT_RETURN)\({name}\)"
    definition = {".py": rf"^ *(?:async )?(?:def|class) {name}\b", ".c": of_c, ".h": of_c}
    assert re.search(definition.get(Path(file).suffix, rf"\b{name}\b"), text, re.MULTILINE)
