"""The rate of log lines: what processes of the node provoke does not fill the disk."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from exporter.log.lines import message
from exporter.log.losses import dropped


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of lines at once, then one line each `seconds`."""

    burst: int
    seconds: float


RATES = {logging.DEBUG: Rate(1000, 10.0), logging.INFO: Rate(100, 60.0), logging.WARNING: Rate(20, 60.0)}
"""For each place in the code and least level. Errors have the rate of warnings, and a bucket of their own."""
INTERVAL = 60.0
"""Seconds within which the same warning or error passes once."""
MOST_KEYS = 1024

Value = TypeVar("Value")


class Limits(logging.Filter):
    """Suppresses repeated warnings and errors, and lines beyond the rate of their place in the code.

    The next line that passes has the number of suppressed ones: as `repeated` for the same message, as `suppressed` for
    the place.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._lock = threading.Lock()
        self._places: OrderedDict[tuple[str, int, int], _Bucket] = OrderedDict()
        self._messages: OrderedDict[tuple[str, int, int], _Window] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        with self._lock:
            passes = self._passes(record)
        if not passes:
            dropped.add("rate_limit")
        return passes

    def _passes(self, record: logging.LogRecord) -> bool:
        now = self._now()
        place = (record.pathname, record.lineno, record.levelno)
        same = _key(record) if record.levelno >= logging.WARNING else None
        window = self._messages.get(same) if same else None
        if window and now - window.start < INTERVAL:
            window.held += 1
            return False
        bucket = self._places.get(place) or _Bucket(_rate(record.levelno), now)
        _keep(self._places, place, bucket)
        if not bucket.take(now):
            return False
        if bucket.held:
            record.suppressed, bucket.held = bucket.held, 0
        if window:
            record.repeated = window.held
        if same:
            _keep(self._messages, same, _Window(now))
        return True


class _Bucket:
    """Tokens for the lines of one place."""

    __slots__ = ("_rate", "_tokens", "_at", "held")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate, self._tokens, self._at = rate, float(rate.burst), now
        self.held = 0

    def take(self, now: float) -> bool:
        """Take a token. Returns False, and counts, when there is none."""
        self._tokens = min(self._rate.burst, self._tokens + (now - self._at) / self._rate.seconds)
        self._at = now
        if self._tokens < 1:
            self.held += 1
            return False
        self._tokens -= 1
        return True


class _Window:
    """The time after a message, during which the same message is held back."""

    __slots__ = ("start", "held")

    def __init__(self, start: float) -> None:
        self.start, self.held = start, 0


def _rate(level: int) -> Rate:
    return next((rate for least, rate in reversed(RATES.items()) if level >= least), RATES[logging.DEBUG])


def _key(record: logging.LogRecord) -> tuple[str, int, int]:
    error = record.exc_info[1] if record.exc_info else ""
    return record.pathname, record.lineno, hash(f"{message(record)}: {error}")


def _keep(values: OrderedDict[tuple[str, int, int], Value], key: tuple[str, int, int], value: Value) -> None:
    """Set a value; the keys that were set longest ago make room."""
    values[key] = value
    values.move_to_end(key)
    if len(values) > MOST_KEYS:
        values.popitem(last=False)
