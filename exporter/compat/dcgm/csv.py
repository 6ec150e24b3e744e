"""Selection of fields, names and types: dcgm-exporter's defaults, or those of a file in dcgm-exporter's format."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from exporter.compat.dcgm.aliases import Aliases
from exporter.compat.dcgm.field import Field
from exporter.compat.dcgm.fields import FIELDS, UNREAD
from exporter.model import Kind
from exporter.option_sources import read_text
from exporter.options import SettingsError

MOST_BYTES = 1 << 20
_KINDS = {"gauge": Kind.GAUGE, "counter": Kind.COUNTER, "label": None}


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One field to show. `name` is the name in the file; `field` is None for a field that only DCGM itself fills."""

    name: str
    kind: Kind | None
    help: str
    field: Field | None
    line: int = 0

    def names(self, which: str, aliases: Aliases) -> tuple[str, ...]:
        """Returns the names of the series: `which` is old (the row's own name), new (since DCGM 4.6) or both."""
        new = aliases.new(self.name)
        return {"old": (self.name,), "new": (new,), "both": tuple(dict.fromkeys((self.name, new)))}[which]


def default() -> tuple[FieldRow, ...]:
    """Returns the rows that dcgm-exporter shows without a file."""
    return tuple(row for row in every() if row.field and row.field.default)


def every() -> tuple[FieldRow, ...]:
    """Returns all rows that can be filled, under the names up to DCGM 4.5."""
    return tuple(FieldRow(field.name, field.kind, field.help, field) for field in FIELDS)


def why_unread(name: str) -> str:
    """Returns the reason why a known field is not filled from NVML."""
    return UNREAD.get(
        Aliases().old(name), "only DCGM itself reports it; --dcgm.url passes on the series of a dcgm-exporter"
    )


def read(path: Path) -> tuple[FieldRow, ...]:
    """Reads a file in dcgm-exporter's format: field, type, help; `#` begins a comment line. Returns the rows.

    Raises SettingsError with the line of a syntax error, an unknown field or type, or a field given twice.
    """
    aliases = Aliases()
    known = {field.name: field for field in FIELDS}
    rows: dict[str, FieldRow] = {}
    for number, cells in _lines(path):
        where = f"{path}:{number}"
        if len(cells) != 3:
            raise SettingsError(
                f'{where}: {len(cells)} values in place of three: field, type, help; a help with commas needs "quotes"'
            )
        name, kind, help_text = cells
        if kind not in _KINDS:
            raise SettingsError(f"{where}: {kind!r} is no type of a row; use gauge, counter or label")
        old = aliases.old(name)
        field = known.get(old)
        if field is None and old not in UNREAD and old not in set(aliases):
            raise SettingsError(f"{where}: unknown field {name!r}{_nearest(name, (*known, *UNREAD, *aliases))}")
        if field is not None and field.kind is None and kind != "label":
            raise SettingsError(f"{where}: {name} is a text; its type has to be label")
        if old in rows:
            raise SettingsError(f"{where}: {name} is in line {rows[old].line} already; remove one")
        rows[old] = FieldRow(name, _KINDS[kind], help_text, field, number)
    return tuple(rows.values())


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields number and trimmed values of every line that is neither empty nor a comment."""
    for number, line in enumerate(_text(path).splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            try:
                [cells] = csv.reader([line], skipinitialspace=True, strict=True)
            except csv.Error as error:
                raise SettingsError(f"{path}:{number}: not valid CSV: {error}") from None
            yield number, [cell.strip() for cell in cells]


def _text(path: Path) -> str:
    try:
        return read_text(path, MOST_BYTES, "is it the right file?")
    except SettingsError as error:
        raise SettingsError(f"compat.dcgm.csv: {error}") from error


def _nearest(name: str, names: Iterable[str]) -> str:
    import difflib  # for this error only

    near = difflib.get_close_matches(name, list(names), 1)
    return f"; did you mean {near[0]}?" if near else "; docs/dcgm-fields.md lists what there is"
