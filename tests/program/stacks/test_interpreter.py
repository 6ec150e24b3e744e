"""Layouts of real interpreters of this machine: names and lines are those that the interpreter itself has."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from exporter.stacks import interpreter
from exporter.stacks.files import CodeFile
from exporter.stacks.interpreter import NONE, OWNER, UnknownInterpreter, line_of
from exporter.stacks.memory import Memory
from exporter.stacks.process import MappedModule, ProcessCode, Python
from tests.interpreters import interpreters

pytestmark = pytest.mark.evidence(feature="profiles of stacks", on="real software")

FOUND = interpreters()
LINES = """
import argparse, collections, inspect, json, sys, types
def codes(code):
    yield code
    for it in code.co_consts:
        if isinstance(it, types.CodeType):
            yield from codes(it)
found = []
for module in (argparse, collections, inspect):
    with open(module.__file__) as file:
        for code in codes(compile(file.read(), module.__file__, "exec")):
            table = code.co_linetable.hex()
            found.append([code.co_firstlineno, table, [it for it in code.co_lines()]])
print(json.dumps(found))
"""
WAITING = """
import sys
class Größe:
    def 分配(self):
        def inner():
            print(id(inner.__code__), id(Größe.分配.__code__), flush=True)
            sys.stdin.readline()
        inner()
