"""What the NVML child tells its parent: dataclasses that cross the pipe as lines of JSON.

Values keep NVML's own units and integers (the key ends in the unit), so that equal calls give equal values; what could
not be read is absent. Times `at` are seconds of CLOCK_MONOTONIC, which both processes share.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FAST, PROCESSES, SLOW = "fast", "processes", "slow"
SETS = (FAST, PROCESSES, SLOW)

Values = Mapping[str, int | float]
"""By keys of exporter/nvml/fields.py."""


@dataclass(frozen=True, slots=True)
class Driver:
    """The loaded driver and its library. `cuda` is the newest CUDA it supports, as 13000 for 13.0; 0 when unknown."""

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
class Identity:
    """What does not change about a GPU. Empty strings and None stand for what NVML does not tell.

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
    """Virtualisation mode: none, passthrough, vgpu (this is a guest), host_vgpu, host_vsga; empty when not told."""

    @property
    def key(self) -> str:
        """The UUID; #INDEX for a GPU that does not tell even that."""
        return self.uuid or f"#{self.index}"


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a GPU, by its pid in the host's pid namespace.

    `kind` is compute, graphics or mps; `memory` bytes or None where the driver does not tell; instance ids are MIG's.
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
    """One set of a GPU, read at one time: its own values, those by link and by UUID of MIG devices, its processes."""

    at: float
    values: Values = field(default_factory=dict)
    links: Mapping[int, Values] = field(default_factory=dict)
    migs: Mapping[str, Values] = field(default_factory=dict)
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """An event that NVML told at wall time `time` (seconds), by `kind` as in xid or ecc_double_bit; `data`: the Xid."""

    uuid: str
    time: float
    kind: str
    data: int
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU with the newest readings of each set; a set that is too old or failed is not there.

    `state`: ok, lost (it is gone), reset_required, failed (nothing can be read), stalled (a call never returns).
    """

    identity: Identity
    state: str = "ok"
    sets: Mapping[str, Readings] = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        return self.identity.uuid

    @property
    def index(self) -> int:
        return self.identity.index

    def value(self, key: str) -> int | float | None:
        """The reading of that key, whichever set it belongs to; None when it is not known."""
        return next((it.values[key] for it in self.sets.values() if key in it.values), None)

    def link_values(self, link: int) -> dict[str, int | float]:
        return {key: value for it in self.sets.values() for key, value in it.links.get(link, {}).items()}

    def mig_values(self, uuid: str) -> dict[str, int | float]:
        return {key: value for it in self.sets.values() for key, value in it.migs.get(uuid, {}).items()}

    @property
    def processes(self) -> tuple[Process, ...]:
        return self.sets[PROCESSES].processes if PROCESSES in self.sets else ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is known now. `state`: running, starting, released, stalled, restarting or absent; `reason` says why."""

    state: str = "starting"
    reason: str = ""
    driver: Driver | None = None
    gpus: tuple[Gpu, ...] = ()
    events: tuple[Event, ...] = ()
    """The newest ones, oldest first."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the child is told at its start.

    `intervals`: seconds by set. `skip`: indices of GPUs not to touch. `parent`: the pid with which to end.
    """

    intervals: Mapping[str, float]
    skip: tuple[int, ...]
    parent: int


# Messages of the child, one a line.


@dataclass(frozen=True, slots=True)
class Started:
    """NVML is initialised, or was again: these GPUs are there and no others."""

    driver: Driver
    gpus: tuple[Identity, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """A set of one GPU was read; `state` is that of Gpu, `gpu` its Identity.key. One that is not ok has no readings."""

    gpu: str
    set: str
    state: str
    readings: Readings | None


@dataclass(frozen=True, slots=True)
class Beat:
    """The child lives. `doing` is the index of the GPU it turns to next, if any; `calls` counts its NVML calls."""

    at: float
    doing: int | None
    calls: int


@dataclass(frozen=True, slots=True)
class Failed:
    """NVML as a whole does not work: `code` is NVML's (9 no driver, 18 another version), `reason` a sentence."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Released:
    """All handles are given back; they are taken again at `until` (CLOCK_MONOTONIC)."""

    until: float


Message = Started | Read | Beat | Failed | Released | Event
_MESSAGES: Mapping[str, type[Any]] = {type_.__name__: type_ for type_ in (Started, Read, Beat, Failed, Released, Event)}


def _members(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_members)  # asdict() copies all there is, which costs more


def encode(message: Message) -> bytes:
    """One line, newline included."""
    return _ENCODER.encode({type(message).__name__: message}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message of a line. Raises ValueError when it is none."""
    try:
        [(name, content)] = json.loads(line).items()
        message: Message = _made(_MESSAGES[name], content)
        return message
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no message of the NVML child: {line[:100]!r}") from error


def _made(type_: type[Any], content: dict[str, Any]) -> Any:
    """An instance from its members; only the fields named here hold others."""
    if type_ is Started:
        return Started(Driver(**content["driver"]), tuple(_made(Identity, it) for it in content["gpus"]))
    if type_ is Identity:
        return Identity(**content | {"migs": tuple(Mig(**it) for it in content["migs"])})
    if type_ is Read:
        readings = content["readings"]
        return Read(**content | {"readings": readings and _made(Readings, readings)})
    if type_ is Readings:
        links = {int(link): values for link, values in content["links"].items()}
        return Readings(**content | {"links": links, "processes": tuple(Process(**it) for it in content["processes"])})
    return type_(**content)
