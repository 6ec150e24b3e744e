"""Profiles of stacks out of the whole program, read by programs of others: what real jobs allocate, to the byte."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tests import profile_readers as readers
from tests.bpf.cuda_node import BUILD, build_standins
from tests.program.process import Exporter
from tests.support import PATIENCE, until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(400),
    pytest.mark.evidence(feature="profiles of stacks", on="real program on a stand-in"),
]
SOURCES = Path(__file__).parent / "stacks"
EVERY = 10
FLAGS = (
    *("--collector.disable-defaults", "--collector.cuda", "--profile=debug"),
    *("--web.enable-profiles", f"--collector.cuda.profile-launches-every={EVERY}"),
    "--collector.cuda.profile-cpu-ratio=1",  # on a busy machine a stack takes more processor time
)
TENSORS, LAUNCHES = 23, 4600
WEIGHTS = sum(1_000_003 + n for n in range(TENSORS))
IN_C = {
    ("device", "load_weights"): (WEIGHTS, TENSORS),
    ("pool", "reserve_cache"): (7919, 1),
    ("device", "reserve_cache"): (65_537, 1),
    ("managed", "share_with_host"): (104_729, 1),
    ("pinned_host", "share_with_host"): (1_299_709, 1),
}
"""Bytes and allocations of job.c by kind and function."""
PYTHON = """\
import ctypes, sys, threading

driver = ctypes.CDLL("libcuda.so.1")


class Cache:
    def reserve(self, blocks):
        for block in range(blocks):
            allocate(32_768 + block)


def allocate(size):
    address = ctypes.c_uint64()
    assert not driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
    return address


def load(layers):
    for layer in range(layers):
        allocate(2_000_003)


print("started", flush=True)
while "try" in sys.stdin.readline():
    assert not driver.cuMemFree_v2(allocate(1))
    print("freed", flush=True)
load(23)
Cache().reserve(7)
thread = threading.Thread(target=load, args=(5,))
thread.start()
thread.join()
print("allocated", flush=True)
sys.stdin.readline()
"""


def line(text: str) -> int:
    """The number of the line of PYTHON that has this text."""
    [number] = [n for n, it in enumerate(PYTHON.splitlines(), 1) if text in it]
    return number


ALLOCATE = ("allocate", line("cuMemAlloc_v2"))
IN_PYTHON = {
    (ALLOCATE, ("load", line("allocate(2_000")), ("<module>", line("load(23)"))): (23 * 2_000_003, 23),
    (ALLOCATE, ("reserve", line("allocate(32")), ("<module>", line("reserve(7)"))): (sum(range(32_768, 32_775)), 7),
    (ALLOCATE, ("load", line("allocate(2_000"))): (5 * 2_000_003, 5),
}
"""Bytes and allocations of PYTHON by the functions and lines of its file."""


class Job:
    """A program on the stand-in driver, which goes on when it is let."""

    def __init__(self, *command: Path | str) -> None:
        self.process = subprocess.Popen(
            command,
            env=os.environ | {"LD_LIBRARY_PATH": str(BUILD)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        self.read()

    def read(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def go(self, command: str = "") -> str:
        assert self.process.stdin
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.read()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Place(NamedTuple):
    function: str
    file: str
    line: int
    mapping: str


class Read(NamedTuple):
    """A sample as the public schema has it: places, the leaf first, values and labels."""

    places: list[Place]
    values: tuple[int, ...]
    labels: dict[str, str]


class Node:
    """The exporter with its two jobs."""

    def __init__(self, exporter: Exporter, schema: ModuleType, native: Job, python: Job) -> None:
        self.exporter, self.schema, self.native, self.python = exporter, schema, native, python

    def fetch(self, profile: str, query: str = "") -> bytes:
        url = f"http://{self.exporter.address}/debug/pprof/{profile}{query}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return bytes(answer.read())

    def samples(self, profile: str, query: str = "") -> list[Read]:
        message: Any = self.schema.Profile()
        message.ParseFromString(gzip.decompress(self.fetch(profile, query)))
        text = message.string_table
        functions = {it.id: it for it in message.function}
        mappings = {it.id: text[it.filename] for it in message.mapping}
        places: dict[int, list[Place]] = {}
        for location in message.location:
            mapping = mappings.get(location.mapping_id, "")
            lines = [(functions[it.function_id], it.line) for it in location.line]
            places[location.id] = [Place(text[it.name], text[it.filename], line, mapping) for it, line in lines]
            places[location.id] = places[location.id] or [Place("", "", 0, mapping)]
        return [
            Read(
                [place for number in it.location_id for place in places[number]],
                tuple(it.value),
                {text[label.key]: text[label.str] for label in it.label},
            )
            for it in message.sample
        ]

    def is_seen(self) -> bool:
        """Return whether calls of both jobs are seen, with the functions of Python."""
        assert [self.native.go("try"), self.python.go("try")] == ["freed 0", "freed"]
        samples = self.samples("gpu_alloc")
        seen = [called_by(it, "main") for it in of(samples, self.native.pid)]
        return any(seen) and any(in_python(it) for it in of(samples, self.python.pid))

    def usage(self, pid: int) -> float:
        used = self.exporter.family("gpu_cuda_memory_usage_bytes")
        return sum(value for labels, value in used.items() if f'pid="{pid}"' in labels)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Jobs that have allocated, after they were found."""
    build_standins()
    folder = tmp_path_factory.mktemp("stacks")
    schema = readers.schema(folder)
    program, script = folder / "weights", folder / "serve.py"
    command = ["gcc", "-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", SOURCES / "job.c", "-o", program]
    subprocess.run([*map(str, command), str(BUILD / "libcuda.so.1")], check=True)
    script.write_text(PYTHON)
    exporter = Exporter(folder, *FLAGS)
    jobs: list[Job] = []
    try:
        exporter.await_ready()
        jobs = [Job(program), Job(sys.executable, script)]
        node = Node(exporter, schema, *jobs)
        until(node.is_seen, lambda: exporter.log)
        assert [node.native.go(), node.python.go()] == ["allocated 0", "allocated"]
        yield node
    finally:
        for job in jobs:
            job.end()
        code = exporter.end()
    assert code == 0, exporter.log
    assert "Traceback" not in exporter.log and "level=error" not in exporter.log, exporter.log


