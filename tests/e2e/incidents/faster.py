"""Rules and Alertmanager's configuration for a clock that runs faster, with the same thresholds.

Durations are shorter by the factor, `time()` is the time of the incident, and `rate()` is per second of the incident.
Nothing else of a rule changes, so that what Prometheus evaluates are the shipped rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(\d+)(ms|[smhdw])")
_IN_QUERIES = re.compile(r"\[\d+[a-z]+(?::\d+[a-z]+)?\]|\boffset \d+[a-z]+")
_OF_ALERTMANAGER = re.compile(r"(?:group_wait|group_interval|repeat_interval): \d+[smhd]")
_OF_RULES = {"for", "keep_firing_for", "interval"}
_RATE = re.compile(r"(?<![\w:])rate\(")


@dataclass(frozen=True)
class Clock:
    """A clock of incidents: `factor` of its seconds pass in each second of the test."""

    factor: int

    def shorter(self, text: str) -> str:
        """Return a text with each of its durations divided by the factor."""
        return _DURATION.sub(lambda found: f"{max(1, int(found[1]) * _MILLISECONDS[found[2]] // self.factor)}ms", text)

    def alertmanager(self, configuration: str) -> str:
        """Return Alertmanager's configuration with shorter waits and intervals."""
        return _OF_ALERTMANAGER.sub(lambda found: self.shorter(found[0]), configuration)

    def query(self, text: str, start: float) -> str:
        """Return an expression, or a text with expressions in it, for incidents that start at the Unix time `start`."""
        text = "".join(self._rates(_IN_QUERIES.sub(lambda found: self.shorter(found[0]), text)))
        return text.replace("time()", f"((time() - {start:.3f}) * {self.factor})")

    def rules(self, content: Any, start: float) -> Any:
        """Return a file of rules, as read from YAML, for incidents that start at the Unix time `start`."""
        if isinstance(content, list):
            return [self.rules(it, start) for it in content]
        if not isinstance(content, dict):
            return self.query(content, start) if isinstance(content, str) else content
        return {name: self.shorter(it) if name in _OF_RULES else self.rules(it, start) for name, it in content.items()}

    def _rates(self, text: str) -> Iterator[str]:
        """Yield pieces of a text in which each rate() is divided by the factor, with parentheses around it."""
        while found := _RATE.search(text):
            end = _closed(text, found.end())
            yield f"{text[: found.start()]}(rate("
            yield from self._rates(text[found.end() : end - 1])
            yield f") / {self.factor})"
            text = text[end:]
        yield text


def _closed(text: str, begin: int) -> int:
    """Return the position after the parenthesis that closes the one before `begin`."""
    depth, position = 1, begin
    while depth:
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        position += 1
    return position
