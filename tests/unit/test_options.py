"""The values of an option, whichever source they come from."""

from __future__ import annotations

import pytest

from exporter.options import Option


@pytest.mark.parametrize(("text", "seconds"), [("2", 2.0), ("2s", 2.0), ("500ms", 0.5), ("1.5m", 90.0), ("1h", 3600.0)])
def test_durations(text: str, seconds: float) -> None:
    """A duration is a number of seconds, or one with its unit."""
    assert seconds == Option("x", 1.0, "", "", duration=True).parse(text)


@pytest.mark.parametrize("text", ["", "1d", "-1", "1 s", "nan", "inf", "1e3", "٣s"])
def test_no_durations(text: str) -> None:
    """Anything else is no duration."""
    with pytest.raises(ValueError):
        Option("x", 1.0, "", "", duration=True).parse(text)


@pytest.mark.parametrize("text", ["1_000", "１０", "٣", "0x10", "+1", "", "1e3", "9" * 5000])
def test_no_whole_numbers(text: str) -> None:
    """A whole number has ASCII digits alone."""
    with pytest.raises(ValueError, match="^$"):
        Option("x", 1, "", "").parse(text)


@pytest.mark.parametrize("text", ["1_0.5", "１.5", "0x1p3", "nan", "inf", "1e400", "1.", "--1"])
def test_no_numbers(text: str) -> None:
    """A number has ASCII digits, and is finite."""
    with pytest.raises(ValueError, match="^$"):
        Option("x", 1.0, "", "").parse(text)


@pytest.mark.parametrize(
    ("text", "number"), [("23", 23.0), (" 0.01", 0.01), (".5", 0.5), ("1e-05", 1e-5), ("2E3", 2e3)]
)
def test_numbers(text: str, number: float) -> None:
    """Numbers with a point or an exponent are numbers."""
    assert number == Option("x", 1.0, "", "").parse(text)
