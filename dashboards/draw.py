"""A dashboard as a picture: each panel where its JSON puts it, with what Prometheus answers to its queries.

For the README and docs/, where no Grafana is at hand; Grafana draws finer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from dashboards.parts import DETAIL
from dashboards.queries import HERE, Panel, boards, flat
from dashboards.units import text

COLUMNS, COLUMN, ROW, GAP, HEAD = 24, 64, 34, 8, 26
"""Grafana's grid; the size of its cells, the gap and a panel's heading, in pixels."""
DPI = 80
PAGE, PANEL, EDGE, TEXT, FAINT = "#111217", "#181b1f", "#2c3235", "#d8d9da", "#8e8e8e"
GREEN, RED = "#73bf69", "#f2495c"
LINES = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#ffa6b0", "#96d98d", "#fade2a")
SECONDS, RESOLUTION = 75, "10s"
CHECKOUT = str(HERE.parent)
MOST_LEGENDS, MOST_ROWS = 4, 12
HEAT = LinearSegmentedColormap.from_list("heat", [PANEL, "#7a3b0c", "#ff9830", "#fff2cc"])

Labels = Mapping[str, str]
Series = tuple[Labels, list[tuple[float, float]]]


class Source(Protocol):
    """A Prometheus: samples of each series of an expression between two times, a step apart."""

    def ranges(self, expr: str, begin: float, end: float, step: float) -> list[Series]: ...


def board(stem: str, source: Source, until: float, path: Path) -> None:
    """Writes the dashboard of that file stem as a PNG, of the time before `until` (seconds since 1970).

    Without its last row, if that is of profile debug.
    """
    content = boards()[stem]
    shown = takewhile(lambda each: each["title"] != DETAIL, flat(content))
    placed = [(each, {"x": 0, "y": 0, **each["gridPos"]}) for each in shown]
    height = max(grid["y"] + grid["h"] for _, grid in placed)
    with mpl.rc_context({"font.family": "DejaVu Sans", "text.color": TEXT, "font.size": 9}):
        sheet = _Sheet(height)
        sheet.title(content["title"], content["description"])
        for each, grid in placed:
            box = sheet.box(grid)
            if each["type"] == "row":
                sheet.heading(each["title"], box)
            else:
                axes = sheet.panel(each["title"], box)
                DRAWERS[each["type"]](axes, Answers(Panel(stem, each), source, until))
        sheet.figure.savefig(path, dpi=DPI, facecolor=PAGE, pil_kwargs={"optimize": True})
    fewer_colours(path)


class _Sheet:
    """The figure, in pixels from its upper left corner."""

    def __init__(self, rows: int) -> None:
        self._top = 56
        self.width, self.height = COLUMNS * COLUMN + GAP, rows * ROW + self._top + GAP
        self.figure = Figure((self.width / DPI, self.height / DPI), facecolor=PAGE)

    def title(self, title: str, description: str) -> None:
        self.figure.text(GAP / self.width, 1 - 20 / self.height, title, fontsize=17, weight="bold", va="center")
        self.figure.text(GAP / self.width, 1 - 43 / self.height, description, color=FAINT, va="center", fontsize=10)

    def box(self, grid: Mapping[str, int]) -> tuple[float, float, float, float]:
        """Left, top, width and height of a place in the grid."""
        return (
            grid["x"] * COLUMN + GAP,
            self._top + grid["y"] * ROW,
            grid["w"] * COLUMN - GAP,
            grid["h"] * ROW - GAP,
        )

    def heading(self, title: str, box: tuple[float, float, float, float]) -> None:
        left, top, _, height = box
        x, y = left / self.width, 1 - (top + height / 2) / self.height
        self.figure.text(x, y, f"▾  {title}", fontsize=12, weight="bold", va="center")

    def panel(self, title: str, box: tuple[float, float, float, float]) -> Axes:
        """A frame with its heading; what is below that is the axes."""
        left, top, width, height = box
        frame = FancyBboxPatch(
            (left / self.width, 1 - (top + height) / self.height),
            width / self.width,
            height / self.height,
            boxstyle="square,pad=0",
            facecolor=PANEL,
            edgecolor=EDGE,
            transform=self.figure.transFigure,
            zorder=-1,
        )
        self.figure.add_artist(frame)
        room = int(width / 7)
        shown = title if len(title) <= room else title[: room - 1] + "…"
        self.figure.text((left + 8) / self.width, 1 - (top + 14) / self.height, shown, va="center", fontsize=9.5)
        inside = (
            left / self.width,
            1 - (top + height) / self.height,
            width / self.width,
            (height - HEAD) / self.height,
        )
        axes = self.figure.add_axes(inside, facecolor=PANEL)
        axes.set_axis_off()
        return axes


class Answers:
    """A panel and the results of its queries in Prometheus."""

    def __init__(self, panel: Panel, source: Source, until: float) -> None:
        self.panel, self._source, self.until = panel, source, until
        self.unit = str(panel.json["fieldConfig"]["defaults"].get("unit", "short"))

    def _series(self, expr: str, begin: float) -> list[Series]:
        """The series of a query, without the path of this checkout: pictures are for everybody."""
        found = self._source.ranges(expr, begin, self.until, 1.0)
        return [({key: it.replace(CHECKOUT, "…") for key, it in labels.items()}, points) for labels, points in found]

    def each(self) -> list[tuple[str, Series]]:
        """Every series with the name that its legend gives it."""
        found = []
        for expr, legend in self.panel.queries(RESOLUTION).values():
            for labels, points in self._series(expr, self.until - SECONDS):
                found.append((_named(legend, labels), (labels, points)))
        return found

    def now(self) -> dict[str, list[tuple[Labels, float]]]:
        """The values of now by letter."""
        return {
            letter: [(labels, points[-1][1]) for labels, points in self._series(expr, self.until - 1)]
            for letter, (expr, _) in self.panel.queries(RESOLUTION).items()
        }


def _named(legend: str, labels: Labels) -> str:
    name = re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend)
    return " ".join(name.split()) or "value"


def _nothing(axes: Axes) -> None:
    axes.text(0.5, 0.5, "No data", ha="center", va="center", color=FAINT, fontsize=10, transform=axes.transAxes)


def _last_value(named: tuple[str, Series]) -> float:
    _, (_, points) = named
    value = points[-1][1]
    return 0 if math.isnan(value) else value


def _lines(axes: Axes, answers: Answers) -> None:
    found = answers.each()
    if not found:
        _nothing(axes)
        return
    found.sort(key=_last_value, reverse=True)
    shown = found[: len(LINES)]
    place = axes.get_position()
    size = axes.figure.get_size_inches() * DPI  # type: ignore[union-attr]
    legend = min(len(shown), MOST_LEGENDS)
    width, height = place.width * size[0], place.height * size[1]
    plot = axes.inset_axes((52 / width, (18 + 16 * legend) / height, 1 - 62 / width, 1 - (24 + 16 * legend) / height))
    _style(plot, answers)
    stacked = _stacks(answers.panel.json)
    base: dict[float, float] = {}
    for number, (_, (_, points)) in enumerate(shown):
        times = [at - answers.until for at, _ in points]
        values = [value + (base.get(at, 0.0) if stacked else 0.0) for at, value in points]
        plot.plot(times, values, color=LINES[number], linewidth=1.1)
        if stacked:
            plot.fill_between(times, [base.get(at, 0.0) for at, _ in points], values, color=LINES[number], alpha=0.25)
            base |= {at: value for (at, _), value in zip(points, values, strict=True)}
    top = max((value for _, (_, points) in shown for _, value in points if not math.isnan(value)), default=0)
    plot.set_ylim(0, max(top, *base.values()) * 1.1 if base else (top * 1.1 or 1))
    for number, (name, (_, points)) in enumerate(shown[:legend]):
        more = f"   (+ {len(found) - legend} more)" if number == legend - 1 and len(found) > legend else ""
        y = (9 + 16 * (legend - 1 - number)) / height
        axes.text(10 / width, y, "━", color=LINES[number], va="center", transform=axes.transAxes)
        last = text(points[-1][1], answers.unit)
        room = int((width - 100) / 6.0)
        axes.text(30 / width, y, (name + more)[:room], va="center", fontsize=8, transform=axes.transAxes)
        axes.text(1 - 8 / width, y, last, va="center", ha="right", fontsize=8, transform=axes.transAxes)


def _stacks(panel: Mapping[str, Any]) -> bool:
    custom = panel["fieldConfig"]["defaults"].get("custom", {})
    return bool(custom.get("stacking", {}).get("mode") == "normal")


def _style(plot: Axes, answers: Answers) -> None:
    plot.set_facecolor(PANEL)
    plot.grid(color=EDGE, linewidth=0.6)
    for side in plot.spines.values():
        side.set_visible(False)
    plot.tick_params(colors=FAINT, labelsize=7.5, length=0)
    plot.set_xlim(-SECONDS, 0)
    plot.xaxis.set_major_formatter(lambda at, _: "now" if not at else f"{at:.0f} s")
    plot.yaxis.set_major_formatter(lambda value, _: text(value, answers.unit))
    plot.yaxis.set_major_locator(mpl.ticker.MaxNLocator(4))


def _number(axes: Axes, answers: Answers) -> None:
    found = answers.each()
    if not found:
        _nothing(axes)
        return
    points = found[0][1][1]
    value = points[-1][1]
    color = _threshold(answers.panel.json, value)
    axes.set_xlim(0, 1)
    spark = axes.inset_axes((0, 0, 1, 0.4))
    spark.set_axis_off()
    values = [value for _, value in points]
    spark.fill_between(range(len(values)), values, min(0, *values) if len(values) > 1 else 0, color=color, alpha=0.2)
    axes.text(0.5, 0.55, text(value, answers.unit), ha="center", va="center", fontsize=21, color=color)


def _threshold(panel: Mapping[str, Any], value: float) -> str:
    color = TEXT
    for step in panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", ()):
        if step.get("value") is None or value >= step["value"]:
            color = {"green": GREEN, "red": RED}.get(step["color"], TEXT)
    return color


def _table(axes: Axes, answers: Answers) -> None:
    columns, rows = merged(answers)
    if not rows:
        _nothing(axes)
        return
    place = axes.get_position()
    size = axes.figure.get_size_inches() * DPI  # type: ignore[union-attr]
    width, height = place.width * size[0], place.height * size[1]
    widths = [max(len(title), *(len(row[at]) for row in rows[:MOST_ROWS])) + 2 for at, title in enumerate(columns)]
    unit = min((width - 16) / sum(widths), 13)
    room = max(1, min(MOST_ROWS, int((height - 30) / 22)))
    for number, row in enumerate([columns, *rows[:room]]):
        y, left = 1 - (12 + 22 * number) / height, 10.0
        for at, cell in enumerate(row):
            fits = max(3, int(widths[at] * unit / 5.6) - 1)
            shown = cell if len(cell) <= fits else cell[: fits - 1] + "…"
            color = "#6e9fff" if not number else TEXT
            axes.text(left / width, y, shown, va="center", fontsize=8, color=color, transform=axes.transAxes)
            left += widths[at] * unit
        axes.plot(
            [8 / width, 1 - 8 / width], [y - 11 / height] * 2, color=EDGE, linewidth=0.6, transform=axes.transAxes
        )
    if len(rows) > room:
        axes.text(10 / width, 6 / height, f"+ {len(rows) - room} more", va="center", color=FAINT, fontsize=7.5)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)


def merged(answers: Answers) -> tuple[list[str], list[list[str]]]:
    """Titles and rows as the panel's transformations make them: one row for each set of labels."""
    made = {it["id"]: it["options"] for it in answers.panel.json["transformations"]}
    options, shown = made["organize"], made["filterFieldsByName"]["include"]["names"]
    titles = options["renameByName"]
    order = sorted(options["indexByName"], key=options["indexByName"].__getitem__)
    labels = [name for name in order if not name.startswith("Value")]
    units = _units(answers.panel.json)
    found: list[tuple[dict[str, str], dict[str, float]]] = []
    now = answers.now()
    for letter, samples in now.items():
        column = "Value" if len(now) == 1 else f"Value #{letter}"
        there = {name for own, _ in samples for name in own}
        for own, value in samples:
            known = {name: own.get(name, "") for name in labels if name in there}
            same = [it for it in found if column not in it[1] and _agree(it[0], known)]
            for row, cells in same or [(known, {})]:
                cells[column] = value
                row |= known
                if not same:
                    found.append((row, cells))
    values = [name for name in order if name.startswith("Value")]
    rows = [
        [
            *(key.get(name, "") for name in labels),
            *(text(row[name], units.get(titles[name], answers.unit)) if name in row else "" for name in values),
        ]
        for key, row in found
    ]
    for sort in reversed(answers.panel.json.get("options", {}).get("sortBy", ())):
        place = next(at for at, name in enumerate(order) if titles[name] == sort["displayName"])
        rows.sort(key=lambda row, place=place: row[place])  # type: ignore[misc]
    used = [at for at, name in enumerate(order) if name in values or any(row[at] for row in rows)]
    used = [at for at in used if order[at] in shown]
    return [titles[order[at]] for at in used], [[row[at] for at in used] for row in rows]


