"""Requests of the child for readings: fields to read in one call, and calls that several readings share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import pynvml  # type: ignore[import-untyped]

from exporter.nvml import readings
from exporter.nvml.reading import Call, FieldValue, Reading, Take
from exporter.nvml.snapshot import FAST, SLOW


@dataclass(frozen=True, slots=True)
class FieldRequest:
    """A field value to read; `link` is None for a field of the GPU itself."""

    key: str
    number: int
    scope: int = 0
    link: int | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A call and the readings out of its result, by key. `arguments` follow the handle."""

    call: Call
    arguments: tuple[int, ...]
    takes: Mapping[str, Take]


def field_id(name: str) -> int | None:
    """Returns the number of the constant NVML_FI_`name`; None when nvidia-ml-py does not have it."""
    return getattr(pynvml, f"NVML_FI_{name}", None)


def field_requests(set_name: str, links: int) -> list[FieldRequest]:
    """Returns the fields of a set that nvidia-ml-py knows, for the GPU and each of its links."""
    requests = list(_requests(readings.GPU[set_name]))
    for link in range(links):
        requests += _requests(readings.LINK[set_name], link)
    return requests


def _requests(wanted: Iterable[Reading], link: int | None = None) -> Iterator[FieldRequest]:
    for reading in wanted:
        if isinstance(reading.source, FieldValue):
            number = field_id(reading.source.name.format(link=link))
            if number is not None:
                yield FieldRequest(reading.key, number, reading.source.scope if link is None else link, link)


def queries(wanted: Sequence[Reading], before: tuple[int, ...] = ()) -> tuple[Query, ...]:
    """Returns the calls for readings, those of fallbacks last. `before` are arguments in front of each call's own."""
    made: dict[tuple[object, ...], tuple[Call, dict[str, Take]]] = {}
    for is_fallback in (False, True):
        for reading in wanted:
            call = reading.fallback if is_fallback else reading.source
            if isinstance(call, Call):
                same = (is_fallback, call.function, call.arguments, call.structure, call.unless)
                made.setdefault(same, (call, {}))[1][reading.key] = call.take
    return tuple(Query(call, (*before, *call.arguments), takes) for call, takes in made.values())


QUERIES = {name: queries(readings.GPU[name]) for name in (FAST, SLOW)}
WITHOUT_GPM, MIG_QUERIES = queries(readings.WITHOUT_GPM), queries(readings.MIG_MEMORY)


@cache
def link_queries(set_name: str, link: int) -> tuple[Query, ...]:
    """Returns the calls about one NVLink."""
    return queries(readings.LINK[set_name], (link,))
