"""GPU performance metrics (GPM, Hopper and newer): means between two samples, and counts.

Only one thread may use GPM: several at once crash the library (gpud's experience).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import pynvml  # type: ignore[import-untyped]

from exporter.nvml.child.calls import NvmlError, NvmlLibrary, NvmlTarget
from exporter.nvml.codes import INVALID_ARGUMENT, NEVER, STATES, WHOLE
from exporter.nvml.reading import GpmCount, GpmMean
from exporter.nvml.readings import GPM
from exporter.nvml.snapshot import Values

SHORTEST = 0.1
"""Seconds between two samples below which NVML returns no means."""
_COUNTS = "gpm counts"
_MEAN_IDS = {reading.key: reading.source.number for reading in GPM if isinstance(reading.source, GpmMean)}
_COUNT_IDS = {reading.key: reading.source.number for reading in GPM if isinstance(reading.source, GpmCount)}


@dataclass(slots=True)
class _Sample:
    buffer: Any
    at: float


class Gpm:
    """The newest sample of each GPU and GPU instance. Samples older than `longest` seconds are not used."""

    def __init__(self, nvml: NvmlLibrary, longest: float) -> None:
        self._nvml, self._longest = nvml, longest
        self._samples: dict[Hashable, _Sample] = {}
        self._spare: list[Any] = []
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        """19 KB, most of them room for metrics: allocated once."""

    def read(self, target: NvmlTarget, key: Hashable, now: float, gpu: Any, instance: int | None = None) -> Values:
        """Takes a sample of a GPU (handle `gpu`) or of a GPU instance. Returns the values since the previous sample.

        The first call, and a GPU without GPM, give no values. `now` is in seconds of CLOCK_MONOTONIC. Raises NvmlError
        when the GPU, or NVML as a whole, is lost.
        """
        if "gpm" in target.unsupported:
            return {}
        before = self._samples.get(key)
        if before is not None and now - before.at < SHORTEST:
            return {}
        try:
            if before is None and not self._supported(gpu):
                target.unsupported.add("gpm")
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
                target.unsupported.add("gpm")
            return {}

    def close(self) -> None:
        """Frees all samples; the library must still be initialised."""
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

    def _between(self, target: NvmlTarget, before: _Sample, after: _Sample) -> Values:
        """Returns the values between two samples. Newer ids that the driver refused once are no longer requested."""
        ids = _MEAN_IDS if _COUNTS in target.unsupported else {**_MEAN_IDS, **_COUNT_IDS}
        request = self._request
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(ids)
        request.sample1, request.sample2 = before.buffer, after.buffer
        for place, number in enumerate(ids.values()):
            request.metrics[place].metricId = number
        try:
            self._nvml.call("nvmlGpmMetricsGet", request)
        except NvmlError as error:
            if error.code != INVALID_ARGUMENT or _COUNTS in target.unsupported:
                raise
            target.unsupported.add(_COUNTS)
            return {}
        results = {key: request.metrics[place] for place, key in enumerate(ids)}
        return {
            key: int(result.value) if key in _COUNT_IDS else result.value
            for key, result in results.items()
            if result.nvmlReturn == 0 and math.isfinite(result.value) and result.value >= 0
        }
