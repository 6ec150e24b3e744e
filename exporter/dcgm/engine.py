"""The child that asks DCGM for profiling fields by NVIDIA's own Python bindings: one line of JSON for each reading.

`python -m exporter.dcgm.engine JSON`, with the bindings' folder on its path. DCGM may hang or crash with the driver:
then this process is given up. It ends when its input closes. docs/coming-from-dcgm-exporter.md lists what it calls.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from exporter.bpf import privileges
from exporter.child import die_with_parent, private_output
from exporter.dcgm.fields import FIELDS

EMBEDDED = "embedded"
GROUP = "accel_exporter_{pid}"
"""Of GPUs, and of fields; DCGM wants a name."""
KEEP_INTERVALS = 3
"""DCGM remembers a value for so many of them."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the child is told. `host_engine`: host or host:port of nv-hostengine, or EMBEDDED to run one in the child.

    `fields` are DCGM's numbers, `interval` is in seconds, `parent` the pid with which to end.
    """

    host_engine: str
    fields: tuple[int, ...]
    interval: float
    parent: int


@dataclass(frozen=True, slots=True)
class Told:
    """One reading at `at` (CLOCK_MONOTONIC): values by the field's name by UUID; `problem` says why there are none."""

    at: float
    values: dict[str, dict[str, int | float]]
    problem: str = ""


NAMES = {field.id: field.name for field in FIELDS if field.id}


def encode(told: Told) -> bytes:
    """One line, newline included."""
    return json.dumps(asdict(told)).encode() + b"\n"


def decode(line: bytes) -> Told:
    """The reading of a line. Raises ValueError when it is none."""
    try:
        told = Told(**json.loads(line))
        values = {str(uuid): {str(k): _number(v) for k, v in own.items()} for uuid, own in told.values.items()}
        return Told(float(told.at), values, str(told.problem))
    except (AttributeError, TypeError) as error:
        raise ValueError(f"no reading: {line[:100]!r}") from error


def _number(value: object) -> int | float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise TypeError(value)


class NoProfiling(Exception):
    """DCGM has profiling fields for none of the GPUs."""


class Engine:
    """A connection to DCGM that watches those of the fields that every GPU with profiling has.

    Raises NoProfiling, and whatever the bindings raise.
    """

    def __init__(self, asked: Asked) -> None:
        pydcgm, structs = importlib.import_module("pydcgm"), importlib.import_module("dcgm_structs")
        self._agent = importlib.import_module("dcgm_agent")
        self._handle = pydcgm.DcgmHandle(
            ipAddress=None if asked.host_engine == EMBEDDED else asked.host_engine,
            opMode=structs.DCGM_OPERATION_MODE_AUTO,
        )
        self._system = self._handle.GetSystem()
        supported = {gpu: self._supported(gpu) for gpu in self._system.discovery.GetAllSupportedGpuIds()}
        gpus = [gpu for gpu, fields in supported.items() if fields]
        fields = set(asked.fields).intersection(*(supported[gpu] for gpu in gpus))
        if not gpus or not fields:
            raise NoProfiling("DCGM has no profiling for the GPUs here; its log says why")
        name = GROUP.format(pid=os.getpid())
        self._uuids = {gpu: self._uuid(gpu) for gpu in gpus}
        self._group = self._system.GetGroupWithGpuIds(name, gpus)
        self._field_group = pydcgm.DcgmFieldGroup(self._handle, name, sorted(fields))
        keep = KEEP_INTERVALS * asked.interval
        self._group.samples.WatchFields(self._field_group, round(asked.interval * 1e6), keep, 0)
        self._system.UpdateAllFields(1)

    def values(self) -> dict[str, dict[str, int | float]]:
        """The newest values that are not blank, by UUID and the field's name."""
        latest = self._group.samples.GetLatest(self._field_group).values
        return {self._uuids[gpu]: dict(self._known(fields)) for gpu, fields in latest.items() if gpu in self._uuids}

    def _supported(self, gpu: int) -> set[int]:
        """The profiling fields of a GPU: DCGM refuses to watch any if one is among them that the GPU lacks."""
        try:
            told = self._agent.dcgmProfGetSupportedMetricGroups(self._handle.handle, gpu)
        except Exception:  # of the bindings' own: it has none
            return set()
        groups = [told.metricGroups[i] for i in range(told.numMetricGroups)]
        return {group.fieldIds[i] for group in groups for i in range(group.numFieldIds)}

    def _uuid(self, gpu: int) -> str:
        uuid = self._system.discovery.GetGpuAttributes(gpu).identifiers.uuid
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid)

    def _known(self, fields: Any) -> Iterator[tuple[str, int | float]]:
        for number, series in fields.items():
            newest = series[-1] if len(series) else None
            if newest is not None and not newest.isBlank and number in NAMES and math.isfinite(newest.value):
                yield NAMES[number], newest.value

    def close(self) -> None:
        """Takes the watch back. A host engine does so by itself when the connection ends."""
        self._group.samples.UnwatchFields(self._field_group)
        self._field_group.Delete()
        self._handle.Shutdown()


def main(argument: str) -> None:
    """Reads until the input closes; what goes wrong is told, and ends this process."""
    given = json.loads(argument)
    asked = Asked(**given | {"fields": tuple(given["fields"])})
    die_with_parent(asked.parent)
    with suppress(OSError):
        # DCGM's own profiling module wants the second, if the exporter was given it
        privileges.drop((privileges.PROFILING, "CAP_SYS_ADMIN"))
    output = private_output()
    try:
        engine = Engine(asked)
        while not _input_closed(asked.interval):
            _tell(output, Told(time.monotonic(), engine.values()))
        with suppress(Exception):
            engine.close()
    except BrokenPipeError:
        return
    except Exception as error:
        _tell(output, Told(time.monotonic(), {}, f"{type(error).__name__}: {error}"))


def _input_closed(seconds: float) -> bool:
    readable, _, _ = select.select([0], [], [], seconds)
    return bool(readable)


def _tell(output: int, told: Told) -> None:
    line = encode(told)
    while line:
        line = line[os.write(output, line) :]


if __name__ == "__main__":
    main(sys.argv[1])
