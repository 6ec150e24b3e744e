"""GPU performance metrics (Hopper and newer): means between two samples of ours, and counts. Of the child only.

One thread alone may use this: several at once crash the library (gpud's experience).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import pynvml  # type: ignore[import-untyped]

from exporter.nvml.calls import Nvml, NvmlError, Target
from exporter.nvml.codes import INVALID_ARGUMENT, NEVER, STATES, WHOLE
from exporter.nvml.fields import GPM, GPM_COUNTERS
from exporter.nvml.snapshot import Values

SHORTEST = 0.1
"""Seconds between two samples below which NVML gives no means."""


_COUNTERS = "gpm counters"


@dataclass(slots=True)
class _Sample:
    buffer: Any
    at: float


class Gpm:
    """The newest sample of each GPU and GPU instance. `longest` is the time in seconds after which one is too old."""

    def __init__(self, nvml: Nvml, longest: float) -> None:
        self._nvml, self._longest = nvml, longest
        self._samples: dict[Hashable, _Sample] = {}
        self._spare: list[Any] = []
        self._question = pynvml.c_nvmlGpmMetricsGet_t()
        """19 KB, most of them room for metrics: made once."""

    def read(self, target: Target, key: Hashable, now: float, gpu: Any, instance: int | None = None) -> Values:
        """Takes a sample of a GPU (its handle), or of a GPU instance, and gives what it tells with the one before.

        Empty at first, and where GPM is not supported. Raises NvmlError when the GPU, or NVML as a whole, is lost.
        """
        if "gpm" in target.never:
            return {}
        before = self._samples.get(key)
        if before is not None and now - before.at < SHORTEST:
            return {}
        try:
            if before is None and not self._supported(gpu):
                target.never.add("gpm")
                return {}
            sample = self._samples[key] = _Sample(self._take(gpu, instance), now)
            if before is None:
                return {}
            self._spare.append(before.buffer)
            return self._between(target, before, sample) if now - before.at <= self._longest else {}
        except NvmlError as error:
            if error.code in WHOLE or error.code in STATES:
                raise
            if error.code in NEVER:
                target.never.add("gpm")
            return {}

    def close(self) -> None:
        """Gives the samples back; the library must still be initialised."""
        for buffer in [*self._spare, *(sample.buffer for sample in self._samples.values())]:
            self._nvml.call("nvmlGpmSampleFree", buffer)
        self._samples, self._spare = {}, []

    def _supported(self, gpu: Any) -> bool:
        return bool(self._nvml.call("nvmlGpmQueryDeviceSupport", gpu).isSupportedDevice)

    def _take(self, gpu: Any, instance: int | None) -> Any:
        buffer = self._spare.pop() if self._spare else self._nvml.call("nvmlGpmSampleAlloc")
        try:
            if instance is None:
                self._nvml.call("nvmlGpmSampleGet", gpu, buffer)
            else:
                self._nvml.call("nvmlGpmMigSampleGet", gpu, instance, buffer)
        except NvmlError:
            self._spare.append(buffer)
            raise
        return buffer

    def _between(self, target: Target, before: _Sample, after: _Sample) -> Values:
        """What two samples tell. A driver that refuses the newer ids is asked for the others from then on."""
        ids = dict(GPM) if _COUNTERS in target.never else {**GPM, **GPM_COUNTERS}
        question = self._question
        question.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        question.numMetrics = len(ids)
        question.sample1, question.sample2 = before.buffer, after.buffer
        for place, id in enumerate(ids.values()):
            question.metrics[place].metricId = id
        try:
            self._nvml.call("nvmlGpmMetricsGet", question)
        except NvmlError as error:
            if error.code != INVALID_ARGUMENT or _COUNTERS in target.never:
                raise
            target.never.add(_COUNTERS)
            return {}
        answers = {key: question.metrics[place] for place, key in enumerate(ids)}
        return {
            key: int(it.value) if key in GPM_COUNTERS else it.value
            for key, it in answers.items()
            if it.nvmlReturn == 0 and math.isfinite(it.value) and it.value >= 0
        }
