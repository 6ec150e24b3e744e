"""Events of NVML: Xids, ECC errors and others.

NVML reports no event from before the registration: the kernel log has those.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from exporter.nvml.child.calls import NvmlError, NvmlLibrary, address
from exporter.nvml.child.devices import GpuTarget, instance
from exporter.nvml.codes import TIMEOUT, WHOLE
from exporter.nvml.snapshot import Event

KINDS = {
    0x2: "ecc_double_bit",
    0x8: "xid",
    0x80: "power_source",
    0x100: "mig_config",
    0x200: "ecc_single_bit_storm",
    0x400: "dram_retirement",
    0x800: "dram_retirement_failure",
    0x1000: "poison_non_fatal",
    0x2000: "poison_fatal",
    0x4000: "gpu_unavailable",
    0x8000: "recovery_action",
}
"""Kinds by nvmlEventType; events of every P-state, clock and single-bit error are not registered."""
MOST_AT_ONCE = 256


class NvmlEvents:
    """The event set of all GPUs."""

    def __init__(self, nvml: NvmlLibrary) -> None:
        self._nvml = nvml
        self._set: Any = None
        self._uuids: dict[int, str] = {}

    def register(self, devices: Sequence[GpuTarget]) -> None:
        """Registers the supported events of these GPUs, in place of those registered before."""
        self.close()
        self._set = self._nvml.optional("nvmlEventSetCreate")
        if self._set is None:
            return
        for device in devices:
            if device.state == "ok":
                self._register(device)
        if not self._uuids:
            self.close()

    def _register(self, device: GpuTarget) -> None:
        supported = self._nvml.optional("nvmlDeviceGetSupportedEventTypes", device.handle)
        kinds = sum(KINDS) & (supported or 0)
        if not kinds:
            return
        with suppress(NvmlError):
            self._nvml.call("nvmlDeviceRegisterEvents", device.handle, kinds, self._set)
            self._uuids[address(device.handle)] = device.identity.uuid

    def wait(self, seconds: float) -> Iterator[Event]:
        """Waits up to `seconds` for an event, and yields all events there are then. `active` must be true."""
        timeout = max(0, int(seconds * 1000))
        for _ in range(MOST_AT_ONCE):
            try:
                data = self._nvml.call("nvmlEventSetWait_v2", self._set, timeout)
            except NvmlError as error:
                if error.code == TIMEOUT:
                    return
                self._set = None  # every later wait would fail at once
                if error.code in WHOLE:
                    raise
                return
            timeout = 0
            yield Event(
                uuid=self._uuids.get(address(data.device), ""),
                time=time.time(),
                kind=KINDS.get(data.eventType, hex(data.eventType)),
                data=data.eventData,
                gpu_instance=instance(data.gpuInstanceId),
                compute_instance=instance(data.computeInstanceId),
            )

    @property
    def active(self) -> bool:
        return self._set is not None

    def close(self) -> None:
        if self._set is not None:
            self._nvml.optional("nvmlEventSetFree", self._set)
        self._set, self._uuids = None, {}
