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
