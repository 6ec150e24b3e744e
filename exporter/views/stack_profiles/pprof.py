"""Profiles as pprof's gzip-compressed profile.proto (github.com/google/pprof, proto/profile.proto).

The field numbers are those of its messages; what the comments there demand is in the docstrings here.
"""

from __future__ import annotations

import gzip

from exporter.stack_profiles.bounds import bounded, labels, printable
from exporter.stack_profiles.model import Frame, StackProfile, StackSample, ValueType
from exporter.views.stack_profiles.protobuf import Message

KERNEL = "[kernel.kallsyms]"
"""File name of the kernel's mapping, as perf has it."""


def encode(profile: StackProfile) -> bytes:
    """Return the profile, bounded, as a gzip file. Labels are strings; values below 0 (of a delta) stay below 0."""
    return gzip.compress(_Encoder().encode(bounded(profile)), 5, mtime=0)


class _Encoder:
    """One profile's tables: strings (the first is empty), and functions, mappings and locations, numbered from 1."""

    def __init__(self) -> None:
        self._strings = {"": 0}
        self._functions: dict[tuple[int, int], int] = {}
        self._mappings: dict[tuple[int, int], _Mapping] = {}
        self._locations: dict[Frame, int] = {}
        self._locations_out: list[Message] = []

    def encode(self, profile: StackProfile) -> bytes:
        samples = [self._sample(sample) for sample in profile.samples]
        out = Message()
        for kind in profile.sample_types:
            out.message(1, self._type(kind))
        for part in samples:
            out.message(2, part)
        for (filename, build_id), mapping in self._mappings.items():
            out.message(3, mapping.message(filename, build_id))
        for part in self._locations_out:
            out.message(4, part)
        for (name, file), number in self._functions.items():
            out.message(5, Message().number(1, number).number(2, name).number(3, name).number(4, file))
        period, comments = self._type(profile.period_type), [self._string(text) for text in profile.comments]
        default = self._string(profile.sample_types[0][0])
        for text in self._strings:  # after all that adds strings
            out.text(6, text)
        out.number(9, profile.time_ns).number(10, profile.duration_ns)
        out.message(11, period).number(12, profile.period).packed(13, comments).number(14, default)
        return bytes(out)

    def _string(self, text: str) -> int:
        return self._strings.setdefault(printable(text), len(self._strings))

    def _type(self, kind: ValueType) -> Message:
        return Message().number(1, self._string(kind[0])).number(2, self._string(kind[1]))

    def _sample(self, sample: StackSample) -> Message:
        out = Message().packed(1, map(self._location, sample.stack)).packed(2, sample.values)
        for name, value in labels(sample).items():
            out.message(3, Message().number(1, self._string(name)).number(2, self._string(value)))
        return out

    def _location(self, frame: Frame) -> int:
        if (known := self._locations.get(frame)) is not None:
            return known
        number = self._locations[frame] = len(self._locations) + 1
        out = Message().number(1, number)
        if mapping := self._mapping(frame):
            out.number(2, mapping.number)
            mapping.note(frame)
        out.number(3, frame.address)
        if frame.function or not mapping:  # a place without a symbol is its mapping's and address, as viewers know it
            out.message(4, Message().number(1, self._function(frame)).number(2, frame.line))
        self._locations_out.append(out)
        return number

    def _mapping(self, frame: Frame) -> _Mapping | None:
        file = frame.module or (KERNEL if frame.kind == "kernel" else "")
        if not file:
            return None
        key = self._string(file), self._string(frame.build_id)
        return self._mappings.setdefault(key, _Mapping(len(self._mappings) + 1))

    def _function(self, frame: Frame) -> int:
        key = self._string(frame.name), self._string(frame.file)
        return self._functions.setdefault(key, len(self._functions) + 1)


class _Mapping:
    """A mapped file, and whether all its places have a function, a file name and a line.

    Its memory is 0 to 0 at offset 0: addresses are those of the file itself, as after symbolization.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._functions = self._files = self._lines = True

    def note(self, frame: Frame) -> None:
        self._functions &= bool(frame.function)
        self._files &= bool(frame.file)
        self._lines &= bool(frame.line)

    def message(self, filename: int, build_id: int) -> Message:
        out = Message().number(1, self.number).number(5, filename).number(6, build_id)
        return out.number(7, self._functions).number(8, self._files).number(9, self._lines).number(10, self._lines)
