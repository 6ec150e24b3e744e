"""Messages of the NVML child to the parent, and snapshots of GPUs: dataclasses that cross the pipe as lines of JSON.

Values keep NVML's own units and integers, so that equal calls give equal values; values that could not be read are
absent. Times `at` are seconds of CLOCK_MONOTONIC, which both processes share.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FAST, PROCESSES, SLOW = "fast", "processes", "slow"
SETS = (FAST, PROCESSES, SLOW)

Values = Mapping[str, int | float]
"""Readings by key of exporter/nvml/readings."""


@dataclass(frozen=True, slots=True)
class DriverVersions:
    """Versions of driver and library. `cuda` is the newest supported CUDA, as 13000 for 13.0; 0 when unknown."""

    version: str
    nvml: str
    cuda: int


@dataclass(frozen=True, slots=True)
class Mig:
    """A MIG device (a compute instance within a GPU instance). `profile` as in 1g.10gb, `index` within its GPU."""

    uuid: str
    index: int
    profile: str
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """Constant properties of a GPU. Empty strings and None stand for properties that NVML does not report.

    `uuid` and `pci_bus_id` are as NVML prints them (GPU-…, 00000000:3B:00.0), `minor` the N of /dev/nvidiaN, `links`
    the number of NVLinks, `inforom` versions by object: image, oem, ecc, power.
    """

    uuid: str
    index: int
    name: str
    pci_bus_id: str
    serial: str = ""
    minor: int | None = None
    brand: str = ""
    vbios: str = ""
    board_part_number: str = ""
    inforom: Mapping[str, str] = field(default_factory=dict)
    compute_capability: str = ""
    links: int = 0
    mig_enabled: bool = False
    migs: tuple[Mig, ...] = ()
    vgpu: str = ""
    """Virtualisation mode: none, passthrough, vgpu (this is a guest), host_vgpu, host_vsga; empty when unknown."""

    @property
    def key(self) -> str:
        """The UUID; #INDEX for a GPU with an unreadable UUID."""
        return self.uuid or f"#{self.index}"


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU, by its pid in the host's pid namespace.

    `kind` is compute, graphics or mps; `memory` bytes or None where the driver reports none; instance ids are MIG's.
    `utilization` is the newest sample in percent by engine: sm, memory, encoder, decoder, jpeg, ofa.
    """

    pid: int
    kind: str
    memory: int | None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    utilization: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Readings:
    """One set of a GPU, read at one time: values of the GPU, by link, and by UUID of MIG devices; and processes."""

    at: float
    values: Values = field(default_factory=dict)
    links: Mapping[int, Values] = field(default_factory=dict)
    migs: Mapping[str, Values] = field(default_factory=dict)
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """An event of NVML at wall time `time` (seconds); `kind` is xid, ecc_double_bit or such, `data` an Xid's number."""

    uuid: str
    time: float
    kind: str
    data: int
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU with the newest readings of each set; a set that is too old or failed is absent.

    `state`: ok, lost (removed or off the bus), reset_required, failed (unreadable), stalled (a call never returns).
    """

    identity: GpuIdentity
    state: str = "ok"
    sets: Mapping[str, Readings] = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        return self.identity.uuid

    @property
    def index(self) -> int:
        return self.identity.index

    def value(self, key: str) -> int | float | None:
        """Returns the reading of a key out of any set; None when there is none."""
        return next((readings.values[key] for readings in self.sets.values() if key in readings.values), None)

    def link_values(self, link: int) -> dict[str, int | float]:
        return {key: value for readings in self.sets.values() for key, value in readings.links.get(link, {}).items()}

    def mig_values(self, uuid: str) -> dict[str, int | float]:
        return {key: value for readings in self.sets.values() for key, value in readings.migs.get(uuid, {}).items()}

    @property
    def processes(self) -> tuple[GpuProcess, ...]:
        return self.sets[PROCESSES].processes if PROCESSES in self.sets else ()


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """All current readings. `state`: running, starting, released, stalled, restarting or absent, for `reason`."""

    state: str = "starting"
    reason: str = ""
    driver: DriverVersions | None = None
    gpus: tuple[Gpu, ...] = ()
    events: tuple[Event, ...] = ()
    """The newest events, oldest first."""


@dataclass(frozen=True, slots=True)
class ChildOptions:
    """Settings of the child.

    `intervals`: seconds by set. `skip`: indices of GPUs not to call. `parent`: the parent's pid.
    """

    intervals: Mapping[str, float]
    skip: tuple[int, ...]
    parent: int


# Messages of the child, one a line.


@dataclass(frozen=True, slots=True)
class NvmlStarted:
    """NVML is initialised, or GPUs changed: these GPUs are present and no others."""

    driver: DriverVersions
    gpus: tuple[GpuIdentity, ...]


@dataclass(frozen=True, slots=True)
class SetRead:
    """A set of one GPU was read; `state` is Gpu.state, `gpu` GpuIdentity.key. A GPU that is not ok has no readings."""

    gpu: str
    set_name: str
    state: str
    readings: Readings | None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life. `doing` is the index of the GPU of the next calls, if any; `calls` counts the calls so far."""

    at: float
    doing: int | None
    calls: int


@dataclass(frozen=True, slots=True)
class NvmlFailed:
    """NVML as a whole failed: `code` is NVML's (9 no driver, 18 another version), `reason` a sentence."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Released:
    """All handles are closed; the child opens them again at `until` (CLOCK_MONOTONIC)."""

    until: float


Message = NvmlStarted | SetRead | Heartbeat | NvmlFailed | Released | Event
_MESSAGES: Mapping[str, type[Any]] = {
    type_.__name__: type_ for type_ in (NvmlStarted, SetRead, Heartbeat, NvmlFailed, Released, Event)
}


def _members(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_members)  # asdict() copies every value, which costs more


def encode(message: Message) -> bytes:
    """Returns the message as one line, newline included."""
    return _ENCODER.encode({type(message).__name__: message}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Returns the message of a line. Raises ValueError for a line of another form."""
    try:
        [(name, content)] = json.loads(line).items()
        message: Message = _made(_MESSAGES[name], content)
        return message
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no message of the NVML child: {line[:100]!r}") from error


def _made(type_: type[Any], content: dict[str, Any]) -> Any:
    """Returns an instance from its members; only the types named here contain other instances."""
    if type_ is NvmlStarted:
        return NvmlStarted(
            DriverVersions(**content["driver"]), tuple(_made(GpuIdentity, gpu) for gpu in content["gpus"])
        )
    if type_ is GpuIdentity:
        return GpuIdentity(**content | {"migs": tuple(Mig(**mig) for mig in content["migs"])})
    if type_ is SetRead:
        readings = content["readings"]
        return SetRead(**content | {"readings": readings and _made(Readings, readings)})
    if type_ is Readings:
        links = {int(link): values for link, values in content["links"].items()}
        return Readings(
            **content | {"links": links, "processes": tuple(GpuProcess(**process) for process in content["processes"])}
        )
    return type_(**content)
