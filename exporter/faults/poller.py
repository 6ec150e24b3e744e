"""Polling of a source that may answer slowly or never, in a thread per source."""

from __future__ import annotations

import errno
import logging
import threading
import time
from abc import ABC, abstractmethod

from exporter.model import Sample

log = logging.getLogger(__name__)


class Poller(ABC):
    """Queries a source periodically and keeps its newest answer, so that no scrape waits for a slow source."""

    def __init__(self, name: str, interval: float, patience: float) -> None:
        """`interval` and `patience` are in seconds: between two queries, and the age at which an answer expires."""
        self._name, self._interval, self._patience = name, interval, patience
        self._found: list[Sample] = []
        self._read_at = time.monotonic()
        self._refusal: OSError | None = BlockingIOError(errno.EAGAIN, "not queried yet", name)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def query(self) -> list[Sample]:
        """Query the source once and return its answer. Raises OSError when there is no answer."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop polling, without waiting for a pending answer."""
        self._closing.set()

    def samples(self) -> list[Sample]:
        """Return the newest answer.

        Raises BlockingIOError before the first query has ended, the query's OSError when the last query failed, and
        TimeoutError when the answer is older than `patience`.
        """
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)  # an exception that is raised again and again keeps every frame
        if time.monotonic() - self._read_at > self._patience:
            raise TimeoutError(errno.ETIMEDOUT, "does not answer", self._name)
        return self._found

    def poll(self) -> None:
        """Query the source once and keep the answer, or the error in place of one."""
        refusal = None
        try:
            found = self.query()
        except OSError as error:
            found, refusal = [], error
        self._found, self._read_at, self._refusal = found, time.monotonic(), refusal

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.poll()
            except Exception:
                log.exception("polling %s failed; polling continues", self._name)
            self._closing.wait(self._interval)
