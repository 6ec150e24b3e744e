"""The parser of a site's YAML file. An error in the file is reported as one sentence with file and line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, cast, get_args

import yaml

from exporter.custom.definition import (
    Buckets,
    Decoding,
    Definition,
    Label,
    MapReading,
    SpanDefinition,
    Tracepoint,
    Uprobe,
    Usdt,
)
from exporter.model import PROCESS_LABELS, Kind, Metric

T = TypeVar("T")
MOST_ITEMS, MOST_ATTRIBUTES, MOST_VALUES, MOST_BUCKETS = 64, 16, 1024, 64
MOST_LABELS = 12  # a series has at most 20 then: `as: pid` stands for the nine of a process
OURS = (
    "accel_exporter",
    "gpu",
    "rdma",
    "nccl",
    "process",
    "python",
    "up",
    "scrape",
    "accel",
    "node",
    "dcgm_fi",
    "target",
)
"""First words of names that the exporter, Prometheus and their neighbours use."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_SYMBOL = re.compile(r"[A-Za-z0-9_.$@]{1,1024}", re.ASCII)
_PATTERN = re.compile(r"[A-Za-z0-9_.+*?\[\]/-]{1,256}", re.ASCII)
_METRIC = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+", re.ASCII)
_LABEL = re.compile(r"(?!__)[a-z_][a-z0-9_]{0,63}", re.ASCII)
_ATTRIBUTE = re.compile(r"[a-z][a-z0-9_.]{0,127}", re.ASCII)
_UNIT = re.compile(r"[A-Za-z0-9/{}%_.*-]{0,32}", re.ASCII)
_EVENT = re.compile(r"[A-Za-z0-9_]{1,64}:[A-Za-z0-9_]{1,128}", re.ASCII)
_TEXT = re.compile(r"[^\x00-\x08\x0b-\x1f\x7f]{1,500}")
_LINE = re.compile(r"[^\x00-\x1f\x7f]{1,100}")
_TAKEN = frozenset({*PROCESS_LABELS, "overflow", "le", "job", "instance"})


class DefinitionError(ValueError):
    """A YAML file that is no valid definition. The text has the line and what is expected there."""


def parse(name: str, text: str) -> Definition:
    """Return the definition in the YAML `text`; `name` is the stem of its file.

    Raises DefinitionError for the first thing that is wrong.
    """
    try:
        root = yaml.SafeLoader(text).get_single_node()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise DefinitionError(
            f"{name}.yaml{line}: not valid YAML: {getattr(error, 'problem', None) or ' '.join(str(error).split())}"
        ) from error
    except RecursionError as error:
        raise DefinitionError(f"{name}.yaml is nested too deep") from error
    if root is None:
        raise DefinitionError(f"{name}.yaml is empty: it has to name probes and metrics")
    return _definition(name, _Mapping(f"{name}.yaml", "the file", root))


class _Value:
    """A scalar of the file. `where` has the file, line and key, for messages.

    Its methods return the scalar as one type. They raise DefinitionError for another type or a value out of range.
    """

    def __init__(self, file: str, what: str, node: yaml.Node) -> None:
        self.where = f"{file}:{node.start_mark.line + 1}: {what}"
        if not isinstance(node, yaml.ScalarNode):
            raise DefinitionError(f"{self.where} has to be one value")
        self._node = node

    def text(self, pattern: re.Pattern[str], expected: str) -> str:
        value: str = self._node.value
        if not pattern.fullmatch(value):
            raise DefinitionError(f"{self.where}: {value[:80]!r} is not {expected}")
        return value

    def choice(self, choices: Sequence[str]) -> str:
        if self._node.value not in choices:
            raise DefinitionError(f"{self.where}: {self._node.value[:80]!r} is not one of {', '.join(choices)}")
        return str(self._node.value)

    def number(self, least: float, most: float) -> float:
        try:
            value = float(self._node.value)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise DefinitionError(f"{self.where}: {self._node.value[:80]!r} is not a number from {least:g} to {most:g}")
        return value

    def integer(self, least: int, most: int) -> int:
        value = self.number(least, most)
        if value != int(value):
            raise DefinitionError(f"{self.where}: {self._node.value[:80]!r} is not a whole number")
        return int(value)

    def switch(self) -> bool:
        return self.choice(("true", "false")) == "true"


