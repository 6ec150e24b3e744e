"""Log lines as logfmt or JSON: one bounded line for each event, repetitions suppressed."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
FORMATS = ("logfmt", "json")

_VALUE_LIMIT = 4096
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_BARE = re.compile(r"[!#-<>-\[\]-~]+")


def configure(level: str, form: str, stream: TextIO | None = None) -> None:
    """Log to `stream` (standard error by default) from `level`, a key of LEVELS, on, in `form`, one of FORMATS."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else LogfmtFormatter())
    handler.addFilter(Repetitions())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(LEVELS[level])
    logging.getLogger("aiohttp.access").setLevel(max(LEVELS[level], logging.WARNING))


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

    Every value is cut at 4,096 characters. The full traceback is included where debug lines are logged.
    """
    when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    line = {
        "ts": when.replace("+00:00", "Z"),
        "level": "warn" if record.levelno == logging.WARNING else record.levelname.lower(),
        "source": record.name.removeprefix("exporter."),
        "msg": _message(record),
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
    return {name: _cut(value) for name, value in line.items()}


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):
        return f"{record.msg} {record.args!r}"


def _cut(value: str) -> str:
    return value if len(value) <= _VALUE_LIMIT else value[:_VALUE_LIMIT] + "…"


def _quoted(value: str) -> str:
    return value if _BARE.fullmatch(value) else json.dumps(value)


class Repetitions(logging.Filter):
    """Suppresses repeated warnings and errors: a message passes once in `interval` seconds, and a line of code logs at
    most `burst` messages in that time. The next message that passes has the number of suppressed ones as `repeated`.
    """

    LIMIT = 1024

    def __init__(self, interval: float = 60.0, burst: int = 20, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._interval, self._burst, self._now = interval, burst, now
        self._lock = threading.Lock()
        self._windows: OrderedDict[tuple[str, int, str], _Window] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        with self._lock:
            place = self._window(record.pathname, record.lineno, "")
            error = record.exc_info[1] if record.exc_info else ""
            same = self._window(record.pathname, record.lineno, f"{_message(record)}: {error}"[:_VALUE_LIMIT])
            if same.passed or place.passed >= self._burst:
                same.held += 1
                return False
            same.passed += 1
            place.passed += 1
            if same.before:
                record.repeated = same.before
        return True

    def _window(self, path: str, line: int, message: str) -> _Window:
        """Return the current window of a key; drops the oldest keys beyond LIMIT."""
        key, now = (path, line, message), self._now()
        window = self._windows.get(key)
        if window is None or now - window.start >= self._interval:
            window = self._windows[key] = _Window(now, before=window.held if window else 0)
        self._windows.move_to_end(key)
        while len(self._windows) > self.LIMIT:
            self._windows.popitem(last=False)
        return window


class _Window:
    __slots__ = ("start", "before", "passed", "held")

    def __init__(self, start: float, before: int) -> None:
        self.start, self.before, self.passed, self.held = start, before, 0, 0
