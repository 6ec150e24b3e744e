"""The outcome of a check: rows of one table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OK, FAILED, REPORTED, CANNOT = "ok", "FAILED", "reported", "cannot run"
"""REPORTED is an answer that nothing was expected of."""


class CannotRun(Exception):
    """A check lacks something here; the text has what, and where it comes from."""


@dataclass(frozen=True, slots=True)
class Row:
    """One answer of check `number` (as in tests/gpu/README.md)."""

    number: int
    question: str
    outcome: str
    answer: str


def expect(number: int, question: str, true: bool, answer: str) -> Row:
    """A row that is OK when what was expected is true."""
    return Row(number, question, OK if true else FAILED, answer)


def equal(number: int, question: str, wanted: object, seen: object) -> Row:
    """A row that is OK when both are equal; it shows both when they are not."""
    return expect(number, question, wanted == seen, f"{seen}" if wanted == seen else f"{seen} instead of {wanted}")


def table(rows: Iterable[Row]) -> str:
    """The rows as a table of Markdown."""
    lines = ["| | question | outcome | answer |", "|---|---|---|---|"]
    for row in rows:
        cells = (str(row.number), row.question, row.outcome, row.answer)
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines)
