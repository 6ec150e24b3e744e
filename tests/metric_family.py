"""Pages in Protocol Buffers as the official runtime reads them, and the series that Prometheus makes of them."""

from __future__ import annotations

import importlib.util
import io
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf import proto
from grpc_tools import protoc

PROTO = Path(__file__).parent / "standins" / "metric_family.proto"
ACCEPT = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@cache
def messages() -> ModuleType:
    """The message classes, compiled from the .proto by the official compiler."""
    with tempfile.TemporaryDirectory() as folder:
        included = Path(protoc.__file__).parent / "_proto"
        command = ["protoc", f"-I{PROTO.parent}", f"-I{included}", f"--python_out={folder}", str(PROTO)]
        assert 0 == protoc.main(command)
        spec = importlib.util.spec_from_file_location("metric_family_pb2", Path(folder, "metric_family_pb2.py"))
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module


def families(page: bytes) -> list[Any]:
    """The families of a page, each after its length. Fails on fields that the schema does not have."""
    found, stream = [], io.BytesIO(page)
    while (family := proto.parse_length_prefixed(messages().MetricFamily, stream)) is not None:
        known = family.ByteSize()
        family.DiscardUnknownFields()
        assert family.ByteSize() == known, "fields that the schema does not have"
        found.append(family)
    return found


def series(page: bytes) -> Series:
    """The values of all lines that a text page with these families has."""
    found = [(key, value) for family in families(page) for it in family.metric for key, value in _lines(family, it)]
    assert len(found) == len(dict(found)), "a series twice"
    return dict(found)


def _lines(family: Any, metric: Any) -> Iterator[tuple[tuple[str, frozenset[tuple[str, str]]], float]]:
    labels = {pair.name: pair.value for pair in metric.label}
    assert [*labels] == sorted(labels) and all(labels.values())

    def key(suffix: str, **more: str) -> tuple[str, frozenset[tuple[str, str]]]:
        return family.name + suffix, frozenset((labels | more).items())

    kind = messages().MetricType.Name(family.type).lower()
    value = getattr(metric, kind)
    assert metric.HasField(kind)
    if kind != "histogram":
        yield key(""), value.value
        return
    for bucket in value.bucket:
        yield key("_bucket", le=bound(bucket.upper_bound)), bucket.cumulative_count
    yield key("_sum"), value.sample_sum
    yield key("_count"), value.sample_count


def bound(value: float) -> str:
    """A bound as both text formats write it."""
    return "+Inf" if value == float("inf") else repr(value)
