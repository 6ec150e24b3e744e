"""Child process that reads profiling fields of DCGM by NVIDIA's Python bindings: one line of JSON for each reading.

`python -m exporter.compat.dcgm.engine JSON`, with the bindings' folder on the path. DCGM may hang or crash with the
driver: then the exporter abandons this process. The process ends when its input closes.
docs/coming-from-dcgm-exporter.md lists the calls.
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

from exporter.background.child import die_with_parent, private_output
from exporter.bpf import privileges
from exporter.compat.dcgm.fields import FIELDS

EMBEDDED = "embedded"
GROUP = "accel_exporter_{pid}"
"""Name of the groups of GPUs and of fields; DCGM requires one."""
KEEP_INTERVALS = 3
"""Number of intervals for which DCGM keeps a value."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Settings of the child. `host_engine`: host or host:port of nv-hostengine, or EMBEDDED to run one in the child.

    `fields` are DCGM's field ids, `interval` is in seconds, `parent` the pid of the process with which the child ends.
    """

    host_engine: str
    fields: tuple[int, ...]
    interval: float
    parent: int


@dataclass(frozen=True, slots=True)
class ProfilingReading:
    """One reading at `at` (CLOCK_MONOTONIC): values by UUID and field name; `problem` is the reason for no values."""

    at: float
    values: dict[str, dict[str, int | float]]
    problem: str = ""


NAMES = {field.field_id: field.name for field in FIELDS if field.field_id}


def encode(reading: ProfilingReading) -> bytes:
    """Returns the reading as one line, newline included."""
    return json.dumps(asdict(reading)).encode() + b"\n"


def decode(line: bytes) -> ProfilingReading:
    """Returns the reading of a line. Raises ValueError for a line of another form."""
    try:
        reading = ProfilingReading(**json.loads(line))
        values = {
            str(uuid): {str(name): _number(value) for name, value in own.items()}
            for uuid, own in reading.values.items()
        }
        return ProfilingReading(float(reading.at), values, str(reading.problem))
    except (AttributeError, TypeError) as error:
        raise ValueError(f"no reading: {line[:100]!r}") from error


def _number(value: object) -> int | float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise TypeError(value)


class NoProfiling(Exception):
    """DCGM has profiling fields for none of the GPUs."""


class Engine:
    """A connection to DCGM that watches the fields that every GPU with profiling supports.

    Raises NoProfiling, and any exception of the bindings.
    """

    def __init__(self, options: EngineOptions) -> None:
        pydcgm, structs = importlib.import_module("pydcgm"), importlib.import_module("dcgm_structs")
        self._agent = importlib.import_module("dcgm_agent")
        self._handle = pydcgm.DcgmHandle(
            ipAddress=None if options.host_engine == EMBEDDED else options.host_engine,
            opMode=structs.DCGM_OPERATION_MODE_AUTO,
        )
        self._system = self._handle.GetSystem()
        supported = {gpu: self._supported(gpu) for gpu in self._system.discovery.GetAllSupportedGpuIds()}
        gpus = [gpu for gpu, fields in supported.items() if fields]
        fields = set(options.fields).intersection(*(supported[gpu] for gpu in gpus))
        if not gpus or not fields:
            raise NoProfiling("DCGM has no profiling for the GPUs here; its log has the reason")
        name = GROUP.format(pid=os.getpid())
        self._uuids = {gpu: self._uuid(gpu) for gpu in gpus}
        self._group = self._system.GetGroupWithGpuIds(name, gpus)
        self._field_group = pydcgm.DcgmFieldGroup(self._handle, name, sorted(fields))
        keep = KEEP_INTERVALS * options.interval
        self._group.samples.WatchFields(self._field_group, round(options.interval * 1e6), keep, 0)
        self._system.UpdateAllFields(1)

    def values(self) -> dict[str, dict[str, int | float]]:
        """Returns the newest values that are not blank, by UUID and field name."""
        latest = self._group.samples.GetLatest(self._field_group).values
        return {
            self._uuids[gpu]: dict(self._valid_values(fields)) for gpu, fields in latest.items() if gpu in self._uuids
        }

    def _supported(self, gpu: int) -> set[int]:
        """Returns the profiling fields of a GPU: DCGM refuses to watch any field if the GPU lacks one of them."""
        try:
            supported = self._agent.dcgmProfGetSupportedMetricGroups(self._handle.handle, gpu)
        except Exception:  # of the bindings' own classes: the GPU has no profiling
            return set()
        groups = [supported.metricGroups[i] for i in range(supported.numMetricGroups)]
        return {group.fieldIds[i] for group in groups for i in range(group.numFieldIds)}

    def _uuid(self, gpu: int) -> str:
        uuid = self._system.discovery.GetGpuAttributes(gpu).identifiers.uuid
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid)

    def _valid_values(self, fields: Any) -> Iterator[tuple[str, int | float]]:
        for number, series in fields.items():
            newest = series[-1] if len(series) else None
            if newest is not None and not newest.isBlank and number in NAMES and math.isfinite(newest.value):
                yield NAMES[number], newest.value

    def close(self) -> None:
        """Ends the watch. A host engine does so by itself when the connection ends."""
        self._group.samples.UnwatchFields(self._field_group)
        self._field_group.Delete()
        self._handle.Shutdown()


def main(argument: str) -> None:
    """Reads until the input closes. Sends an error to the parent, and ends after an error."""
    given = json.loads(argument)
    options = EngineOptions(**given | {"fields": tuple(given["fields"])})
    die_with_parent(options.parent)
    with suppress(OSError):
        # DCGM's own profiling module needs the second one, if the exporter has it
        privileges.drop((privileges.PROFILING, "CAP_SYS_ADMIN"))
    output = private_output()
    try:
        engine = Engine(options)
        while not _input_closed(options.interval):
            _send(output, ProfilingReading(time.monotonic(), engine.values()))
        with suppress(Exception):
            engine.close()
    except BrokenPipeError:
        return
    except Exception as error:
        _send(output, ProfilingReading(time.monotonic(), {}, f"{type(error).__name__}: {error}"))


def _input_closed(seconds: float) -> bool:
    readable, _, _ = select.select([0], [], [], seconds)
    return bool(readable)


def _send(output: int, reading: ProfilingReading) -> None:
    line = encode(reading)
    while line:
        line = line[os.write(output, line) :]


if __name__ == "__main__":
    main(sys.argv[1])
