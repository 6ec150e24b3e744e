"""A YAML file is taken whole or refused with one sentence that names the line."""

from __future__ import annotations

import random

import pytest

from exporter.custom.definition import Label, Tracepoint, Uprobe, Usdt
from exporter.custom.parse import DefinitionError, parse
from exporter.model import Kind

PROBES = """
probes:
  - {uprobe: _ZN3c104cuda3abcEv, library: "libc10_cuda.so*", program: on_a}
  - {uretprobe: f, library: /opt/site/lib*.so, program: on_b}
  - {usdt: "python:gc__start", library: python3*, program: on_c}
  - {tracepoint: "block:block_rq_issue"}
"""
METRIC = """
metrics:
  - name: site.bytes
    help: Bytes.
    type: counter
    unit: By
    map: bytes
"""
HISTOGRAM = METRIC.replace("counter", "histogram")


def test_all_keys() -> None:
    """Probes of each kind, labels with their decoders, spans and lost."""
    text = (
        PROBES
        + METRIC
        + """
    value: bytes
    labels:
      - {field: pid, as: pid}
      - {name: kind, field: k, as: enum, values: {0: read, 0x10: write}}
      - {field: file, as: string}
      - {field: cg, as: cgroup}
spans:
  - {buffer: events, name: a read, start: begin, end: end, pid: tgid, error: rc, slow: 0.5,
     attributes: [{name: site.bytes, field: bytes}]}
lost: gone
"""
    )
    it = parse("x", text)
    assert Uprobe("_ZN3c104cuda3abcEv", "libc10_cuda.so*", "on_a") == it.uprobes[0]
    assert it.uprobes[1].returns
    assert (Usdt("python:gc__start", "python3*", "on_c"),) == it.usdt
    assert (Tracepoint("block:block_rq_issue"),) == it.tracepoints
    [reading] = it.readings
    assert ("site.bytes", Kind.COUNTER, "By", True) == (
        reading.metric.name,
        reading.metric.kind,
        reading.metric.unit,
        reading.metric.process,
    )
    assert Label("kind", "k", "enum", {0: "read", 16: "write"}) == reading.labels[1]
    assert ("kind", "file", "cgroup", "slurm_job_id") == reading.metric.labels
    assert 500_000_000 == it.spans[0].slow_ns
    assert (("on_a", "on_b", "on_c"), ("bytes", "gone")) == (it.programs, it.maps)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "x.yaml is empty"),
        ("probes: [", "x.yaml:1: not valid YAML"),
        ("- a", "x.yaml:1: the file has to be a mapping"),
        (METRIC, "names no probes"),
        (PROBES, "neither metrics nor spans"),
        (PROBES + METRIC + "    colour: red\n", "x.yaml:14: metrics 1 has no key 'colour'"),
        (PROBES + METRIC + "    value: bytes\n    value: b\n", "names a key twice"),
        (PROBES + METRIC.replace("unit: By", "unit: a b"), "is not a unit"),
        (PROBES + METRIC.replace("site.bytes", "gpu.bytes"), "names that begin with gpu are taken"),
        (PROBES + METRIC.replace("site.bytes", "bytes"), "prefix of your own"),
        (PROBES + METRIC.replace("Bytes.", "''"), "is not a text"),
        (PROBES + METRIC.replace("counter", "summary"), "not one of counter, gauge, histogram"),
        (PROBES + METRIC.replace("map: bytes", "map: 'a b'"), "the name of a map"),
        (PROBES + METRIC + "    scale: .nan\n", "not a number"),
        (PROBES + METRIC + "    scale: 1e400\n", "not a number"),
        (PROBES + METRIC + "    labels: [{name: gpu, field: a}]\n", "cannot be called 'gpu'"),
        (PROBES + METRIC + "    labels: [{name: __a, field: a}]\n", "a name in small letters"),
        (PROBES + METRIC + "    labels: [{name: a, field: a}, {name: a, field: b}]\n", "of one name"),
        (PROBES + METRIC + "    labels: [{as: number}]\n", "cannot be called ''"),
        (PROBES + METRIC + "    labels: [{name: a, as: enum}]\n", "lacks the key 'values'"),
        (PROBES + METRIC + "    labels: [{name: a, as: enum, values: {b: c}}]\n", "is not a number"),
        (PROBES + METRIC + "    labels: [" + "{field: a}, " * 13 + "]\n", "more than 12 entries"),
        (PROBES + HISTOGRAM, "lacks the key 'buckets'"),
        (PROBES + HISTOGRAM + "    buckets: log2\n", "lacks the key 'sum'"),
        (PROBES + HISTOGRAM + "    buckets: linear\n    sum: s\n", "lacks the key 'width'"),
        (PROBES + HISTOGRAM + "    buckets: log2\n    sum: s\n    count: 1.5\n", "whole number"),
        (PROBES + METRIC + METRIC.replace("metrics:", ""), "declares the metric site.bytes twice"),
        (PROBES.replace("program: on_a", "program: 'a;b'") + METRIC, "the name of a function"),
        (PROBES.replace("f, lib", "'f\\n', lib") + METRIC, "x.yaml:4: uretprobe"),
        (PROBES.replace("block:block_rq_issue", "block") + METRIC, "a tracepoint such as"),
        (PROBES.replace("{uretprobe: f", "{uretprobe: f, uprobe: g") + METRIC, "has to have one of the keys"),
        (PROBES.replace("program: on_b", "program: on_b, paired: true") + METRIC, "paired is for a uprobe"),
        ("probes: {a: b}" + METRIC, "probes has to be a list"),
        ("[" * 5000, "nested too deep"),
    ],
)
def test_mistakes_are_reported(text: str, expected: str) -> None:
    """Each mistake is refused, in one line."""
    with pytest.raises(DefinitionError) as error:
        parse("x", text)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_aliases_do_not_multiply() -> None:
    """A file that refers to itself a billion times over is refused as quickly as any other."""
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    with pytest.raises(DefinitionError):
        parse("x", "a0: &a0 [x]\n" + levels + PROBES + METRIC)
    with pytest.raises(DefinitionError):
        parse("x", "probes: &p [*p]\n" + METRIC)


def test_damaged_files_are_refused_or_sound() -> None:
    """Whatever becomes of a file's characters, the answer is a definition or a DefinitionError."""
    generator, text = random.Random(8), PROBES + METRIC
    for _ in range(2000):
        damaged = list(text)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randrange(len(damaged))] = generator.choice("{}[]:,&*!|>'\"%@`\t\n\\-#?é\x00\ud800 a0")
        try:
            parse("x", "".join(damaged))
        except DefinitionError as error:
            assert "\n" not in str(error)