class _Mapping:
    """A mapping of the file. Reading a key removes it, and `end` raises DefinitionError for a key that is left."""

    def __init__(self, file: str, what: str, node: yaml.Node) -> None:
        self._file, self._what = file, what
        self.where = f"{file}:{node.start_mark.line + 1}: {what}"
        if not isinstance(node, yaml.MappingNode):
            raise DefinitionError(f"{self.where} has to be a mapping of names to values")
        self._nodes: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in self._nodes:
                raise DefinitionError(f"{file}:{key.start_mark.line + 1}: {what} names a key twice, or no name")
            self._nodes[key.value] = value

    def __contains__(self, key: str) -> bool:
        return key in self._nodes

    def __getitem__(self, key: str) -> _Value:
        if key not in self._nodes:
            raise DefinitionError(f"{self.where} lacks the key {key!r}")
        return _Value(self._file, key, self._nodes.pop(key))

    def text(self, key: str, pattern: re.Pattern[str], expected: str, default: str = "") -> str:
        return self[key].text(pattern, expected) if key in self._nodes else default

    def mapping(self, key: str) -> _Mapping:
        if key not in self._nodes:
            raise DefinitionError(f"{self.where} lacks the key {key!r}")
        return _Mapping(self._file, key, self._nodes.pop(key))

    def items(self, most: int) -> Iterator[tuple[str, _Value]]:
        """Yield every key that is left, with its value. Raises DefinitionError for more than `most` of them."""
        if len(self._nodes) > most:
            raise DefinitionError(f"{self.where} has more than {most} entries")
        for key, node in self._nodes.items():
            yield key, _Value(self._file, f"{self._what} {key[:80]}", node)

    def each(self, key: str, make: Callable[[_Mapping], T], most: int = MOST_ITEMS) -> tuple[T, ...]:
        """Return what `make` returns for each mapping of the list under `key`; nothing if there is no such key.

        Raises DefinitionError for a list of more than `most` mappings.
        """
        node = self._nodes.pop(key, None)
        if node is None:
            return ()
        if not isinstance(node, yaml.SequenceNode):
            raise DefinitionError(f"{self._file}:{node.start_mark.line + 1}: {key} has to be a list")
        if len(node.value) > most:
            raise DefinitionError(f"{self._file}:{node.start_mark.line + 1}: {key} has more than {most} entries")
        made = []
        for number, item in enumerate(node.value, 1):
            mapping = _Mapping(self._file, f"{key} {number}", item)
            made.append(make(mapping))
            mapping.end()
        return tuple(made)

    def end(self) -> None:
        for key, node in self._nodes.items():
            raise DefinitionError(f"{self._file}:{node.start_mark.line + 1}: {self._what} has no key {key[:80]!r}")


def _definition(name: str, root: _Mapping) -> Definition:
    description = root.text("description", _LINE, "one line of text")
    probes = root.each("probes", _probe)
    if not probes:
        raise DefinitionError(f"{name}.yaml names no probes: it needs a list of uprobe, uretprobe, usdt or tracepoint")
    readings = root.each("metrics", _reading)
    spans = root.each("spans", _span)
    if not readings and not spans:
        raise DefinitionError(f"{name}.yaml has neither metrics nor spans: nothing would come of its probes")
    lost = root.text("lost", _IDENTIFIER, "the name of a map")
    root.end()
    names = [reading.metric.name for reading in readings]
    for twice in {name for name in names if names.count(name) > 1}:
        raise DefinitionError(f"{name}.yaml declares the metric {twice} twice")
    uprobes = tuple(probe for probe in probes if isinstance(probe, Uprobe))
    usdt = tuple(probe for probe in probes if isinstance(probe, Usdt))
    tracepoints = tuple(probe for probe in probes if isinstance(probe, Tracepoint))
    return Definition(name, description, uprobes, usdt, tracepoints, readings, spans, lost)


def _probe(entry: _Mapping) -> Uprobe | Usdt | Tracepoint:
    kinds = [kind for kind in ("uprobe", "uretprobe", "usdt", "tracepoint") if kind in entry]
    if len(kinds) != 1:
        raise DefinitionError(f"{entry.where} has to have one of the keys uprobe, uretprobe, usdt, tracepoint")
    kind = kinds[0]
    if kind == "tracepoint":
        event = entry[kind].text(_EVENT, "a tracepoint such as block:block_rq_issue")
        return Tracepoint(event, entry.text("program", _IDENTIFIER, "the name of a function in the C file"))
    if kind == "usdt":
        probe = entry[kind].text(_EVENT, "a USDT probe such as python:gc__start")
        return Usdt(probe, _library(entry), _program(entry))
    symbol = entry[kind].text(_SYMBOL, "the name of a function, as `nm -D` prints it")
    paired = "paired" in entry and entry["paired"].switch()
    if paired and kind == "uretprobe":
        raise DefinitionError(f"{entry.where}: paired is for a uprobe that serves a uretprobe")
    return Uprobe(symbol, _library(entry), _program(entry), kind == "uretprobe", paired)


