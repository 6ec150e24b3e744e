"""Small plots: where points are, that gaps are gaps, and the text for those who cannot see them."""

from __future__ import annotations

import re
from math import inf, nan
from xml.etree import ElementTree

import pytest

from exporter.views.spark import spark


def paths(svg: str) -> tuple[str, str]:
    """The area and the line."""
    area, line = ElementTree.fromstring(svg).findall("path")
    return area.attrib["d"], line.attrib["d"]


def drawn(points: list[tuple[float, float]], top: float = 0.0) -> str:
    return spark(points, 100.0, "calls", str, top)


def test_time_goes_to_the_right_and_values_up() -> None:
    """The oldest age is the left edge, now the right one; 0 is at the bottom, the highest value at the top."""
    assert "M0.0 38.0L120.0 20.0L240.0 2.0" == paths(drawn([(100, 0), (50, 5), (0, 10)]))[1]


def test_gap_breaks_the_line() -> None:
    """Nothing is drawn across what is not known; a point between two gaps is a dot without an area."""
    area, line = paths(drawn([(100, 1), (90, 1), (80, nan), (70, 1), (60, inf), (50, 1), (40, 1)]))

    assert ["0.0 2.0L24.0 2.0", "72.0 2.0L72.0 2.0", "120.0 2.0L144.0 2.0"] == line.split("M")[1:]
    assert 2 == area.count("M") == area.count("Z")


def test_nothing_known_is_no_plot() -> None:
    """No points, or gaps only, are no plot at all."""
    assert "" == drawn([])
    assert "" == drawn([(10, nan), (0, nan)])


def test_scale_reaches_the_top_given() -> None:
    """A share is drawn against 1 though its highest is less; a plot of zeros is a line at the bottom."""
    assert "M216.0 20.0L240.0 20.0" == paths(drawn([(10, 0.5), (0, 0.5)], top=1.0))[1]
    assert "M216.0 38.0L240.0 38.0" == paths(drawn([(10, 0.0), (0, 0.0)]))[1]


@pytest.mark.parametrize("point", [(1e9, 1.0), (-5.0, 1.0), (50.0, -3.0), (50.0, 1e300)])
def test_points_stay_inside(point: tuple[float, float]) -> None:
    """Whatever the ages and values, coordinates are within the picture."""
    _, line = paths(drawn([point, (0, 1.0)]))
    for x, y in re.findall(r"([-\d.]+) ([-\d.]+)", line):
        assert 0 <= float(x) <= 240 and 0 <= float(y) <= 40


def test_a_plot_has_a_text() -> None:
    """The title has the highest and the newest value, unknown where that is a gap, and is escaped."""
    assert "calls, last 2 minutes: highest 9, now 3" in drawn([(10, 9), (0, 3)])
    assert "highest 9, now unknown" in drawn([(10, 9), (0, nan)])
    assert "&lt;b&gt;" in spark([(0, 1.0)], 100.0, "<b>", str)