Größe().分配()
"""


@contextmanager
def waiting(program: Path) -> Iterator[tuple[ProcessCode, Python, list[int]]]:
    """Yield the code of a process that waits in `inner`, its interpreter, and the addresses of two code objects."""
    process = subprocess.Popen([program, "-I", "-c", WAITING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    files: dict[int, CodeFile] = {}
    try:
        assert process.stdout
        addresses = [int(it) for it in process.stdout.readline().split()]
        memory = Memory(os.open(f"/proc/{process.pid}/mem", os.O_RDONLY))
        code = ProcessCode(memory, files)
        mappings, numbers = [], dict[str, int]()
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            place, allowed, offset, _, inode, *path = line.split(None, 5)
            if "x" in allowed and inode != "0":
                number = numbers.setdefault(path[0], len(numbers))
                if number not in files:
                    files[number] = CodeFile(os.open(path[0], os.O_RDONLY), path[0], ())
                start, end = (int(it, 16) for it in place.split("-"))
                mappings.append(MappedModule(start, end, int(offset, 16), number))
        code.update(mappings)
        assert code.python, code.problem
        yield code, code.python, addresses
    finally:
        process.communicate("\n")
        for file in files.values():
            file.close()


@pytest.mark.parametrize("version", FOUND)
def test_names_and_lines(version: str) -> None:
    with waiting(FOUND[version]) as (code, python, addresses):
        assert f"{python.layout.version[0]}.{python.layout.version[1]}" == version.rpartition(".")[0]
        assert code.names
        inner, outer = (code.names.frame(it, it) for it in addresses)
    qualified = python.layout.version >= (3, 11)
    assert inner.function == ("Größe.分配.<locals>.inner" if qualified else "inner")
    assert outer.function == ("Größe.分配" if qualified else "分配")
    assert (inner.file, inner.kind, inner.module) == ("<string>", "python", "")


@pytest.mark.parametrize("version", FOUND)
def test_the_threads_of_an_interpreter(version: str) -> None:
    with waiting(FOUND[version]) as (code, python, addresses):
        walk, memory = python.layout.walk, code.memory
        state = memory.word(memory.word(python.runtime + walk.heads) + walk.threads)
        assert memory.word(state + walk.next) == 0, "it has one thread"
        place = state + walk.frame if walk.frame != NONE else memory.word(state + walk.cframe) + walk.frame_of_cframe
        frame, found = memory.word(place), []
        while frame and len(found) < 10:
            ends = walk.ends == OWNER and memory.read(frame + walk.end, 1)[0] >= 3
            found += [] if ends else [memory.word(frame + walk.code) & ~7]
            frame = memory.word(frame + walk.previous)
    assert [it for it in found if it in addresses] == addresses
    assert len(found) == 3


@pytest.mark.parametrize("version", FOUND)
def test_lines_are_those_of_the_interpreter(version: str) -> None:
    done = subprocess.run([FOUND[version], "-I", "-c", LINES], capture_output=True, text=True, check=True)
    compared = 0
    codes: list[list[Any]] = json.loads(done.stdout)
    for first, table, lines in codes:
        for start, end, line in lines:
            for offset in range(start, end, 2):
                minor = int(version.split(".")[1])
                assert line_of(bytes.fromhex(table), first, offset, minor) == (line or 0), (first, offset)
                compared += 1
    assert compared > 10_000


def test_a_table_that_ends_early_has_no_lines() -> None:
    for minor in (10, 11):
        assert line_of(b"", 1, 0, minor) == 0
        assert line_of(b"\xf0", 1, 4, minor) == 0


class Bytes(Memory):
    """Memory with these bytes at an address."""

    def __init__(self, at: int, data: bytes) -> None:
        self.at, self.data = at, data

    def read(self, address: int, size: int) -> bytes:
        return self.data[address - self.at : address - self.at + size].ljust(size, b"\0")


@pytest.mark.parametrize("version", [0, 0x02071200, 0x030900F0, 0x030F0000])
def test_unknown_versions_are_refused(version: int) -> None:
    with pytest.raises(UnknownInterpreter, match=r"known are CPython 3\.10 to 3\.14"):
        interpreter.layout(Bytes(4096, b""), 4096, version)
    with pytest.raises(UnknownInterpreter):
        interpreter.layout(Bytes(4096, b"xdebugpy" + version.to_bytes(8, "little")), 4096, 0)


OLDER = """
long _PyRuntime[128] = {1}, PyCode_Type = 1;
int main(void)
{
	return 0;
}
"""


def test_python_without_a_symbol_of_3_10_is_refused(tmp_path: Path) -> None:
    """3.7 to 3.9 have no Py_Version either, and fields at other places than 3.10."""
    for newer in (False, True):
        program = tmp_path / f"python-{newer}"
        source = OLDER + ("void *PyExc_EncodingWarning = &PyCode_Type;" if newer else "")
        command = ["gcc", "-no-pie", "-x", "c", "-", "-o", str(program)]
        subprocess.run(command, input=source, text=True, check=True)
        file = CodeFile(os.open(program, os.O_RDONLY), str(program), ())
        code = ProcessCode(Bytes(0, b""), {0: file})
        code.update([MappedModule(0, 1 << 20, 0x1000, 0)])  # where its code begins
        file.close()
        assert bool(code.python) == newer
        assert code.problem == (
            "" if newer else "Python before 3.10, or without symbols: known are CPython 3.10 to 3.14"
        )


def test_offsets_that_cannot_be_are_refused() -> None:
    words = b"xdebugpy" + (0x030D00F0).to_bytes(8, "little") + b"\xff" * 1024
    with pytest.raises(UnknownInterpreter, match="cannot be"):
        interpreter.layout(Bytes(4096, words), 4096, 0)


def test_what_is_read_at_once_has_all_fields() -> None:
    """Sizes end behind the last field that there is; structures too large for the kernel's program are refused."""
    fields = {"heads": 0, "threads": 0, "next": 8, "thread_id": 152, "previous": 8, "code": 0, "instruction": 56}
    walk = interpreter.Walk(**fields, end=70, ends=OWNER, frame=72)
    assert (160, 71) == (walk.state_size, walk.frame_size)
    assert 64 == interpreter.Walk(**fields, end=NONE, ends=OWNER, frame=72).frame_size
    for name in ("thread_id", "instruction"):
        assert 248 == max(_sizes(interpreter.Walk(**fields | {name: 240}, end=70, ends=OWNER, frame=72)))
        with pytest.raises(UnknownInterpreter, match="larger"):
            interpreter.Walk(**fields | {name: 248}, end=70, ends=OWNER, frame=72)


def _sizes(walk: interpreter.Walk) -> tuple[int, int]:
    return walk.state_size, walk.frame_size
