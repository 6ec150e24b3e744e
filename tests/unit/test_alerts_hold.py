"""No alert ends by a window before the fault is mended, except those that decision 13 has a reason for."""

from __future__ import annotations

import re

import pytest

from tests.metric_names import used
from tests.program.test_alerts import ALERTS, RECORDED, ROOT

pytestmark = pytest.mark.evidence(feature="alert and recording rules", on="real software")

DECISION = ROOT / "docs/decisions/0013-alerts.md"
_WINDOW = re.compile(
    r"\b(?:i?increase|i?rate|changes|resets|(?:avg|min|sum|count)_over_time)\(|time\(\) - [^<>]*? < \d"
    r"|last_over_time\([^)]*\) > time\(\) - \d|\boffset\b"
)
_LONG = re.compile(r"max_over_time\([^()]*\[(\d+)([hd])\]\)")
"""A maximum of hours or days: it forgets what was before."""


def _expanded(expression: str, seen: frozenset[str] = frozenset()) -> str:
    """Return the expression with those of the recorded series in it."""
    names = {name for name in re.findall(r"[\w:]+", expression) if name in RECORDED} - seen
    return " ".join([expression, *(_expanded(RECORDED[name]["expr"], seen | names) for name in sorted(names))])


def _listed() -> list[str]:
    text = DECISION.read_text()
    rows = re.findall(r"^\| (?!-)[^|]+ \| ([^|]+) \| [^|]+ \|$", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def test_each_rule_that_keeps_a_window_has_a_reason() -> None:
    """The table of decision 13 has the alerts that have a window in their rules, each once, and no other."""
    listed = _listed()
    assert len(listed) == len(set(listed))
    assert {name for name, rule in ALERTS.items() if _WINDOW.search(_expanded(rule["expr"]))} == set(listed)


@pytest.mark.parametrize("name", [*ALERTS, *RECORDED])
def test_nothing_is_compared_with_a_maximum_that_is_forgotten(name: str) -> None:
    """A maximum over time bridges a restart, an hour at most; what must not be forgotten is recorded."""
    expression = {**ALERTS, **RECORDED}[name]["expr"]
    assert set() == {"".join(found) for found in _LONG.findall(expression)} - {"1h"}


@pytest.mark.parametrize("name", [name for name in RECORDED if f"{name}[" in RECORDED[name]["expr"]])
def test_what_is_carried_on_ends_with_its_node(name: str) -> None:
    """A recorded series that continues from its own last value needs another one that the node still exports.

    A recorded series with a time in its rule can end by that time instead.
    """
    carried = [part for part in re.split(r"\bor\b", RECORDED[name]["expr"]) if f"{name}[" in part]
    assert all(used(part) - {name} or "> time() - " in part for part in carried)
