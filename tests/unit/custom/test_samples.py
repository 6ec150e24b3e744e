"""Rows become samples: decoded, added up, bounded. Maps that do not match their YAML file are reported before."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.custom.decode import Cgroups, Decoder
from exporter.custom.messages import Failed, RowsMessage, Shape, Started, decode, encode
from exporter.custom.parse import parse
from exporter.custom.samples import samples
from exporter.custom.shapes import mismatch
from exporter.custom.spans import span
from exporter.model import Distribution, Labels
from exporter.node import Clock

PROBES = "probes: [{tracepoint: 'a:b'}]\n"
KEY = {"pid": "number", "op": "number", "name": "string", "address": "number"}
LABELS = """
    labels:
      - {field: pid, as: pid}
      - {field: op, as: enum, values: {0: read}}
      - {field: name, as: string}
      - {field: address, as: hex}
"""
COUNTER = PROBES + "metrics:\n  - {name: site.x, help: X., type: counter, map: m}\n"


def process(pid: int) -> Labels:
    return {"pid": str(pid), "comm": f"comm{pid}"}


@pytest.fixture
def decoder(tmp_path: Path) -> Decoder:
    return Decoder(process, Cgroups(tmp_path))


def test_labels(decoder: Decoder) -> None:
    """Each decoder gives text; controls and newlines in texts are escaped, unknown values are numbers."""
    [reading] = parse(
        "x", PROBES + "metrics:\n  - name: site.x\n    help: X.\n    type: counter\n    map: m" + LABELS
    ).readings
    rows = {"m": RowsMessage("m", [[[7, 0, "a\n\u202e\x1b", 255], 5], [[7, 9, "b", 0], 6]], 2, 0)}
    first, second = samples(reading, {"m": Shape("HashTable", 9, KEY, None)}, rows, decoder)
    expected = {"pid": "7", "comm": "comm7", "op": "read", "name": "a\\n\\u202e\\x1b", "address": "0xff"}
    assert (5, expected) == (first.value, first.labels)
    assert (6, "9") == (second.value, second.labels["op"])


def test_rows_of_the_same_labels_are_added_up(decoder: Decoder) -> None:
    """Rows with the same labels are one series; scale makes its value a float."""
    text = COUNTER.replace("map: m", "map: m, value: b, scale: 0.5, labels: [{field: op}]")
    [reading] = parse("x", text).readings
    rows = {"m": RowsMessage("m", [[[1, 2, "", 0], [9, 3]], [[2, 2, "", 0], [9, 4]]], 2, 0)}
    [sample] = samples(reading, {"m": Shape("HashTable", 9, KEY, {"a": "number", "b": "number"})}, rows, decoder)
    assert (3.5, {"op": "2"}) == (sample.value, sample.labels)


def test_a_map_that_was_not_read_gives_nothing(decoder: Decoder) -> None:
    """Unknown is absent, not 0."""
    [reading] = parse("x", COUNTER).readings
    assert [] == [*samples(reading, {}, {}, decoder)]


def test_log2_slots(decoder: Decoder) -> None:
    """bpf_log2l() is 1 for 0 and 1, 2 for 2 and 3, and so on; slots beyond the last bucket are in +Inf."""
    text = COUNTER.replace("counter", "histogram").replace("map: m", "map: m, buckets: log2, count: 3, sum: s")
    [reading] = parse("x", text).readings
    rows = {
        "m": RowsMessage("m", [[1, 4], [2, 3], [3, 2], [4, 1], [64, 1]], 5, 0),
        "s": RowsMessage("s", [[0, 99]], 1, 0),
    }
    plain = Shape("HashTable", 9, None, None)
    [sample] = samples(reading, {"m": plain, "s": plain}, rows, decoder)
    assert Distribution((1, 3, 7), (4, 3, 2, 2), 99.0) == sample.value
    assert [] == [*samples(reading, {"m": plain, "s": plain}, {"m": rows["m"]}, decoder)]


def test_cgroups(tmp_path: Path) -> None:
    """An id is the folder's inode: its path, and the container that the path names; an unknown one stays a number."""
    container = "f" * 64
    folder = tmp_path / "system.slice" / f"docker-{container}.scope"
    folder.mkdir(parents=True)
    cgroups = Cgroups(tmp_path)
    expected = {"where": f"/system.slice/docker-{container}.scope", "container_id": container}
    assert expected == cgroups.labels(folder.stat().st_ino, "where")
    assert {"where": "12345678901"} == cgroups.labels(12345678901, "where")


def test_spans_with_impossible_times_are_none() -> None:
    """A record with its end before its start, or without a start, is no span."""
    text = PROBES + "spans: [{buffer: e, name: a, start: b, end: c}]"
    [it] = parse("x", text).spans
    fields = {"b": "number", "c": "number"}
    assert span(it, fields, [5, 4], Clock(), process) is None
    assert span(it, fields, [0, 4], Clock(), process) is None
    made = span(it, fields, [4, 5], Clock(), process)
    assert made and 1 == made.end_ns - made.start_ns


NUMBER = Shape("HashTable", 9, None, None)
STRUCT = Shape("HashTable", 9, KEY, {"a": "number", "t": "string"})


@pytest.mark.parametrize(
    ("more", "shape", "expected"),
    [
        ("", NUMBER, ""),
        ("value: a", STRUCT, ""),
        ("", STRUCT, "the value of m has no number field ''; it has a, t"),
        ("value: t", STRUCT, "no number field 't'"),
        ("value: a", NUMBER, "the value of m is one number: leave out 'a'"),
        ("value: a, labels: [{field: nope}]", STRUCT, "the key of m has no number field 'nope'"),
        ("value: a, labels: [{field: pid, as: string, name: p}]", STRUCT, "no string field 'pid'"),
        ("labels: [{name: p, as: string}]", NUMBER, "the key of m is one number"),
    ],
)
def test_mismatches_are_reported(more: str, shape: Shape, expected: str) -> None:
    """Fields are compared with those of the compiled program."""
    definition = parse("x", COUNTER.replace("map: m", f"map: m, {more}"))
    assert expected in mismatch(definition, {"m": shape})
    assert bool(expected) is bool(mismatch(definition, {"m": shape}))


def test_messages() -> None:
    """A message is decoded as it was encoded."""
    for message in (Started(["a"], {"m": STRUCT}, {"a:b": ""}), RowsMessage("m", [[1, 2]], 1, 0), Failed("no", "why")):
        assert message == decode(encode(message))


@pytest.mark.parametrize("line", [b"", b"[]", b"{}", b"[1,2]", b'["Rows",{}]', b'["Rows",[]]', b'["Rows",{"x":1}]',
                                  b'["Started",{}]', b'["Nothing",{}]', b"[" * 100_000, b"\xff"])  # fmt: skip
def test_nonsense(line: bytes) -> None:
    """Anything else is a ValueError."""
    with pytest.raises(ValueError):
        decode(line)
