"""The processes on a GPU. Of the child only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from exporter.nvml.calls import Nvml, NvmlError, Target
from exporter.nvml.codes import NEVER, NOT_FOUND, STATES, WHOLE
from exporter.nvml.devices import Device, instance
from exporter.nvml.snapshot import Process

_LISTS = {
    "mps": ("nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2"),
    "compute": ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"),
    "graphics": ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"),
}
_UTILIZATION = ("nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization")
_ENGINES = {
    "sm": "smUtil",
    "memory": "memUtil",
    "encoder": "encUtil",
    "decoder": "decUtil",
    "jpeg": "jpgUtil",
    "ofa": "ofaUtil",
}
MOST = 4096


def processes(nvml: Nvml, device: Device, since_us: int) -> tuple[Process, ...]:
    """Those of the GPU and of its MIG devices; utilisation by the newest sample after `since_us` (Unix time).

    One that is in several lists (it computes and draws) is there once, of the first kind. Raises NvmlError when the
    GPU, or NVML as a whole, is lost.
    """
    found: dict[tuple[int, int | None, int | None], Process] = {}
    for target in (device, *device.migs):
        for process in _listed(nvml, target):
            found.setdefault((process.pid, process.gpu_instance, process.compute_instance), process)
    used = {} if device.migs else _utilization(nvml, device, since_us)
    return tuple(replace(it, utilization=used.get(it.pid, {})) for it in list(found.values())[:MOST])


def _listed(nvml: Nvml, target: Target) -> Iterator[Process]:
    for kind, functions in _LISTS.items():
        for it in _newest(nvml, target, functions) or ():
            yield Process(
                pid=it.pid,
                kind=kind,
                memory=it.usedGpuMemory,
                gpu_instance=instance(it.gpuInstanceId),
                compute_instance=instance(it.computeInstanceId),
            )


def _utilization(nvml: Nvml, target: Target, since_us: int) -> Mapping[int, Mapping[str, int]]:
    newest: dict[int, Any] = {}
    for sample in _newest(nvml, target, _UTILIZATION, since_us) or ():
        if sample.pid not in newest or newest[sample.pid].timeStamp < sample.timeStamp:
            newest[sample.pid] = sample
    return {pid: _engines(sample) for pid, sample in newest.items()}


def _engines(sample: Any) -> Mapping[str, int]:
    percents = {engine: getattr(sample, member, None) for engine, member in _ENGINES.items()}
    return {engine: percent for engine, percent in percents.items() if percent is not None and percent <= 100}


def _newest(nvml: Nvml, target: Target, functions: tuple[str, ...], *arguments: int) -> Any:
    """The result of the first of the functions that is supported; None when there is none, or nothing to tell."""
    for function in functions:
        if function in target.never:
            continue
        try:
            return nvml.call(function, target.handle, *arguments)
        except NvmlError as error:
            if error.code in WHOLE or error.code in STATES:
                raise
            if error.code in NEVER:
                target.never.add(function)
            if error.code == NOT_FOUND:  # no process has used it since
                return None
    return None
