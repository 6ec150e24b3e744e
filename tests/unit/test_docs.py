"""The documents that are written from declarations."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter import docs

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", docs.PAGES)
def test_current(page: str) -> None:
    """The committed pages are what the declarations give; `make docs` writes them."""
    assert docs.PAGES[page]() == (DOCS / f"{page}.md").read_text()


def test_every_metric_has_help() -> None:
    """Each metric is listed once, and its meaning is a sentence."""
    rows = [line.split(" | ") for line in docs.metrics().splitlines() if line.startswith("| `")]
    names = [row[0] for row in rows]

    assert sorted(set(names)) == sorted(names)
    assert [] == [row[0] for row in rows if not row[-1].endswith(". |")]
