"""Polling of a source that may answer slowly or never, in a thread per source."""

from __future__ import annotations

import errno
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Polled(Generic[T]):
    """The newest value of a source, with its time (CLOCK_MONOTONIC), and the error of the last reading if it failed.

    Neither a value nor an error is there before the end of the first reading.
    """

    value: T | None = None
    at: float | None = None
    error: Exception | None = None

    @property
    def age(self) -> float | None:
        """Seconds since the value was read; None before the first value."""
        return None if self.at is None else time.monotonic() - self.at


class Poller(Generic[T]):
    """Reads a source every `interval` seconds and keeps its newest value, so that no scrape waits for a slow source."""

    def __init__(
        self,
        name: str,
        read: Callable[[], T],
        interval: float,
        *,
        patience: float = math.inf,
        first_after: float = 0.0,
        steady: bool = False,
        expected: tuple[type[Exception], ...] = (OSError,),
        refused: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """`interval` is the pause between two readings, or between the starts of two readings when `steady`.

        A value expires at the age of `patience` seconds. `refused` is called with an `expected` error of `read`, other
        errors are logged, both once until the error changes; after each error `read` is called again in time.
        """
        self.name, self._read, self._interval = name, read, interval
        self._patience, self._first_after, self._steady = patience, first_after, steady
        self._expected, self._refused = expected, refused
        self.last: Polled[T] = Polled()
        self.read_once = threading.Event()
        """Set at the end of the first reading, also when that failed."""
        self.closing = threading.Event()
        """Set by `close`, for readings that take long."""
        self._begun: float | None = None
        self._thread = threading.Thread(target=self._run, name=name[:15], daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float = 0.0) -> None:
        """Stop polling. Waits at most `seconds` for the reading under way."""
        self.closing.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)

    @property
    def busy(self) -> float | None:
        """Seconds that the reading under way has taken; None between two readings."""
        begun = self._begun
        return None if begun is None else time.monotonic() - begun

    def newest(self) -> T:
        """Return the newest value.

        Raises BlockingIOError before the first reading has ended, an OSError for the error of the last reading, and
        TimeoutError when the value has expired.
        """
        last = self.last
        if isinstance(error := last.error, OSError):  # a new one: the kept error would keep the frames of each scrape
            raise OSError(error.errno, error.strerror or str(error), error.filename)
        if error is not None:
            raise OSError(errno.EIO, repr(error), self.name)
        if last.value is None or last.age is None:
            raise BlockingIOError(errno.EAGAIN, "not queried yet", self.name)
        if last.age > self._patience:
            raise TimeoutError(errno.ETIMEDOUT, "does not answer", self.name)
        return last.value

    def poll(self) -> None:
        """Read the source once and keep the value, or the error beside the value before."""
        self._begun = time.monotonic()
        try:
            self.last = Polled(self._read(), time.monotonic())
        except Exception as error:
            self._report(error)
            error.__traceback__ = error.__cause__ = error.__context__ = None
            self.last = Polled(self.last.value, self.last.at, error)
        self._begun = None
        self.read_once.set()

    def _report(self, error: Exception) -> None:
        if self.closing.is_set() or repr(error) == repr(self.last.error):
            return
        if isinstance(error, self._expected):
            self._refused(error)
        else:
            log.exception("polling %s failed; polling continues", self.name)

    def _run(self) -> None:
        self.closing.wait(self._first_after)
        while not self.closing.is_set():
            began = time.monotonic()
            self.poll()
            spent = time.monotonic() - began if self._steady else 0.0
            self.closing.wait(max(0.0, self._interval - spent))
