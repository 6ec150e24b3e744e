"""Profiles read back by programs of others: Go's pprof, protoc's code for pprof's schema, pprof-format, speedscope."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from exporter.stack_profiles.bounds import UNKNOWN
from exporter.stack_profiles.model import StackProfile
from exporter.views.stack_profiles import collapsed, pprof, speedscope
from tests import made_up_profiles as made_up
from tests import profile_readers as readers

pytestmark = pytest.mark.timeout(400)


def top(profile: StackProfile, folder: Path, *options: str) -> str:
    """Return the output of `go tool pprof -top` for a profile, with functions by file and line."""
    file = folder / "profile.pb.gz"
    file.write_bytes(pprof.encode(profile))
    command = [readers.go_pprof(), "-top", "-lines", "-nodefraction=0", "-symbolize=none", *options, file]
    environ = {"PPROF_TMPDIR": str(folder), "PATH": ""}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def decoded(profile: StackProfile, folder: Path) -> Any:
    message = readers.schema(folder).Profile()
    message.ParseFromString(gzip.decompress(pprof.encode(profile)))
    return message


def test_go_reads_functions_lines_and_totals(tmp_path: Path) -> None:
    """Go's pprof shows 1,630 bytes in all, of them 1,600 below main at its line, and types, time and comments."""
    text = top(made_up.inuse(), tmp_path, "-unit=B")

    assert "Type: inuse_space" in text
    assert "of 1630B total" in text
    assert "1600B 98.16%  main /app/serve.py:7" in text
    assert "1000B 61.35%  load_weights /app/model.py:120" in text
    assert "600B 36.81%  allocate_kv_cache /app/engine.py:23" in text
    assert "cudaMalloc" in text
    assert "libc10_cuda.so" in text
    assert "[unknown stack]" in text
    assert "2 stacks were dropped" in text


@pytest.mark.parametrize(
    ("option", "total"),
    [
        ("-tagfocus=pid=^4711$", 1600),
        ("-tagfocus=gpu_uuid=GPU-bbbb", 30),
        ("-tagfocus=pod=llm-0", 1600),
        ("-tagfocus=kind=pool", 30),
        ("-tagfocus=rank=^0$", 1600),
        ("-tagfocus=comm=train", 30),
    ],
)
def test_go_filters_by_labels(tmp_path: Path, option: str, total: int) -> None:
    """Each label of a sample selects its samples; a number has to be anchored, else it is a range of sizes."""
    assert f"nodes accounting for {total}B" in top(made_up.inuse(), tmp_path, "-unit=B", option)


def test_go_reads_the_other_type(tmp_path: Path) -> None:
    """With another sample index it counts objects."""
    assert "of 7 total" in top(made_up.inuse(), tmp_path, "-sample_index=inuse_objects")


def test_schema_has_every_field(tmp_path: Path) -> None:
    """Read by protoc's code every field of profile.proto has what the profile has; ids are unique and all there."""
    message, profile = decoded(made_up.inuse(), tmp_path), made_up.inuse()
    text = message.string_table

    assert "" == text[0]
    assert [("inuse_space", "bytes"), ("inuse_objects", "count")] == [
        (text[it.type], text[it.unit]) for it in message.sample_type
    ]
    assert (profile.time_ns, profile.duration_ns, 1) == (message.time_nanos, message.duration_nanos, message.period)
    assert ("space", "bytes") == (text[message.period_type.type], text[message.period_type.unit])
    assert ("inuse_space", ["2 stacks were dropped"]) == (
        text[message.default_sample_type],
        [text[it] for it in message.comment],
    )
    locations, functions = {it.id: it for it in message.location}, {it.id: it for it in message.function}
    mappings = {it.id: it for it in message.mapping}
    assert (len(message.location), len(message.function)) == (len(locations), len(functions))
    for sample, given in zip(message.sample, profile.samples, strict=True):
        assert list(given.values) == list(sample.value)
        assert {name: value for name, value in given.labels.items() if value} == {
            text[it.key]: text[it.str] for it in sample.label
        }
        for number, frame in zip(sample.location_id, given.stack or (UNKNOWN,), strict=True):
            location = locations[number]
            assert frame.address == location.address
            lines = [(text[functions[row.function_id].name], row.line) for row in location.line]
            assert lines == ([(frame.function, frame.line)] if frame.function else [])
            if frame.module:
                mapping = mappings[location.mapping_id]
                assert (frame.module, frame.build_id) == (text[mapping.filename], text[mapping.build_id])
    flags = {text[it.filename]: it.has_functions for it in message.mapping}
    assert (False, True) == (flags[made_up.NAMELESS.module], flags[made_up.MALLOC.module])


def test_negative_values_of_a_delta(tmp_path: Path) -> None:
    """A decrease since the first profile is below 0, in two's complement."""
    sample = made_up.inuse().samples[0]
    profile = StackProfile(made_up.INUSE, (made_up.StackSample(sample.stack, {}, (-1000, -2)),), made_up.SPACE)

    assert [-1000, -2] == list(decoded(profile, tmp_path).sample[0].value)


def test_pprof_format_reads_it(tmp_path: Path) -> None:
    """The package pprof-format of npm has the same sum and the same function names."""
    file = tmp_path / "profile.pb"
    file.write_bytes(gzip.decompress(pprof.encode(made_up.inuse())))
    script = (
        "const {Profile} = require(process.argv[1]);"
        "const p = Profile.decode(require('fs').readFileSync(process.argv[2]));"
        "const text = at => p.stringTable.strings[Number(at)];"
        "console.log(JSON.stringify([p.sample.reduce((sum, it) => sum + Number(it.value[0]), 0),"
        "p.function.map(it => text(it.name)).sort()]))"
    )
    command = ["node", "-e", script, readers.npm("pprof-format"), file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    functions = {frame.function for sample in made_up.inuse().samples for frame in sample.stack or (UNKNOWN,)}
    assert [1630, sorted(functions - {""})] == json.loads(done.stdout)


@pytest.mark.parametrize("profile", [made_up.inuse(), made_up.hostile()], ids=["inuse", "hostile"])
@pytest.mark.parametrize("by", ["", "process"])
def test_speedscope_accepts_it(profile: StackProfile, by: str) -> None:
    """A document is valid by the schema that the package speedscope has."""
    rules = json.loads((readers.npm("speedscope") / "dist/release/file-format-schema.json").read_text())
    document = json.loads(speedscope.encode(profile, "gpu_inuse of node", by))

    jsonschema.validate(document, rules)
    assert ["sampled", "sampled"] == [it["type"] for it in document["profiles"]]


def test_hostile_names_are_read(tmp_path: Path) -> None:
    """Names of 100,000 characters with all kinds of bytes are valid in each format, and cut."""
    profile = made_up.hostile()
    message = decoded(profile, tmp_path)

    assert max(map(len, message.string_table)) <= 512
    assert all(it.isprintable() for it in message.string_table)
    assert [2, 512] == [len(it.location_id) for it in message.sample]
    assert [1 << 62, 23] == [sample.value[0] for sample in message.sample]
    assert "100% of 2 total" in top(profile, tmp_path, "-sample_index=1")
    for line in collapsed.encode(profile).decode().splitlines():
        stack, _, value = line.rpartition(" ")
        assert value.isdecimal()
        assert all(len(frame) <= 1100 for frame in stack.split(";"))
