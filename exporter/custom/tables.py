"""bcc's tables as plain rows. Runs in the child, under the interpreter that has bcc."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from typing import Any

from exporter.custom.messages import RowsMessage, Shape

MOST_ROWS = 10_000
MOST_TEXT = 128

_BYTES = ("c_char", "c_byte", "c_ubyte")

Plain = Callable[[Any], Any]


class CompiledMap:
    """A map of a compiled program. Values of several CPUs are added up."""

    def __init__(self, name: str, table: Any) -> None:
        self.name, self._table = name, table
        self._copies = hasattr(table, "sLeaf")
        self._array = "Array" in type(table).__name__
        self._key_fields, self._key = plain(table.Key)
        self._value_fields, self._value = plain(table.sLeaf if self._copies else table.Leaf)

    def shape(self) -> Shape:
        entries = int(self._table.max_entries)
        return Shape(type(self._table).__name__, entries, self._key_fields, self._value_fields)

    def read(self) -> RowsMessage:
        """Return up to MOST_ROWS rows: of an array the first and those that are not zero, of other maps all."""
        rows: list[list[Any]] = []
        count = 0
        for key, value in self._items():
            shown = self._sum(value) if self._copies else self._value(value)
            if self._array and rows and not _any(shown):
                continue
            count += 1
            if len(rows) < MOST_ROWS:
                rows.append([self._key(key), shown])
        return RowsMessage(self.name, rows, 0 if self._array else count, count - len(rows))

    def delete(self, pids: Container[int], field: str) -> None:
        """Delete the rows of these pids. `field` of the key is the pid; empty: the key is."""
        for key in list(self._table.keys()):
            pid = getattr(key, field) if field else key.value
            if int(pid) in pids:
                with suppress(KeyError):
                    del self._table[key]

    def pids(self, field: str) -> Iterator[int]:
        """Yield the pid of each row, with `field` as in `delete`."""
        for key in list(self._table.keys()):
            yield int(getattr(key, field) if field else key.value)

    def _items(self) -> Iterator[tuple[Any, Any]]:
        """Yield keys and values, at most twice the map's size: an iteration restarts when its key is deleted."""
        if not self._copies and not self._array:
            with suppress(Exception):  # where the kernel has no batches (before 5.6), one by one
                yield from list(self._table.items_lookup_batch())
                return
        left = 2 * int(self._table.max_entries)
        for key in self._table:
            left -= 1
            if left < 0:
                return
            with suppress(KeyError):
                yield key, self._table.getvalue(key) if self._copies else self._table[key]

    def _sum(self, copies: Any) -> Any:
        each = [self._value(copy) for copy in copies]
        if self._value_fields is None:
            return sum(each)
        columns = zip(*each, strict=True)
        return [sum(parts) if not isinstance(parts[0], (str, type(None))) else parts[0] for parts in columns]


def _any(shown: Any) -> bool:
    return any(shown) if isinstance(shown, list) else bool(shown)


def plain(kind: Any) -> tuple[dict[str, str] | None, Plain]:
    """Return the fields of a C type, and a function from its values to the list of fields.

    A type without fields has None, and its values become one number or text.
    """
    if not (isinstance(kind, type) and issubclass(kind, ctypes.Structure)):
        return None, _scalar(kind)[1]
    fields = [(entry[0], _scalar(entry[1])) for entry in kind._fields_ if not entry[0].startswith("__pad")]
    readers = [(name, read) for name, (_, read) in fields]

    def read(value: Any) -> list[Any]:
        return [reader(getattr(value, name)) for name, reader in readers]

    return {name: what for name, (what, _) in fields}, read


def _scalar(kind: Any) -> tuple[str, Plain]:
    if isinstance(kind, type) and issubclass(kind, ctypes.Array) and kind._type_.__name__ in _BYTES:
        return "string", _text
    if isinstance(kind, type) and issubclass(kind, ctypes._SimpleCData) and kind is not ctypes.c_char:
        return "number", _number
    return "other", lambda _: None


def _number(value: Any) -> Any:
    return getattr(value, "value", value)


def _text(value: Any) -> str:
    raw = value if isinstance(value, bytes) else bytes(value)
    return raw.split(b"\0", 1)[0][:MOST_TEXT].decode("utf-8", "replace")
