"""Pictures of dashboards show what Grafana would."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboards import draw, queries

Answer = list[tuple[dict[str, str], list[tuple[float, float]]]]


class Answers:
    """A Prometheus with the same answer to every expression with a word in it, else with none."""

    def __init__(self, **answers: Answer) -> None:
        self._answers = answers

    def ranges(self, expr: str, begin: float, end: float, step: float) -> Answer:
        return next((answer for word, answer in self._answers.items() if word in expr), [])


def table(*hidden: str, first: str = "") -> queries.Panel:
    """A table of two queries, without the hidden columns, sorted by the first one."""
    options = {"renameByName": {"job": "Job", "comm": "Command"}, "indexByName": {"job": 0, "comm": 1}}
    for number, letter in enumerate("AB"):
        options["renameByName"][f"Value #{letter}"] = letter
        options["indexByName"][f"Value #{letter}"] = number + 2
    targets = [{"refId": letter, "expr": expr} for letter, expr in (("A", "copied"), ("B", "sent"))]
    fields = {"defaults": {"unit": "short"}, "overrides": []}
    shown = {"title": "", "type": "table", "targets": targets, "fieldConfig": fields}
    names = {"include": {"names": [name for name in options["indexByName"] if name not in hidden]}}
    made = [{"id": "filterFieldsByName", "options": names}, {"id": "organize", "options": options}]
    sort = {"options": {"sortBy": [{"displayName": first, "desc": False}]}} if first else {}
    return queries.Panel("", shown | sort | {"transformations": made})


def test_rows_of_different_jobs_stay_apart() -> None:
    """A process without a job is no row of a job, though one has labels that the other lacks."""
    copied: Answer = [({"job": "7"}, [(1.0, 1.0)]), ({"comm": "python"}, [(1.0, 2.0)])]
    sent: Answer = [({"comm": "python"}, [(1.0, 4.0)]), ({"job": "7"}, [(1.0, 3.0)])]
    answers = draw.Answers(table(), Answers(copied=copied, sent=sent), 1.0)
    assert (["Job", "Command", "A", "B"], [["7", "", "1", "3"], ["", "python", "2", "4"]]) == draw.merged(answers)


def test_hidden_columns_and_order() -> None:
    """A hidden column is not drawn, and the rows are in the order of the column that the panel is sorted by."""
    copied: Answer = [({"job": "8"}, [(1.0, 1.0)]), ({"job": "7"}, [(1.0, 2.0)])]
    answers = draw.Answers(table("Value #A", first="Job"), Answers(copied=copied, sent=copied), 1.0)
    assert (["Job", "B"], [["7", "2"], ["8", "1"]]) == draw.merged(answers)


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


def test_red_stays_red(tmp_path: Path) -> None:
    """A picture with fewer colours has those of thresholds as they were drawn."""
    from PIL import Image

    path = tmp_path / "dots.png"
    image = Image.new("RGB", (40, 40), draw.PANEL)
    image.putpixel((1, 1), (0xF2, 0x49, 0x5C))
    image.save(path)
    draw.fewer_colours(path)
    with Image.open(path) as small:
        assert (0xF2, 0x49, 0x5C) == small.convert("RGB").getpixel((1, 1))
