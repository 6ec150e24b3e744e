"""Places of programs in the C sources."""

from __future__ import annotations

import re
from pathlib import Path

SOURCES = Path(__file__).parents[3] / "bpf"


def test_programs_stand_in_files_named_bpf() -> None:
    """A plain header holds structures, maps and functions; who looks for a program looks into .bpf.c and .bpf.h."""
    begin = re.compile(r"^(?:SEC\(\"(?![.])|(?:UPROBE|AT_RETURN)\()", re.MULTILINE)
    programs = [path.name for path in SOURCES.rglob("*.[ch]") if begin.search(path.read_text())]

    assert "control.bpf.h" in programs
    assert [] == [name for name in programs if not re.search(r"\.bpf\.[ch]$", name)]