def _agree(one: Labels, other: Labels) -> bool:
    """Return whether Grafana's merge joins two rows: labels that both have are equal."""
    return all(one[name] == other[name] for name in one.keys() & other.keys())


def _units(panel: Mapping[str, Any]) -> dict[str, str]:
    return {
        override["matcher"]["options"]: str(setting["value"])
        for override in panel["fieldConfig"]["overrides"]
        for setting in override["properties"]
        if setting["id"] == "unit"
    }


def _heat(axes: Axes, answers: Answers) -> None:
    buckets = sorted(((float(labels["le"]), points) for _, (labels, points) in answers.each() if "le" in labels))
    times = sorted({at for _, points in buckets for at, _ in points})
    if len(times) < 2:
        _nothing(axes)
        return
    grid, below = [], dict.fromkeys(times, 0.0)
    for _, points in buckets:
        counts = dict(points)
        grid.append([max(0.0, counts.get(at, 0.0) - below[at]) for at in times])
        below = {at: counts.get(at, 0.0) for at in times}
    used = [at for at, row in enumerate(grid) if any(row)]
    if not used:
        _nothing(axes)
        return
    low, high = max(0, used[0] - 1), min(len(grid), used[-1] + 2)
    plot = axes.inset_axes((0.1, 0.13, 0.88, 0.83))
    _style(plot, answers)
    plot.grid(visible=False)
    plot.pcolormesh(
        [at - answers.until for at in times], range(low, high), grid[low:high], cmap=HEAT, shading="nearest"
    )
    plot.set_yticks(range(low, high))
    unit = str(answers.panel.json["options"].get("yAxis", {}).get("unit", answers.unit))
    bounds = [bound for bound, _ in buckets[low:high]]
    plot.set_yticklabels([text(bound, unit) if bound < math.inf else "more" for bound in bounds])


DRAWERS: Mapping[str, Any] = {"timeseries": _lines, "stat": _number, "table": _table, "heatmap": _heat}


def top(path: Path, rows: int) -> None:
    """Writes the upper rows of a picture beside it, with -top in its name."""
    from PIL import Image

    with Image.open(path) as image:
        image.crop((0, 0, image.width, rows * ROW)).save(path.with_stem(f"{path.stem}-top"), optimize=True)


def fewer_colours(path: Path) -> None:
    """A palette of what is drawn with, from faint to full: a third of the size, and red stays red."""
    from PIL import Image

    drawn = sorted({*LINES, GREEN, RED, TEXT, FAINT, "#6e9fff"})
    fades = [LinearSegmentedColormap.from_list("", [PANEL, color]) for color in drawn]
    ramps = [fade(step / 9) for fade in fades for step in range(10)]
    colors = [mpl.colors.to_rgb(each) for each in (PAGE, EDGE)] + ramps + [HEAT(step / 40) for step in range(41)]
    palette = Image.new("P", (1, 1))
    palette.putpalette([round(part * 255) for color in colors for part in color[:3]])
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
