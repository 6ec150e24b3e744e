"""The exporter's log: bounded lines, at a bounded rate, written without delaying the thread that logs."""

from __future__ import annotations

import logging
import sys
from io import UnsupportedOperation
from typing import TextIO

from exporter.log.limits import Limits
from exporter.log.lines import JsonFormatter, LogfmtFormatter
from exporter.log.writer import FLUSH_SECONDS, LogWriter

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
FORMATS = ("logfmt", "json")


def configure(level: str, form: str, stream: TextIO | None = None, *, queued: bool = False) -> None:
    """Log to `stream` (standard error by default) from `level`, a key of LEVELS, on, in `form`, one of FORMATS.

    With `queued`, lines wait in a queue for the thread that start() starts; later calls without a stream keep it.
    """
    root = logging.getLogger()
    handler = _handler(stream, queued)
    handler.setFormatter(JsonFormatter() if form == "json" else LogfmtFormatter())
    handler.filters = [Limits()]
    if handler not in root.handlers:
        root.addHandler(handler)
    for old in root.handlers[:]:
        if old is not handler:
            root.removeHandler(old)
    root.setLevel(LEVELS[level])
    logging.getLogger("aiohttp.access").setLevel(max(LEVELS[level], logging.WARNING))


def start() -> None:
    """Start the thread that writes queued lines; it has the capabilities of the thread that calls."""
    if writer := _writer():
        writer.start()


def flush(seconds: float = FLUSH_SECONDS) -> None:
    """Wait until the queued lines are written, at most so many seconds."""
    if writer := _writer():
        writer.drain(seconds)


def _handler(stream: TextIO | None, queued: bool) -> logging.Handler:
    if stream:
        return logging.StreamHandler(stream)
    if writer := _writer():
        return writer
    if queued and sys.stderr:
        try:
            return LogWriter(sys.stderr.fileno())
        except UnsupportedOperation:  # no file
            pass
    return logging.StreamHandler(sys.stderr)


def _writer() -> LogWriter | None:
    return next((handler for handler in logging.getLogger().handlers if isinstance(handler, LogWriter)), None)
