"""A comparison of the maps of a compiled C file with what its YAML file declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exporter.custom.definition import Definition, Label, MapReading, SpanDefinition
from exporter.custom.messages import Shape

Fields = Mapping[str, str] | None
_KINDS = {"string": "string"}


def mismatch(definition: Definition, shapes: Mapping[str, Shape]) -> str:
    """Return the first thing in the YAML file that does not match the maps; empty if all of it matches."""
    found = [problem for reading in definition.readings for problem in _of_reading(reading, shapes)]
    found += [problem for span in definition.spans for problem in _of_span(span, shapes[span.buffer].value or {})]
    if definition.lost and "Array" not in shapes[definition.lost].kind:
        found.append(f"lost: {definition.lost} is no array")
    if definition.lost and shapes[definition.lost].value is not None:
        found.append(f"lost: the values of {definition.lost} are not numbers")
    return f"{definition.name}.yaml: {found[0]}" if found else ""


def position(fields: Fields, name: str) -> int | None:
    """Return the index of the field in a key or value; None where the key or value is one number."""
    return None if fields is None else [*fields].index(name)


def _of_reading(reading: MapReading, shapes: Mapping[str, Shape]) -> list[str]:
    shape, about = shapes[reading.map], reading.metric.name
    found = _missing(about, "value", reading.map, shape.value, [(reading.field, "number")])
    found += _missing(about, "key", reading.map, shape.key, _wanted(reading.labels))
    histogram = reading.histogram
    if histogram:
        found += _missing(about, "key", reading.map, shape.key, [(histogram.slot, "number")])
        sums = shapes[histogram.sum_map]
        found += _missing(about, "value", histogram.sum_map, sums.value, [(histogram.sum_field, "number")])
        if reading.labels and (sums.key is not None or len(reading.labels) > 1):  # one number is the one label
            found += _missing(about, "key", histogram.sum_map, sums.key, _wanted(reading.labels))
    return found


def _of_span(span: SpanDefinition, fields: Mapping[str, str]) -> list[str]:
    wanted = [(name, "number") for name in (span.start, span.end, span.pid, span.error) if name]
    return _missing(span.name, "record", span.buffer, fields, wanted + _wanted(span.attributes))


def _wanted(labels: Sequence[Label]) -> list[tuple[str, str]]:
    return [(label.field, _KINDS.get(label.decode, "number")) for label in labels]


def _missing(about: str, part: str, source: str, fields: Fields, wanted: Sequence[tuple[str, str]]) -> list[str]:
    """Return a sentence for each wanted field that is missing or of another kind in the map or buffer `source`.

    A key or value that is one number has no fields: a wanted name, or kind `string`, does not match it.
    """
    if fields is None:
        named = [name for name, _ in wanted if name] + [kind for _, kind in wanted if kind == "string"]
        return [f"{about}: the {part} of {source} is one number: leave out {named[0]!r}"] if named else []
    known = ", ".join(fields)
    return [
        f"{about}: the {part} of {source} has no {kind} field {name!r}; it has {known}"
        for name, kind in wanted
        if fields.get(name) != kind
    ]
