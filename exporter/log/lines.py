"""Log lines as logfmt or JSON: one line of bounded length for each event."""

from __future__ import annotations

import json
import logging
import os
import re
import traceback
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii

LINE_BYTES = 4096
"""The longest line, escaped and with its end. A pipe takes so much at once, so lines of several writers stay whole."""
VALUE_BYTES = 512
"""The longest value of a field without an entry in _FIELD_BYTES, and the longest path in a message, both escaped."""
_FIELD_BYTES = {"msg": 2048, "err": 1024, "traceback": LINE_BYTES}
_AROUND_FIELD = len('"": "", ')
_AROUND_LINE = len("{}\n")
_CUT = "…"

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_BARE = re.compile(r"[!#-<>-\[\]-~]+")


class LogfmtFormatter(logging.Formatter):
    """`ts=… level=… source=… msg="…" key=value`: values with special characters are quoted and escaped as in JSON."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_quoted(value)}" for name, value in fields(record).items())


class JsonFormatter(logging.Formatter):
    """The same fields as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(fields(record))


def fields(record: logging.LogRecord) -> dict[str, str]:
    """Return the fields of an event: time, level, module, message, those of `extra`, and the exception with its line.

    Values are cut so that the line has at most LINE_BYTES. The traceback is included where debug lines are logged.
    """
    when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    line = {
        "ts": when.replace("+00:00", "Z"),
        "level": "warn" if record.levelno == logging.WARNING else record.levelname.lower(),
        "source": record.name.removeprefix("exporter."),
        "msg": message(record),
    }
    for name, value in vars(record).items():
        if name not in _STANDARD and not name.startswith("_"):
            line[name] = str(value)
    if record.exc_info and (error := record.exc_info[1]):
        line["err"] = f"{type(error).__name__}: {error}"
        last = traceback.extract_tb(error.__traceback__)[-1:]
        if last:
            line["at"] = f"{last[0].filename.rpartition('/')[2]}:{last[0].lineno}"
        if logging.getLogger().isEnabledFor(logging.DEBUG):
            line["traceback"] = "".join(traceback.format_exception(error))
    return _bounded(line)


def message(record: logging.LogRecord) -> str:
    """Return the message with its arguments, of which paths are cut at VALUE_BYTES."""
    args = record.args
    if isinstance(args, tuple):
        args = tuple(_cut(str(arg), VALUE_BYTES) if _is_path(arg) else arg for arg in args)
    try:
        return str(record.msg) % args if args else str(record.msg)
    except (TypeError, ValueError):
        return f"{record.msg} {args!r}"


def _is_path(value: object) -> bool:
    return isinstance(value, os.PathLike) or (isinstance(value, str) and value.startswith("/"))


def _bounded(line: dict[str, str]) -> dict[str, str]:
    room, bounded = LINE_BYTES - _AROUND_LINE, dict[str, str]()
    for name, value in line.items():
        room -= len(name) + _AROUND_FIELD
        if room < len(_escaped(_CUT)):
            break
        bounded[name] = _cut(value, min(room, _FIELD_BYTES.get(name, VALUE_BYTES)))
        room -= len(_escaped(bounded[name]))
    return bounded


def _cut(value: str, limit: int) -> str:
    """Return a value, or its beginning, that has at most so many bytes when escaped."""
    if len(value) <= limit and len(_escaped(value)) <= limit:
        return value
    room = limit - len(_escaped(_CUT))
    for index, character in enumerate(value):
        room -= len(_escaped(character))
        if room < 0:
            return value[:index] + _CUT
    return value


def _escaped(value: str) -> str:
    return encode_basestring_ascii(value)[1:-1]


def _quoted(value: str) -> str:
    return value if _BARE.fullmatch(value) else encode_basestring_ascii(value)
