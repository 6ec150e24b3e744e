"""Collectors of devices that the kernel lists in sysfs: each device is read in a thread of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from typing import ClassVar

from exporter.background.device_readers import DeviceReaders, LastReading
from exporter.bpf import status
from exporter.model import Metric, Sample, Unavailable
from exporter.node import Node
from exporter.series import SeriesLimit


class DeviceCollector(ABC):
    """A subclass gives `_follow`, which lists the devices, and `_samples`, which yields what was read last."""

    name: ClassVar[str]
    success: ClassVar[Metric]
    """1 for each device of which the last reading succeeded; the label is the kind of device."""

    def __init__(self, node: Node, series_limit: int) -> None:
        self.node = node
        self._limit = SeriesLimit(self.name, series_limit, profile=node.profile)
        self._problems: list[str] = []

    def start(self) -> None:
        """Start reading the devices present. Each scrape lists devices again: a driver may be loaded later."""
        with suppress(Unavailable):
            self._follow()

    def collect(self) -> Iterator[Sample]:
        """Yield the samples of the last readings. Raises Unavailable when there is no device."""
        self._follow()
        problems: list[str] = []
        yield from self._limit.apply(self._samples(problems))
        self._problems = problems

    def problems(self) -> Iterator[str]:
        """Yield the reasons why devices cannot be read, for the landing page."""
        yield from self._problems

    @abstractmethod
    def _follow(self) -> None:
        """Have the devices present read, and no others. Raises Unavailable when there is none."""

    @abstractmethod
    def _samples(self, problems: list[str]) -> Iterator[Sample]:
        """Yield samples, and append the reasons why devices cannot be read."""

    def _of_devices(self, readers: DeviceReaders, problems: list[str]) -> Iterator[Sample]:
        """Yield the last samples of each device, whether it could be read, and how old its values are."""
        [label] = self.success.labels
        for device, reading in readers.last():
            yield from reading_of(reading, problems)
            yield self.success.sample(int(not reading.failure), {label: device})
            if reading.age is not None:
                yield status.SOURCE_AGE.sample(reading.age, {"source": f"{self.name}_{device}"})


def reading_of(reading: LastReading, problems: list[str]) -> Iterator[Sample]:
    """Yield the samples of a reading, and append the reason why there was no newer one."""
    yield from reading.samples
    if reading.failure:
        problems.append(reading.failure)
