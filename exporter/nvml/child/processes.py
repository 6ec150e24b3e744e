"""Processes on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from exporter.nvml.child.calls import NvmlError, NvmlLibrary, NvmlTarget
from exporter.nvml.child.devices import GpuTarget, instance
from exporter.nvml.codes import NEVER, NOT_FOUND, STATES, WHOLE
from exporter.nvml.snapshot import GpuProcess

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


def processes(nvml: NvmlLibrary, device: GpuTarget, since_us: int) -> tuple[GpuProcess, ...]:
    """Returns the processes of the GPU and of its MIG devices.

    Utilisation is that of the newest sample after `since_us` (microseconds, Unix time). A process in several lists
    (compute and graphics) is there once, with the first kind. Raises NvmlError when the GPU, or NVML as a whole, is
    lost.
    """
    found: dict[tuple[int, int | None, int | None], GpuProcess] = {}
    for target in (device, *device.migs):
        for process in _listed(nvml, target):
            found.setdefault((process.pid, process.gpu_instance, process.compute_instance), process)
    used = {} if device.migs else _utilization(nvml, device, since_us)
    return tuple(replace(process, utilization=used.get(process.pid, {})) for process in list(found.values())[:MOST])


def _listed(nvml: NvmlLibrary, target: NvmlTarget) -> Iterator[GpuProcess]:
    for kind, functions in _LISTS.items():
        for listed in _newest(nvml, target, functions) or ():
            yield GpuProcess(
                pid=listed.pid,
                kind=kind,
                memory=listed.usedGpuMemory,
                gpu_instance=instance(listed.gpuInstanceId),
                compute_instance=instance(listed.computeInstanceId),
            )


def _utilization(nvml: NvmlLibrary, target: NvmlTarget, since_us: int) -> Mapping[int, Mapping[str, int]]:
    newest: dict[int, Any] = {}
    for sample in _newest(nvml, target, _UTILIZATION, since_us) or ():
        if sample.pid not in newest or newest[sample.pid].timeStamp < sample.timeStamp:
            newest[sample.pid] = sample
    return {pid: _engines(sample) for pid, sample in newest.items()}


def _engines(sample: Any) -> Mapping[str, int]:
    percents = {engine: getattr(sample, member, None) for engine, member in _ENGINES.items()}
    return {engine: percent for engine, percent in percents.items() if percent is not None and percent <= 100}


def _newest(nvml: NvmlLibrary, target: NvmlTarget, functions: tuple[str, ...], *arguments: int) -> Any:
    """Returns the result of the first supported function; None when none is supported, or there is no result."""
    for function in functions:
        if function in target.unsupported:
            continue
        try:
            return nvml.call(function, target.handle, *arguments)
        except NvmlError as error:
            if error.code in WHOLE or error.code in STATES:
                raise
            if error.code in NEVER:
                target.unsupported.add(function)
            if error.code == NOT_FOUND:  # no process has used the GPU since
                return None
    return None
