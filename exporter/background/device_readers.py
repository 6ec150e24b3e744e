"""A thread for each device that reads it, so that a device that blocks hides only its own series."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from exporter.background.poller import Poller
from exporter.model import Sample

log = logging.getLogger(__name__)
Read = Callable[[], list[Sample]]


@dataclass(frozen=True)
class LastReading:
    """The result of a device's last reading. `failure` is the reason for missing samples; `age` is in seconds."""

    samples: list[Sample]
    failure: str = ""
    age: float | None = None


class DeviceReader(Poller[list[Sample]]):
    """Reads one device every `interval` seconds until closed. `read` may block for ever, and raise OSError.

    A reading that takes longer than `deadline` seconds is a failure until it ends.
    """

    def __init__(self, name: str, read: Read, interval: float, deadline: float, kind: str = "rdma") -> None:
        super().__init__(f"{kind} {name}", read, interval)
        self._device, self._deadline = name, deadline
        self._started, self._logged = time.monotonic(), ""
        self.start()

    def wait(self) -> None:
        """Wait until the first reading has ended, at most until its deadline."""
        self.read_once.wait(max(0.0, self._started + self._deadline - time.monotonic()))

    def reading(self) -> LastReading:
        """Return the last reading, without samples when it failed or the current one is beyond its deadline."""
        last, busy = self.last, self.busy
        failure = f"{self._device} is not seen: {last.error}" if last.error else ""
        if busy is not None and (busy > self._deadline or not self.read_once.is_set()):
            failure = f"{self._device} is not seen: reading it takes more than {self._deadline:g} s and has not ended"
        if failure and not self._logged:
            log.warning("%s", failure)
        elif self._logged and not failure:
            log.info("%s is seen again", self._device)
        self._logged = failure
        return LastReading([] if failure else last.value or [], failure, last.age)


class DeviceReaders:
    """A reader for each device. `make` returns the function that reads a device, by the device's name.

    `kind` begins the names of threads.
    """

    def __init__(self, make: Callable[[str], Read], interval: float, deadline: float, kind: str = "rdma") -> None:
        self._make, self._interval, self._deadline, self._kind = make, interval, deadline, kind
        self._readers: dict[str, DeviceReader] = {}

    def follow(self, names: list[str]) -> None:
        """Read these devices and no others."""
        for name in self._readers.keys() - set(names):
            self._readers.pop(name).close()
        for name in names:
            if name not in self._readers:
                self._readers[name] = DeviceReader(name, self._make(name), self._interval, self._deadline, self._kind)

    def last(self) -> Iterator[tuple[str, LastReading]]:
        """Yield the last reading of each device, after waiting for the first readings."""
        for reader in self._readers.values():
            reader.wait()
        for name, reader in self._readers.items():
            yield name, reader.reading()

    def close(self) -> None:
        self.follow([])
