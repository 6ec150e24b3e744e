"""Enumeration of GPUs and MIG devices, with their identities."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from exporter.nvml.child.calls import NvmlError, NvmlLibrary, NvmlTarget
from exporter.nvml.child.queries import FieldRequest, field_id, field_requests
from exporter.nvml.codes import STATES, WHOLE
from exporter.nvml.snapshot import FAST, SLOW, DriverVersions, GpuIdentity, Mig

MOST_LINKS = 72
_MIG_ENABLED = 1
_BRANDS = ("Unknown", "Quadro", "Tesla", "NVS", "Grid", "GeForce", "Titan", "NvidiaVApps", "NvidiaVPC", "NvidiaVCS") + (
    ("NvidiaVWS", "NvidiaCloudGaming", "QuadroRTX", "NvidiaRTX", "Nvidia", "GeForceRTX", "TitanRTX")
)
_VIRTUALIZATION = ("none", "passthrough", "vgpu", "host_vgpu", "host_vsga")
_INFOROM = ("oem", "ecc", "power")


@dataclass(slots=True)
class MigTarget(NvmlTarget):
    identity: Mig
    parent: Any


@dataclass(slots=True)
class GpuTarget(NvmlTarget):
    """A GPU: `state` is that of snapshot.Gpu, `requests` are the fields to read by set."""

    identity: GpuIdentity
    state: str = "ok"
    migs: list[MigTarget] = field(default_factory=list)
    requests: dict[str, list[FieldRequest]] = field(default_factory=dict)


def driver(nvml: NvmlLibrary) -> DriverVersions:
    cuda = nvml.optional("nvmlSystemGetCudaDriverVersion_v2")
    return DriverVersions(
        nvml.text("nvmlSystemGetDriverVersion"), nvml.text("nvmlSystemGetNVMLVersion"), 0 if cuda is None else cuda
    )


def enumerate_gpus(nvml: NvmlLibrary, touching: Callable[[int], None], skip: Collection[int]) -> list[GpuTarget]:
    """Opens all GPUs but those of the indices in `skip`. Calls `touching(index)` before the first call about each GPU.

    A GPU that cannot be identified has an identity of its index alone. Raises NvmlError when NVML as a whole is lost.
    """
    devices = []
    for index in range(nvml.call("nvmlDeviceGetCount")):
        if index in skip:
            continue
        touching(index)
        try:
            devices.append(open_device(nvml, index))
        except NvmlError as error:
            if error.code in WHOLE:
                raise
            state = STATES.get(error.code, "failed")
            devices.append(GpuTarget(None, identity=GpuIdentity("", index, "", ""), state=state))
    return devices


def open_device(nvml: NvmlLibrary, index: int, uuid: str = "") -> GpuTarget:
    """Opens the GPU of a UUID, or of an index, with a new handle and nothing marked as unsupported.

    A GPU that is lost after its UUID was read has an identity of UUID and index alone. Raises NvmlError.
    """
    if uuid:
        handle = nvml.call("nvmlDeviceGetHandleByUUID", uuid.encode())
    else:
        handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
    uuid = nvml.call("nvmlDeviceGetUUID", handle)
    try:
        return _identified(nvml, handle, index, uuid)
    except NvmlError as error:
        if error.code in WHOLE:
            raise
        return GpuTarget(handle, identity=GpuIdentity(uuid, index, "", ""), state=STATES.get(error.code, "failed"))


def _identified(nvml: NvmlLibrary, handle: Any, index: int, uuid: str) -> GpuTarget:
    migs, links = mig_devices(nvml, handle), _links(nvml, handle)
    identity = GpuIdentity(
        uuid=uuid,
        index=index,
        name=nvml.text("nvmlDeviceGetName", handle),
        pci_bus_id=nvml.call("nvmlDeviceGetPciInfo", handle).busId,
        serial=nvml.text("nvmlDeviceGetSerial", handle),
        minor=nvml.optional("nvmlDeviceGetMinorNumber", handle),
        brand=_named(_BRANDS, nvml.optional("nvmlDeviceGetBrand", handle)),
        vbios=nvml.text("nvmlDeviceGetVbiosVersion", handle),
        board_part_number=nvml.text("nvmlDeviceGetBoardPartNumber", handle),
        inforom={name: version for name, version in _inforom(nvml, handle) if version},
        compute_capability=".".join(map(str, nvml.optional("nvmlDeviceGetCudaComputeCapability", handle) or ())),
        links=links,
        mig_enabled=migs is not None,
        migs=tuple(mig.identity for mig in migs or ()),
        vgpu=_named(_VIRTUALIZATION, nvml.optional("nvmlDeviceGetVirtualizationMode", handle)),
    )
    return GpuTarget(
        handle,
        identity=identity,
        migs=migs or [],
        requests={name: field_requests(name, links) for name in (FAST, SLOW)},
    )


def mig_devices(nvml: NvmlLibrary, handle: Any) -> list[MigTarget] | None:
    """Returns the MIG devices of a GPU; None where MIG is off or unknown."""
    mode = nvml.optional("nvmlDeviceGetMigMode", handle)
    if not mode or mode[0] != _MIG_ENABLED:
        return None
    devices = []
    for index in range(nvml.optional("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        mig = nvml.optional("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if mig is None:  # an empty slot
            continue
        identity = Mig(
            uuid=nvml.text("nvmlDeviceGetUUID", mig),
            index=index,
            profile=nvml.text("nvmlDeviceGetName", mig).rpartition("MIG ")[2],
            gpu_instance=nvml.call("nvmlDeviceGetGpuInstanceId", mig),
            compute_instance=nvml.call("nvmlDeviceGetComputeInstanceId", mig),
        )
        devices.append(MigTarget(mig, identity=identity, parent=handle))
    return devices


def instance(number: int) -> int | None:
    """Returns the id of a GPU or compute instance; None for the number that NVML uses for no instance."""
    return None if number == 0xFFFF_FFFF else number


def _inforom(nvml: NvmlLibrary, handle: Any) -> Iterator[tuple[str, str]]:
    yield "image", nvml.text("nvmlDeviceGetInforomImageVersion", handle)
    for number, name in enumerate(_INFOROM):
        yield name, nvml.text("nvmlDeviceGetInforomVersion", handle, number)


def _links(nvml: NvmlLibrary, handle: Any) -> int:
    number = field_id("DEV_NVLINK_LINK_COUNT")
    read = nvml.fields(NvmlTarget(handle), [FieldRequest("links", number)]) if number is not None else {}
    return min(int(read.get(None, {}).get("links", 0)), MOST_LINKS)


def _named(names: Sequence[str], number: int | None) -> str:
    return names[number] if number is not None and 0 <= number < len(names) else ""