def of(samples: list[Read], pid: int) -> list[Read]:
    return [it for it in samples if it.labels["pid"] == str(pid)]


def added(samples: list[Read], key: Callable[[Read], Any]) -> dict[Any, tuple[int, int]]:
    """Bytes and objects by a key."""
    sums: dict[Any, tuple[int, int]] = {}
    for it in samples:
        space, objects = sums.get(key(it), (0, 0))
        sums[key(it)] = space + it.values[0], objects + it.values[1]
    return sums


def called_by(sample: Read, function: str) -> str:
    """The function that one called; empty if it is not on the stack."""
    names = [it.function for it in sample.places]
    return names[names.index(function) - 1] if function in names else ""


def in_c(sample: Read) -> tuple[str, str]:
    """Kind of memory, and the function below main."""
    return sample.labels["kind"], called_by(sample, "main")


def in_python(sample: Read) -> tuple[tuple[str, int], ...]:
    """Functions and lines of PYTHON's file."""
    places = [it for it in sample.places if it.file.endswith("/serve.py")]
    return tuple((it.function.rpartition(".")[2], it.line) for it in places)


def test_in_use_is_what_the_jobs_hold(node: Node) -> None:
    """Each byte is under its function and line, and the sum is that of gpu_cuda_memory_usage_bytes."""
    samples = node.samples("gpu_inuse")
    native, python = of(samples, node.native.pid), of(samples, node.python.pid)

    assert added(native, in_c) == IN_C
    assert added(python, in_python) == IN_PYTHON
    for job, own in ((node.native, native), (node.python, python)):
        assert sum(it.values[0] for it in own) == node.usage(job.pid) > 0
        assert node.samples("gpu_inuse", f"?pid={job.pid}") == own
    assert all(it.places[0].function.startswith("cuMem") and it.labels["comm"] for it in native + python)
    assert all("libcuda.so.1" in it.places[0].mapping for it in native + python)


def test_go_reads_the_same(node: Node, tmp_path: Path) -> None:
    """Go's pprof has the bytes of each line of Python, and the sum."""
    file = tmp_path / "gpu_inuse.pb.gz"
    file.write_bytes(node.fetch("gpu_inuse", f"?pid={node.python.pid}"))
    command = [readers.go_pprof(), "-top", "-lines", "-unit=B", "-nodefraction=0", "-symbolize=none", file]
    environment = {"PPROF_TMPDIR": str(tmp_path), "PATH": ""}
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, timeout=60, check=True)
    shown = re.findall(r" (\d+)B +[\d.]+% +(\S+ \S+/serve\.py:\d+)$", done.stdout, re.MULTILINE)
    by_line = {place.rpartition("/")[2]: int(value) for value, place in shown}

    assert f"of {int(node.usage(node.python.pid))}B total" in done.stdout
    assert by_line[f"serve.py:{line('allocate(2_000')}"] == 28 * 2_000_003
    assert by_line[f"serve.py:{line('allocate(32')}"] == sum(range(32_768, 32_775))


def test_what_launches_and_frees_change(node: Node) -> None:
    """Launches are below their function; what was freed is gone from memory in use, and still in what was allocated."""
    assert node.native.go() == "launched 0"
    launched = of(node.samples("gpu_launches"), node.native.pid)
    names = [[place.function for place in it.places[:3]] for it in launched]
    standard_deviation = (LAUNCHES * (EVERY - 1)) ** 0.5
    assert abs(sum(it.values[0] for it in launched) - LAUNCHES) < 4 * standard_deviation
    assert ["cuLaunchKernel", "step", "main"] in names
    assert all(it in (["cuLaunchKernel", "step", "main"], ["[unknown stack]"]) for it in names)

    assert node.native.go() == "freed 0"
    freed = sum(1_000_003 + n for n in range(0, TENSORS, 2))
    held = of(node.samples("gpu_inuse"), node.native.pid)
    expected = IN_C | {("device", "load_weights"): (WEIGHTS - freed, TENSORS // 2)}
    assert added(held, in_c) == expected
    assert sum(it.values[0] for it in held) == node.usage(node.native.pid)
    allocated = added(of(node.samples("gpu_alloc"), node.native.pid), in_c)
    assert {key: sums for key, sums in allocated.items() if key in IN_C} == IN_C


def test_what_is_dropped_is_counted(node: Node) -> None:
    """Each reason has its counter; none of the two programs' allocations was dropped."""
    dropped = node.exporter.family("gpu_profile_stacks_dropped_total")

    assert {'reason="budget"', 'reason="ring"', 'reason="table"'} <= dropped.keys()
    assert not dropped['reason="budget"'] and not dropped['reason="table"'] and not dropped.get('reason="process"')
    assert (node.exporter.value("gpu_profile_stacks_total") or 0) > TENSORS
