"""What takes long to answer, or never does, and is asked now and then in a thread of its own."""

from __future__ import annotations

import errno
import logging
import threading
import time
from abc import ABC, abstractmethod

from exporter.model import Sample

log = logging.getLogger(__name__)


class Asked(ABC):
    """Asks every `interval` seconds. What does not answer makes what is known too old, and no scrape wait."""

    def __init__(self, name: str, interval: float, patience: float) -> None:
        """`patience`: seconds after which an answer that no other has followed is not shown any more."""
        self._name, self._interval, self._patience = name, interval, patience
        self._found: list[Sample] = []
        self._read_at = time.monotonic()
        self._refusal: OSError | None = BlockingIOError(errno.EAGAIN, "not asked yet", name)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def ask(self) -> list[Sample]:
        """Asks once. Raises OSError when there is no answer."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Does not wait for an answer."""
        self._closing.set()

    def samples(self) -> list[Sample]:
        """The newest answer. Raises OSError: BlockingIOError before the first, then if there is none or it is old."""
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)  # an exception that is raised again and again keeps every frame
        if time.monotonic() - self._read_at > self._patience:
            raise TimeoutError(errno.ETIMEDOUT, "does not answer", self._name)
        return self._found

    def look(self) -> None:
        """Asks once and keeps the answer, or why there is none."""
        refusal = None
        try:
            found = self.ask()
        except OSError as error:
            found, refusal = [], error
        self._found, self._read_at, self._refusal = found, time.monotonic(), refusal

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
            except Exception:
                log.exception("asking %s failed; it is tried again", self._name)
            self._closing.wait(self._interval)
