"""NVIDIA GPUs by NVML: use, memory, power, clocks, links, errors and processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from exporter.model import Metric, Sample, Unavailable
from exporter.node import Node
from exporter.nvml import metrics
from exporter.nvml.peaks import Peaks, PeaksError
from exporter.nvml.pids import labels_of
from exporter.nvml.samples import samples
from exporter.nvml.snapshot import FAST, PROCESSES, SLOW
from exporter.nvml.supervisor import NvmlSupervisor
from exporter.options import Flag, SettingsError, Value
from exporter.series import SeriesLimit, limit_flag

METRICS: tuple[Metric, ...] = tuple(value for value in vars(metrics).values() if isinstance(value, Metric))
SHORTEST, LONGEST = 0.2, 86_400
"""Seconds between two readings."""
FIRST = True
FLAGS = (
    Flag(
        "fast-interval",
        10.0,
        "Interval between readings of use, memory, clocks, power, temperature and links, in seconds.",
        SHORTEST,
        LONGEST,
    ),
    Flag(
        "processes-interval",
        15.0,
        "Interval between readings of the processes on each GPU, which cost the most, in seconds.",
        SHORTEST,
        LONGEST,
    ),
    Flag(
        "slow-interval", 60.0, "Interval between readings of errors, limits and modes, in seconds.", SHORTEST, LONGEST
    ),
    limit_flag(10_000),
    Flag(
        "peaks",
        "",
        "YAML file of peak operations per second by model, over those built in (docs/gpu.md). Empty: those built in.",
    ),
)


def configure(values: Mapping[str, Value]) -> Mapping[str, Any]:
    """Checks the table of peaks. Raises SettingsError for a table that cannot be read."""
    try:
        _peaks(values)
    except PeaksError as error:
        raise SettingsError(f"collector.nvml.peaks: {error}") from error
    return values


def create(node: Node) -> Nvml:
    return Nvml(node)


class Nvml:
    """Collector of the NVML supervisor's snapshots; a scrape never waits for NVML."""

    name = "nvml"

    def __init__(self, node: Node) -> None:
        self.node = node
        self._peaks = _peaks(node.settings)
        intervals = {name: float(node.settings[f"{name}-interval"]) for name in (FAST, PROCESSES, SLOW)}
        self._supervisor = NvmlSupervisor(intervals, node.gpus.publish)
        self._limit = SeriesLimit(self.name, node.settings["series-limit"], profile=node.profile)
        self._labels = labels_of(node.processes, node.proc)

    def start(self) -> None:
        """Starts the child; readings come later."""
        self._supervisor.start()
        self.node.gpus.serve(self._supervisor.snapshot, self._supervisor.release)

    def collect(self) -> Iterator[Sample]:
        """Yields the newest readings. Raises Unavailable while there is no NVML; the search for NVML goes on."""
        snapshot = self.node.gpus.snapshot()
        if snapshot.state == "absent":
            raise Unavailable(
                f"NVML cannot be used: {snapshot.reason}",
                "nothing is to be done without NVIDIA GPUs; where they are, install the driver: it is looked for again",
            )
        peaks = (peak for gpu in snapshot.gpus for peak in self._peaks.samples(gpu))
        yield from self._limit.apply(chain(samples(snapshot, self._labels), peaks))
        yield from self._supervisor.samples()

    def problems(self) -> Iterator[str]:
        """Yields the problems for the landing page."""
        snapshot = self._supervisor.snapshot()
        if snapshot.state in ("stalled", "restarting", "released"):
            yield f"NVML is {snapshot.state}: {snapshot.reason}"
        for gpu in snapshot.gpus:
            if gpu.state != "ok":
                yield f"GPU {gpu.index} {gpu.uuid} is {gpu.state.replace('_', ' ')}"

    def close(self) -> None:
        """Closes the handles of the GPUs and ends the child."""
        self.node.gpus.withdraw()
        self._supervisor.close()


def _peaks(settings: Mapping[str, Any]) -> Peaks:
    return Peaks(Path(settings["peaks"]) if settings["peaks"] else None)
