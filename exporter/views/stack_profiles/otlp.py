"""Profiles as OTLP's, by the messages of the package opentelemetry-proto (opentelemetry.proto.profiles.v1development).

The signal is alpha: fields were renamed in releases 1.9 and 1.10 of the protocol, and may be again.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as service
from opentelemetry.proto.common.v1 import common_pb2 as common

from exporter import __version__
from exporter.resource import SCHEMA_URL
from exporter.stack_profiles.bounds import bounded, labels, printable
from exporter.stack_profiles.model import Frame, StackProfile, StackSample
from exporter.views.stack_profiles.pprof import KERNEL

FRAME_TYPES = {"python": "cpython", "native": "native", "kernel": "kernel"}
"""Values of profile.frame.type (semantic conventions of profiles)."""
ATTRIBUTES = {"gpu_uuid": "hw.id", "kind": "gpu.cuda.memory.type", "rank": "rank"}
"""Attributes of a sample; the other labels are those of its process, and in the resource."""

ResourceOf = Callable[[Mapping[str, str]], Mapping[str, str | int]]
"""Returns the resource attributes of a process by the labels of its samples; `service.name` is among them."""


def encode(profile: StackProfile, resource_of: ResourceOf) -> bytes:
    """Return a request to export the profile: a resource for each process, and for each value a profile of its own."""
    request = service.ExportProfilesServiceRequest()
    tables = _Tables(request.dictionary)
    groups: defaultdict[tuple[str, str], list[StackSample]] = defaultdict(list)
    for sample in bounded(profile).samples:
        groups[sample.labels.get("pid", ""), sample.labels.get("comm", "")].append(sample)
    for samples in groups.values():
        made = request.resource_profiles.add(schema_url=SCHEMA_URL)
        for name, value in resource_of(samples[0].labels).items():
            made.resource.attributes.append(common.KeyValue(key=name, value=_value(value)))
        scope = made.scope_profiles.add()
        scope.scope.name, scope.scope.version = "accel-exporter", __version__
        rows = [(tables.stack(it), tables.attributes(it), it.values) for it in samples]
        for index in range(len(profile.sample_types)):
            _add(scope.profiles.add(), profile, index, rows, tables)
    return bytes(request.SerializeToString())


def _add(
    out: Any, profile: StackProfile, index: int, rows: list[tuple[int, list[int], tuple[int, ...]]], tables: _Tables
) -> None:
    name, unit = profile.sample_types[index]
    out.sample_type.type_strindex, out.sample_type.unit_strindex = tables.string(name), tables.string(unit)
    out.period_type.type_strindex, out.period_type.unit_strindex = map(tables.string, profile.period_type)
    out.period, out.profile_id = profile.period, secrets.token_bytes(16)
    out.time_unix_nano, out.duration_nano = profile.time_ns, profile.duration_ns
    for stack, attributes, values in rows:
        out.samples.add(stack_index=stack, attribute_indices=attributes, values=[values[index]])


def _value(value: str | int) -> Any:
    return (
        common.AnyValue(int_value=value) if isinstance(value, int) else common.AnyValue(string_value=printable(value))
    )


class _Tables:
    """The dictionary of a request: the first element of each table is the zero value, as the protocol demands."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self._strings, self._mappings = {"": 0}, {("", ""): 0}
        self._functions, self._attributes = {(0, 0): 0}, {("", ""): 0}
        self._locations: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {(): 0}
        out.string_table.append("")
        for table in (out.mapping_table, out.location_table, out.function_table, out.attribute_table, out.stack_table):
            table.add()
        out.link_table.add(trace_id=bytes(16), span_id=bytes(8))

    def string(self, text: str) -> int:
        text = printable(text)
        if text not in self._strings:
            self._strings[text] = len(self._strings)
            self._out.string_table.append(text)
        return self._strings[text]

    def attributes(self, sample: StackSample) -> list[int]:
        return [self._attribute(ATTRIBUTES[name], it) for name, it in labels(sample).items() if name in ATTRIBUTES]

    def stack(self, sample: StackSample) -> int:
        places = tuple(map(self._location, sample.stack))
        if places not in self._stacks:
            self._stacks[places] = len(self._stacks)
            self._out.stack_table.add(location_indices=places)
        return self._stacks[places]

    def _attribute(self, key: str, value: str) -> int:
        if (key, value) not in self._attributes:
            self._attributes[key, value] = len(self._attributes)
            self._out.attribute_table.add(key_strindex=self.string(key), value=_value(value))
        return self._attributes[key, value]

    def _location(self, frame: Frame) -> int:
        if frame not in self._locations:
            self._locations[frame] = len(self._locations) + 1
            kind = self._attribute("profile.frame.type", FRAME_TYPES[frame.kind])
            mapping = self._mapping(frame)
            made = self._out.location_table.add(mapping_index=mapping, address=frame.address, attribute_indices=[kind])
            if frame.function or not mapping:
                made.lines.add(function_index=self._function(frame), line=frame.line)
        return self._locations[frame]

    def _mapping(self, frame: Frame) -> int:
        key = frame.module or (KERNEL if frame.kind == "kernel" else ""), frame.build_id
        if key[0] and key not in self._mappings:
            self._mappings[key] = len(self._mappings)
            own = [self._attribute("process.executable.build_id.gnu", frame.build_id)] if frame.build_id else []
            self._out.mapping_table.add(filename_strindex=self.string(key[0]), attribute_indices=own)
        return self._mappings[key] if key[0] else 0

    def _function(self, frame: Frame) -> int:
        key = self.string(frame.name), self.string(frame.file)
        if key not in self._functions:
            self._functions[key] = len(self._functions)
            self._out.function_table.add(name_strindex=key[0], system_name_strindex=key[0], filename_strindex=key[1])
        return self._functions[key]
