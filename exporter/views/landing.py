"""The page at /, for people: how the collectors fare, and where the metrics are."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from exporter.model import Sample
from exporter.scrape import State


def render(samples: Sequence[Sample], states: Sequence[State]) -> str:
    """The page as HTML."""
    rows = "".join(
        f"<tr><td>{escape(state.name)}<td>{state.health.value}<td>{escape(state.reason)} {escape(state.remedy)}"
        for state in states
    )
    return (
        '<!doctype html><html lang="en"><title>accel-exporter</title><h1>accel-exporter</h1>'
        f'<p>{len(samples)} samples: <a href="metrics">metrics</a></p>'
        f"<table><tr><th>collector<th>health<th>reason{rows}</table>"
    )
