"""Every device is read in a thread of its own, so that one that blocks keeps only itself from being seen."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from exporter.model import Sample

log = logging.getLogger(__name__)
Read = Callable[[], list[Sample]]


@dataclass(frozen=True)
class Shown:
    """What there is to show of a device. `failure` says why there are no samples; `age` is in seconds."""

    samples: list[Sample]
    failure: str = ""
    age: float | None = None


class Watch:
    """Reads one device every `interval` seconds until closed. `read` may block for ever, and raise OSError."""

    def __init__(self, name: str, read: Read, interval: float, deadline: float) -> None:
        self._name, self._read, self._interval, self._deadline = name, read, interval, deadline
        self._closing = threading.Event()
        self._done = threading.Event()
        """Set when the first reading ended, one way or another."""
        self._started = time.monotonic()
        self._begun: float | None = None
        self._samples: list[Sample] = []
        self._failure, self._read_at = "", 0.0
        self._said = ""
        self._thread = threading.Thread(target=self._run, name=f"rdma {name}"[:15], daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits for the first reading, as long as it may take."""
        self._done.wait(max(0.0, self._started + self._deadline - time.monotonic()))

    def show(self) -> Shown:
        """What the last reading gave; nothing when it failed, or the next one takes longer than it may."""
        now, begun = time.monotonic(), self._begun
        age = now - self._read_at if self._read_at else None
        failure = self._failure
        if begun is not None and (now - begun > self._deadline or not self._done.is_set()):
            failure = f"{self._name} is not seen: reading it takes more than {self._deadline:g} s and goes on"
        if failure and not self._said:
            log.warning("%s", failure)
        elif self._said and not failure:
            log.info("%s is seen again", self._name)
        self._said = failure
        return Shown([] if failure else self._samples, failure, age)

    def close(self) -> None:
        """Ends it when its reading ends; does not wait for that."""
        self._closing.set()

    def join(self, seconds: float) -> None:
        """Waits so long for it to have ended."""
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._begun = time.monotonic()
            try:
                self._samples = self._read()
                self._read_at, self._failure = time.monotonic(), ""
            except Exception as error:
                if not isinstance(error, OSError) and not self._closing.is_set():
                    log.exception("reading %s failed; it is tried again", self._name)
                self._failure = f"{self._name} is not seen: {error}"
            self._begun = None
            self._done.set()
            self._closing.wait(self._interval)


class Watches:
    """A watch for each device that there is. `make` gives the function that reads a device, by its name."""

    def __init__(self, make: Callable[[str], Read], interval: float, deadline: float) -> None:
        self._make, self._interval, self._deadline = make, interval, deadline
        self._watches: dict[str, Watch] = {}

    def follow(self, names: list[str]) -> None:
        """Watches these devices and no others."""
        for name in self._watches.keys() - set(names):
            self._watches.pop(name).close()
        for name in names:
            if name not in self._watches:
                self._watches[name] = Watch(name, self._make(name), self._interval, self._deadline)

    def shown(self) -> Iterator[tuple[str, Shown]]:
        """What there is to show of each; waits for those that have just begun."""
        for watch in self._watches.values():
            watch.wait()
        for name, watch in self._watches.items():
            yield name, watch.show()

    def close(self) -> None:
        self.follow([])
