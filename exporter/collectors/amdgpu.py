"""AMD GPUs: use, memory, power, temperature, clocks and errors, from the kernel's driver amdgpu."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from exporter.amdgpu import kfd, metrics, sysfs
from exporter.background.device_readers import DeviceReaders
from exporter.device_collector import DeviceCollector, reading_of
from exporter.model import Metric, Sample, Unavailable
from exporter.node import Node
from exporter.nvml.pids import labels_of
from exporter.options import Flag
from exporter.series import limit_flag

METRICS: tuple[Metric, ...] = tuple(value for value in vars(metrics).values() if isinstance(value, Metric))
DEFAULT = False
FLAGS = (
    Flag("interval", 10.0, "Interval between readings of a GPU, in seconds.", 1, 3600),
    Flag("deadline", 5.0, "Time after which a GPU that does not answer has no series, in seconds.", 0.1, 60),
    limit_flag(10_000),
)


def create(node: Node) -> Amdgpu:
    return Amdgpu(node)


class Amdgpu(DeviceCollector):
    """Reads every AMD GPU of the node in a thread of its own, also GPUs that appear later."""

    name, success = "amdgpu", metrics.SUCCESS

    def __init__(self, node: Node) -> None:
        super().__init__(node, int(node.settings["series-limit"]))
        interval, deadline = float(node.settings["interval"]), float(node.settings["deadline"])
        self._readers = DeviceReaders(
            lambda card: partial(sysfs.read, node.sys / "class/drm" / card), interval, deadline, "amdgpu"
        )
        self.kfd = DeviceReaders(lambda _: partial(kfd.read, node.sys), interval, deadline, "amdgpu")
        self._labels = labels_of(node.processes, node.proc)

    def close(self) -> None:
        self._readers.close()
        self.kfd.close()

    def _follow(self) -> None:
        cards: list[str] = []
        with suppress(OSError):
            cards = sysfs.cards(self.node.sys)
        self._readers.follow(cards)
        self.kfd.follow(["amdkfd"] if cards and kfd.present(self.node.sys) else [])
        if not cards:
            raise Unavailable(
                f"no GPU of the driver amdgpu in {self.node.sys}/class/drm",
                "nothing is to be done without AMD GPUs; where they are, load the driver: it is looked for again",
            )

    def _samples(self, problems: list[str]) -> Iterator[Sample]:
        yield from self._of_devices(self._readers, problems)
        for _, reading in self.kfd.last():
            yield from map(self._of_process, reading_of(reading, problems))

    def _of_process(self, sample: Sample) -> Sample:
        """Return a sample with all labels of its process, if it is of one."""
        pid = sample.labels.get("pid")
        return replace(sample, labels={**self._labels(int(pid)), **sample.labels}) if pid else sample
