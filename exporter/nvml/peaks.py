"""Peak operations per second by GPU model, from a table; an unknown model has none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from exporter.model import Sample
from exporter.nvml import metrics
from exporter.nvml.snapshot import Gpu

OWN = Path(__file__).with_name("peaks.yaml")
_MOST_BYTES = 1 << 20


class PeaksError(ValueError):
    """A wrong table: the message has the place and the right form."""


@dataclass(frozen=True, slots=True)
class _Model:
    name: re.Pattern[str]
    flops: Mapping[str, float]


class Peaks:
    """Tables in order of precedence. Raises PeaksError when `override` cannot be read or has another form."""

    def __init__(self, override: Path | None = None) -> None:
        self._given = [*_read(override)] if override else []

    @cached_property
    def _models(self) -> list[_Model]:
        return [*self._given, *_read(OWN)]

    def samples(self, gpu: Gpu) -> Iterator[Sample]:
        """Yields the peaks of a readable GPU: those of the model, and of the memory by bus width and clock."""
        labels = {"gpu": str(gpu.index), "gpu_uuid": gpu.uuid}
        if gpu.state != "ok":
            return
        for precision, flops in self.flops(gpu.identity.name).items():
            yield metrics.PEAK_FLOPS.sample(flops, {**labels, "precision": precision})
        bits, clock = gpu.value("memory_bus_bits"), gpu.value("clock_memory_max_mhz")
        if bits and clock:
            yield metrics.PEAK_BANDWIDTH.sample(int(bits * clock) * 1_000_000 * 2 // 8, labels)

    def flops(self, name: str) -> Mapping[str, float]:
        """Returns operations per second by precision, of the first model that matches the whole of NVML's name."""
        return next((model.flops for model in self._models if model.name.fullmatch(name)), {})


def _read(path: Path) -> Iterator[_Model]:
    import yaml  # where there are GPUs, or a table is given

    try:
        with path.open("rb") as file:
            content = yaml.safe_load(file.read(_MOST_BYTES))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise PeaksError(f"{path} cannot be read as a table of peaks: {error}") from error
    if not isinstance(content, dict):
        raise PeaksError(f"{path} is no table of peaks: at its top it needs patterns of model names")
    for name, peaks in content.items():
        yield _model(path, name, peaks)


def _model(path: Path, name: Any, peaks: Any) -> _Model:
    try:
        pattern = re.compile(name)
        flops = {str(precision): float(tera) * 1e12 for precision, tera in peaks.items()}
        if not flops or min(flops.values()) <= 0:
            raise ValueError
    except (AttributeError, TypeError, ValueError, re.error) as error:
        raise PeaksError(f"{path}: {name!r} needs teraflops by precision, such as bf16: 989") from error
    return _Model(pattern, flops)
