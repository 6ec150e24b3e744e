"""Pictures of dashboards say what Grafana would."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboards import draw, queries


class Silent:
    """A Prometheus that has nothing."""

    def ranges(self, expr: str, begin: float, end: float, step: float) -> list[draw.Series]:
        return []


def test_legends_have_no_variables() -> None:
    """No legend names a variable, which would be shown as it is written."""
    legends = [legend for panel in queries.panels() for _, legend in panel.queries("10s").values()]
    assert legends
    assert [] == [legend for legend in legends if "$" in legend]


@pytest.mark.parametrize("stem", sorted(queries.boards()))
def test_nothing_known_is_drawn(stem: str, tmp_path: Path) -> None:
    """A dashboard of which nothing is known is a small picture all the same."""
    path = tmp_path / "board.png"
    draw.board(stem, Silent(), 1.0, path)
    assert 5_000 < path.stat().st_size < 250_000
