"""The kernel log as collectors share it: one reader for all of their subscriptions."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from exporter.kmsg.reader import DEVICE, Reader
from exporter.kmsg.records import Record
from exporter.model import Unavailable

Receive = Callable[[Record, float], None]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KmsgSettings:
    """`path` is the device, or a FIFO or a file with lines of the same form. Records that processes wrote into the log
    are left out without `from_processes`.
    """

    path: str = str(DEVICE)
    from_processes: bool = False


class KernelLog:
    """The kernel log, read by one thread while at least one subscription is started.

    `wall_ns` converts nanoseconds of the kernel's clock to wall time. The log is read once from its oldest record on:
    all collectors subscribe when they are created, before the first of them starts.
    """

    def __init__(self, settings: KmsgSettings, wall_ns: Callable[[int], int]) -> None:
        self.path = settings.path
        self._from_processes, self._wall_ns = settings.from_processes, wall_ns
        self._lock = threading.Lock()
        self._subscriptions: tuple[Subscription, ...] = ()
        self._started: set[Subscription] = set()
        self.reader: Reader | None = None
        """The reader, also after it has ended; None before the first start."""

    def subscribe(self, words: re.Pattern[bytes], receive: Receive) -> Subscription:
        """Return a subscription to the records of lines that match `words`, a pattern without flags.

        `receive` takes a record and its wall time in seconds, in the reader's thread, also before its own subscription
        is started. `receive` must not block for long: records that the kernel overwrites meanwhile are lost. Raises
        RuntimeError while the log is read, because a late subscription would miss earlier records.
        """
        with self._lock:
            if self._started:
                raise RuntimeError("subscribe to the kernel log before it is read")
            subscription = Subscription(self, words, receive)
            self._subscriptions = (*self._subscriptions, subscription)
            return subscription

    def start(self, subscription: Subscription) -> None:
        """Start the reader for the first subscription. Raises Unavailable when the log cannot be opened."""
        with self._lock:
            if not self._started:
                words = re.compile(b"|".join(each.words.pattern for each in self._subscriptions))
                reader = Reader(Path(self.path), words, self._receive)
                reader.start()
                self.reader = reader
            self._started.add(subscription)

    def close(self, subscription: Subscription) -> None:
        """Remove a subscription, and end the reader with the last one that was started."""
        with self._lock:
            self._subscriptions = tuple(each for each in self._subscriptions if each is not subscription)
            if subscription in self._started:
                self._started.discard(subscription)
                if not self._started and self.reader:
                    self.reader.close()

    def _receive(self, record: Record) -> None:
        """Pass a record on, unless it may begin with a text of any user's.

        A process can write into the log, but not with facility 0. The rest of a message may be a name alone.
        """
        if record.continued or (record.facility and not self._from_processes):
            return
        # A record's own time drifts from wall time over months, so that a live record gets the time of its arrival.
        wall_time = self._wall_ns(record.time_ns) / 1e9 if record.replayed else time.time()
        text = record.text.encode()
        for subscription in self._subscriptions:
            if subscription.words.search(text):
                subscription.deliver(record, wall_time)


class Subscription:
    """A collector's subscription to the kernel log, made by KernelLog.subscribe."""

    def __init__(self, kernel_log: KernelLog, words: re.Pattern[bytes], receive: Receive) -> None:
        self.words = words
        self._log, self._receive = kernel_log, receive
        self._failed, self._refusal = 0, ""

    def start(self) -> None:
        """Start the reader unless it runs. Raises Unavailable when the log cannot be opened."""
        try:
            self._log.start(self)
        except Unavailable as error:
            self._refusal = f"{error.reason}; {error.remedy}"
            raise

    def close(self) -> None:
        """End the subscription; the last one ends the reader. Without effect when there is none."""
        self._log.close(self)

    @property
    def problem(self) -> str:
        """The reason why the log is not read; empty while it is read, and before the start."""
        return self._refusal or (self._log.reader.failure if self._log.reader else "")

    @property
    def lost(self) -> int:
        """Number of records overwritten before they were read, too long, malformed or failed on by `receive`."""
        return self._failed + (self._log.reader.lost if self._log.reader else 0)

    def deliver(self, record: Record, wall_time: float) -> None:
        """Call `receive`. A record on which `receive` fails is counted; the first failure is logged."""
        try:
            self._receive(record, wall_time)
        except Exception:
            if not self._failed:
                log.exception("a record of the kernel log was lost (logged once, counted)")
            self._failed += 1
