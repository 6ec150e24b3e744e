"""The queries of the committed dashboards, with every variable at "All"."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TEXTS = {"$pod_label": "label_app", "$first_token": "1.0", "$per_token": "0.05"}
"""Variables that are no pattern, and what they are by default."""


@dataclass(frozen=True)
class Panel:
    """A panel as its JSON has it; a row's heading is one too, without queries."""

    board: str
    json: dict[str, Any]
    row: str = ""
    """The title of the row that it is in."""

    @property
    def title(self) -> str:
        return str(self.json["title"])

    @property
    def kind(self) -> str:
        return str(self.json["type"])

    def queries(self, resolution: str) -> dict[str, tuple[str, str]]:
        """Expression and legend by letter."""
        return {
            target["refId"]: (chosen(target["expr"], resolution), _with_texts(target.get("legendFormat", "")))
            for target in self.json.get("targets", ())
        }


def boards() -> dict[str, dict[str, Any]]:
    """The dashboards by stem."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(HERE.glob("*.json"))}


def flat(board: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows and panels of a dashboard, in their order: those inside a closed row after it."""
    for each in board["panels"]:
        yield each
        yield from each.get("panels") or ()


def panels() -> Iterator[Panel]:
    """The panels with queries of all dashboards."""
    for stem, board in boards().items():
        row = ""
        for each in flat(board):
            if each["type"] == "row":
                row = each["title"]
            else:
                yield Panel(stem, each, row)


def chosen(expr: str, resolution: str) -> str:
    """The expression with "All" chosen in every variable, and the resolution, as in 15s, for $__rate_interval."""
    expr = expr.replace("$__rate_interval", resolution)
    expr = _with_texts(expr)
    return re.sub(r"\$(\w+)", lambda found: ".+" if found[1] in ("job", "instance") else ".*", expr)


def _with_texts(text: str) -> str:
    for name, value in TEXTS.items():
        text = text.replace(name, value)
    return text
