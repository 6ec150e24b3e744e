"""Which GPUs there are, what identifies them, and their MIG devices. Of the child only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from exporter.nvml.calls import Nvml, NvmlError, Target, Wanted, field_id
from exporter.nvml.codes import STATES, WHOLE
from exporter.nvml.fields import ALL_LINKS, FIELDS, LINK_FIELDS, TOTALS
from exporter.nvml.snapshot import FAST, SLOW, Driver, Identity, Mig

MOST_LINKS = 72
_MIG_ENABLED = 1
_BRANDS = ("Unknown", "Quadro", "Tesla", "NVS", "Grid", "GeForce", "Titan", "NvidiaVApps", "NvidiaVPC", "NvidiaVCS") + (
    ("NvidiaVWS", "NvidiaCloudGaming", "QuadroRTX", "NvidiaRTX", "Nvidia", "GeForceRTX", "TitanRTX")
)
_VIRTUALIZATION = ("none", "passthrough", "vgpu", "host_vgpu", "host_vsga")
_INFOROM = ("oem", "ecc", "power")


@dataclass(slots=True)
class MigTarget(Target):
    identity: Mig
    parent: Any


@dataclass(slots=True)
class Device(Target):
    """A GPU: `state` is that of snapshot.Gpu, `wanted` the fields to ask for by set."""

    identity: Identity
    state: str = "ok"
    migs: list[MigTarget] = field(default_factory=list)
    wanted: dict[str, list[Wanted]] = field(default_factory=dict)


def driver(nvml: Nvml) -> Driver:
    cuda = nvml.optional("nvmlSystemGetCudaDriverVersion_v2")
    return Driver(
        nvml.text("nvmlSystemGetDriverVersion"), nvml.text("nvmlSystemGetNVMLVersion"), 0 if cuda is None else cuda
    )


def enumerate_gpus(nvml: Nvml, turn: Callable[[int], None], skip: Collection[int]) -> list[Device]:
    """The GPUs there are, less those of the indices in `skip`; `turn(index)` is called before each is touched.

    One that is there but cannot even be identified has an identity of its index alone. Raises NvmlError when NVML as a
    whole is lost.
    """
    devices = []
    for index in range(nvml.call("nvmlDeviceGetCount")):
        if index in skip:
            continue
        turn(index)
        try:
            devices.append(take(nvml, index))
        except NvmlError as error:
            if error.code in WHOLE:
                raise
            state = STATES.get(error.code, "failed")
            devices.append(Device(None, identity=Identity("", index, "", ""), state=state))
    return devices


def take(nvml: Nvml, index: int, uuid: str = "") -> Device:
    """The GPU of that UUID, or index, with a new handle and a new memory of what works.

    One that is lost after it told its UUID has no more than that. Raises NvmlError.
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
        return Device(handle, identity=Identity(uuid, index, "", ""), state=STATES.get(error.code, "failed"))


def _identified(nvml: Nvml, handle: Any, index: int, uuid: str) -> Device:
    migs, links = mig_devices(nvml, handle), _links(nvml, handle)
    identity = Identity(
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
        migs=tuple(it.identity for it in migs or ()),
        vgpu=_named(_VIRTUALIZATION, nvml.optional("nvmlDeviceGetVirtualizationMode", handle)),
    )
    return Device(handle, identity=identity, migs=migs or [], wanted={it: _wanted(it, links) for it in (FAST, SLOW)})


def mig_devices(nvml: Nvml, handle: Any) -> list[MigTarget] | None:
    """The MIG devices of a GPU; None where MIG is off or unknown."""
    mode = nvml.optional("nvmlDeviceGetMigMode", handle)
    if not mode or mode[0] != _MIG_ENABLED:
        return None
    devices = []
    for index in range(nvml.optional("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        mig = nvml.optional("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if mig is None:  # that slot is empty
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
    """The id of a GPU or compute instance; None for what NVML says where there is none."""
    return None if number == 0xFFFF_FFFF else number


def _wanted(set: str, links: int) -> list[Wanted]:
    """The fields of a set, for the GPU and each of its links, that nvidia-ml-py knows."""
    named: list[tuple[str, str, int, int | None]] = [(key, name, 0, None) for key, name in FIELDS[set].items()]
    if set == FAST:
        named += [(key, name, ALL_LINKS, None) for key, name in TOTALS.items()]
    for link in range(links):
        named += [(key, name.format(link=link), link, link) for key, name in LINK_FIELDS[set].items()]
    numbered = [(key, field_id(name), scope, link) for key, name, scope, link in named]
    return [Wanted(key, number, scope, link) for key, number, scope, link in numbered if number is not None]


def _inforom(nvml: Nvml, handle: Any) -> Iterator[tuple[str, str]]:
    yield "image", nvml.text("nvmlDeviceGetInforomImageVersion", handle)
    for number, name in enumerate(_INFOROM):
        yield name, nvml.text("nvmlDeviceGetInforomVersion", handle, number)


def _links(nvml: Nvml, handle: Any) -> int:
    number = field_id("DEV_NVLINK_LINK_COUNT")
    read = nvml.fields(Target(handle), [Wanted("links", number)]) if number is not None else {}
    return min(int(read.get(None, {}).get("links", 0)), MOST_LINKS)


def _named(names: Sequence[str], number: int | None) -> str:
    return names[number] if number is not None and 0 <= number < len(names) else ""