def _library(entry: _Mapping) -> str:
    return entry["library"].text(_PATTERN, "a file's name or path, or a shell pattern of it")


def _program(entry: _Mapping) -> str:
    return entry["program"].text(_IDENTIFIER, "the name of a function in the C file")


def _reading(entry: _Mapping) -> MapReading:
    name = entry["name"].text(_METRIC, "a metric's name with a prefix of your own, such as site.cache.size")
    if len(name) > 200 or name.split(".")[0] in OURS:
        raise DefinitionError(
            f"{entry.where}: names that begin with {name.split('.')[0]} are taken; use your own prefix"
        )
    kind = Kind(entry["type"].choice([kind.value for kind in Kind]))
    documentation = entry["help"].text(_TEXT, "a text of up to 500 characters")
    unit = entry.text("unit", _UNIT, "a unit in UCUM, such as By, s or {request}")
    source = entry["map"].text(_IDENTIFIER, "the name of a map")
    field = entry.text("value", _IDENTIFIER, "the name of a field")
    scale = entry["scale"].number(1e-15, 1e15) if "scale" in entry else 1.0
    labels = _unique(entry, entry.each("labels", lambda label: _label(label, _LABEL), MOST_LABELS))
    histogram = _histogram(entry) if kind is Kind.HISTOGRAM else None
    own = tuple(label.name for label in labels if label.decode != "pid")
    own = tuple(dict.fromkeys([*own, *(["slurm_job_id"] if any(label.decode == "cgroup" for label in labels) else [])]))
    metric = Metric(name, documentation, kind, unit, own, process=any(label.decode == "pid" for label in labels))
    return MapReading(metric, source, field, scale, labels, histogram)


def _histogram(entry: _Mapping) -> Buckets:
    log2 = entry["buckets"].choice(("log2", "linear")) == "log2"
    slot = entry.text("slot", _IDENTIFIER, "the name of a field of the key")
    count = entry["count"].integer(1, MOST_BUCKETS) if "count" in entry else 32
    width = 1.0 if log2 else entry["width"].number(1e-15, 1e15)
    if "sum" not in entry:
        raise DefinitionError(
            f"{entry.where} lacks the key 'sum': name the map that adds up what was observed: slots do not give the sum"
        )
    sum_map = entry["sum"].text(_IDENTIFIER, "the name of a map")
    return Buckets(log2, slot, count, width, sum_map, entry.text("sum_value", _IDENTIFIER, "the name of a field"))


def _span(entry: _Mapping) -> SpanDefinition:
    field = "the name of a field of the record"
    slow = entry["slow"].number(0, 1e9) if "slow" in entry else 0.0
    return SpanDefinition(
        entry["buffer"].text(_IDENTIFIER, "the name of a ring or perf buffer"),
        entry["name"].text(_LINE, "one line of up to 100 characters"),
        entry["start"].text(_IDENTIFIER, field),
        entry["end"].text(_IDENTIFIER, field),
        entry.text("pid", _IDENTIFIER, field),
        entry.text("error", _IDENTIFIER, field),
        round(slow * 1e9),
        _unique(entry, entry.each("attributes", lambda label: _label(label, _ATTRIBUTE), MOST_ATTRIBUTES)),
    )


def _label(entry: _Mapping, names: re.Pattern[str]) -> Label:
    field = entry.text("field", _IDENTIFIER, "the name of a field of the key")
    decode = cast(Decoding, entry["as"].choice(get_args(Decoding))) if "as" in entry else "number"
    values = {}
    if decode == "enum":
        for key, value in entry.mapping("values").items(MOST_VALUES):
            try:
                number = int(key, 0)
            except ValueError:
                raise DefinitionError(f"{value.where}: {key[:80]!r} is not a number") from None
            values[number] = value.text(_LINE, "one line of up to 100 characters")
    default = {"pid": "pid", "cgroup": "cgroup"}.get(decode, "")
    name = entry.text("name", names, "a name in small letters", default) or field
    if decode == "pid" and name != "pid" or decode != "pid" and name in _TAKEN or not names.fullmatch(name):
        raise DefinitionError(f"{entry.where}: a label cannot be called {name!r}; give another name")
    return Label(name, field, decode, values)


def _unique(entry: _Mapping, labels: tuple[Label, ...]) -> tuple[Label, ...]:
    names = [label.name for label in labels]
    if len({*names}) < len(names):
        raise DefinitionError(f"{entry.where} has two labels or attributes of one name")
    return labels
