"""A thread for each device that reads it, so that a device that blocks hides only its own series."""

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
class LastReading:
    """The result of a device's last reading. `failure` is the reason for missing samples; `age` is in seconds."""

    samples: list[Sample]
    failure: str = ""
    age: float | None = None


class DeviceReader:
    """Reads one device every `interval` seconds until closed. `read` may block for ever, and raise OSError.

    A reading that takes longer than `deadline` seconds is a failure until it ends.
    """

    def __init__(self, name: str, read: Read, interval: float, deadline: float) -> None:
        self._name, self._read, self._interval, self._deadline = name, read, interval, deadline
        self._closing = threading.Event()
        self._done = threading.Event()
        """Set when the first reading has ended, with or without an error."""
        self._started = time.monotonic()
        self._begun: float | None = None
        self._samples: list[Sample] = []
        self._failure, self._read_at = "", 0.0
        self._logged = ""
        self._thread = threading.Thread(target=self._run, name=f"rdma {name}"[:15], daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the first reading has ended, at most until its deadline."""
        self._done.wait(max(0.0, self._started + self._deadline - time.monotonic()))

    def last(self) -> LastReading:
        """Return the last reading, without samples when it failed or the current one is beyond its deadline."""
        now, begun = time.monotonic(), self._begun
        age = now - self._read_at if self._read_at else None
        failure = self._failure
        if begun is not None and (now - begun > self._deadline or not self._done.is_set()):
            failure = f"{self._name} is not seen: reading it takes more than {self._deadline:g} s and goes on"
        if failure and not self._logged:
            log.warning("%s", failure)
        elif self._logged and not failure:
            log.info("%s is seen again", self._name)
        self._logged = failure
        return LastReading([] if failure else self._samples, failure, age)

    def close(self) -> None:
        """Stop after the current reading, without waiting for its end."""
        self._closing.set()

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` for the thread's end."""
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._begun = time.monotonic()
            try:
                self._samples = self._read()
                self._read_at, self._failure = time.monotonic(), ""
            except Exception as error:
                if not isinstance(error, OSError) and not self._closing.is_set():
                    log.exception("reading %s failed; reading continues", self._name)
                self._failure = f"{self._name} is not seen: {error}"
            self._begun = None
            self._done.set()
            self._closing.wait(self._interval)


class DeviceReaders:
    """A reader for each device. `make` returns the function that reads a device, by the device's name."""

    def __init__(self, make: Callable[[str], Read], interval: float, deadline: float) -> None:
        self._make, self._interval, self._deadline = make, interval, deadline
        self._readers: dict[str, DeviceReader] = {}

    def follow(self, names: list[str]) -> None:
        """Read these devices and no others."""
        for name in self._readers.keys() - set(names):
            self._readers.pop(name).close()
        for name in names:
            if name not in self._readers:
                self._readers[name] = DeviceReader(name, self._make(name), self._interval, self._deadline)

    def last(self) -> Iterator[tuple[str, LastReading]]:
        """Yield the last reading of each device, after waiting for the first readings."""
        for reader in self._readers.values():
            reader.wait()
        for name, reader in self._readers.items():
            yield name, reader.last()

    def close(self) -> None:
        self.follow([])
