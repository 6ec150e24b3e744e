"""Blocks of a caching allocator, of a real interpreter with the stand-in of PyTorch's: memory in use by its owners."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from exporter.stack_profiles.model import StackProfile
from exporter.stack_profiles.published import StackProfiles
from exporter.stacks import capture
from exporter.stacks.blocks import GivenOut
from tests.bpf.cuda_node import BUILD, MIB, build_standins, observe
from tests.bpf.observed import Observed
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(200),
    pytest.mark.evidence(feature="profiles of stacks", on="real program on a stand-in"),
]
SITES = 23
ROWS = 512
USED = "gpu_cuda_memory_usage_bytes"
CACHED = "[cached by the allocator]"
JOB = (
    "".join(f"def site_{n}(size): return allocator.caching_malloc(size)\n" for n in range(SITES))
    + """
import ctypes, os, random, sys, threading
driver, allocator = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libc10_cuda.so")
for function in (allocator.caching_malloc, allocator.caching_allocated, allocator.caching_reserved):
    function.restype = ctypes.c_uint64
allocator.caching_malloc.argtypes = (ctypes.c_size_t,)
allocator.caching_free.argtypes = (ctypes.c_uint64,)
report = ctypes.CDLL("libc10.so")["_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"]
report.argtypes = (ctypes.c_uint64, ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint16)
own = ctypes.c_uint64()

def not_of_the_allocator(size):
    return driver.cuMemAlloc_v2(ctypes.byref(own), ctypes.c_size_t(size))

def free(addresses):
    return sum(allocator.caching_free(it) for it in addresses)

def free_in_other_threads(addresses):
    for it in addresses:
        thread = threading.Thread(target=free, args=([it],))
        thread.start()
        thread.join()

def report_nonsense(count):
    chance = random.Random(23)
    ends = (1 << 63, (1 << 63) - 1, (1 << 64) - 1, 0, 1)
    word = lambda: chance.choice(ends) if chance.random() < 0.2 else chance.getrandbits(64)
    gpu = lambda: chance.getrandbits(8) << 8 | (chance.random() < 0.9)
    for _ in range(count):
        report(word() >> chance.choice((0, 20, 52)), word() >> chance.choice((0, 40)), word(), word(), gpu())

def counted():
    return allocator.caching_allocated(), allocator.caching_reserved()

for line in sys.stdin:
    print(eval(line), flush=True)
"""
)


class Job:
    """An interpreter with the stand-in that evaluates lines."""

    observed: Observed

    def __init__(self, folder: Path) -> None:
        script = folder / "job.py"
        script.write_text(JOB)
        self.process = subprocess.Popen(
            [sys.executable, "-E", "-s", script],
            env={"LD_LIBRARY_PATH": str(BUILD), "PATH": os.environ["PATH"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def __enter__(self) -> Job:
        return self

    def seen_by(self, observed: Observed) -> Job:
        """Wait until its interpreter is known and its blocks are seen."""
        self.observed = observed
        until(self._known, "its interpreter is known and its blocks are seen")
        return self

    def _known(self) -> bool:
        """Return whether a block with a stack is seen, in a segment that is seen too. Either may come first, as each is
        in a library of its own, and a segment that is seen alone has its bytes at the same line.
        """
        assert self.process.poll() is None, "it ended"
        held = int(self.run("site_0(3 << 20)"))
        found = self.in_use()["site_0"]
        seen = [block for block in self.given_out().blocks if block.address == held and block.stack]
        self.run(f"free([{held}])")
        return bool(seen) and found >= 3 * MIB

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def run(self, line: str) -> str:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def counted(self) -> tuple[int, int]:
        """Return the allocator's own counts of allocated and reserved bytes."""
        allocated, reserved = map(int, self.run("counted()").strip("()").split(", "))
        return allocated, reserved

    def given_out(self) -> GivenOut:
        """Return the state of the process's allocator as the probes know it."""
        profiling = self.observed.collector.profiling
        assert profiling and profiling.capture.blocks
        return profiling.capture.blocks.read().get(self.pid, GivenOut())

    def profile(self) -> StackProfile:
        return self.observed.collector.node.stack_profiles.source.inuse()

    def in_use(self, value: int = 0) -> Counter[str]:
        """Bytes or objects in use by the function of Python that is the leaf, of other stacks by the leaf."""
        found: Counter[str] = Counter()
        for it in self.profile().samples:
            if it.labels.get("pid") == str(self.pid):
                names = [frame.function for frame in it.stack if frame.kind == "python"]
                name = names[0] if names else it.stack[0].name if it.stack else "unknown"
                found[name] += it.values[value]
        return found

    def used(self) -> int:
        used: int = self.observed.value(USED, self.pid, memory="device", api_layer="driver")
        return used


@contextmanager
def observing() -> Iterator[Observed]:
    profiles = StackProfiles(wanted=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture, "ROWS", ROWS)
        with observe(
            layers="driver", stack_profiles=profiles, profile_allocators=True, profile_cpu_ratio=1.0
        ) as observed:
            yield observed


@pytest.fixture(scope="module", autouse=True)
def standins() -> None:
    build_standins()


@pytest.fixture(scope="module")
def observed() -> Iterator[Observed]:
    with observing() as observed:
        yield observed


@pytest.fixture
def job(observed: Observed, tmp_path: Path) -> Iterator[Job]:
    with Job(tmp_path) as job:
        yield job.seen_by(observed)


def test_a_job_that_was_there_before(tmp_path: Path) -> None:
    """Segments older than the probes are in neither profile nor metric, which a comment has; blocks in new ones are."""
    with Job(tmp_path) as job:
        job.run("[site_1(512) for _ in range(20)]")
        with observing() as observed:
            job.seen_by(observed)
            job.run("site_2(512)")
            job.run("site_3(7 << 20)")
            assert {"site_3": 7 * MIB} == dict(job.in_use())
            assert job.used() == 7 * MIB
            comments = job.profile().comments
            assert [
                it for it in comments if f"process {job.pid} was there before its probes: at least {2 * MIB} " in it
            ]
            assert {0: 20 * 512} == job.given_out().unknown


def test_each_site_has_the_bytes_of_its_blocks(job: Job) -> None:
    """23 sites, of which a third gives back; what else the process holds is apart, and all is what the metric has."""
    sizes = [100 + 70_000 * n for n in range(SITES)]
    assert (0, 0) == job.counted()
    held = [int(job.run(f"site_{n}({size})")) for n, size in enumerate(sizes)]
    assert "0" == job.run("not_of_the_allocator(5 << 20)")
    job.run("allocator.caching_report_of_cpu()")
    assert "0" == job.run(f"free({held[::3]})")
    allocated, reserved = job.counted()
    expected = {f"site_{n}": -(-size // 512) * 512 for n, size in enumerate(sizes) if n % 3}
    assert sum(expected.values()) == allocated
    cached = {CACHED: reserved - allocated, "not_of_the_allocator": 5 * MIB}
    found = job.in_use()
    assert {**expected, **cached} == dict(found)
    assert job.used() == found.total() == reserved + 5 * MIB
    objects = job.in_use(1)
    assert dict.fromkeys([*expected, "not_of_the_allocator"], 1) == {it: objects[it] for it in objects if it != CACHED}
    assert "0" == job.run(f"free({[it for n, it in enumerate(held) if n % 3]})")
    assert {CACHED: reserved, "not_of_the_allocator": 5 * MIB} == dict(job.in_use())


def test_blocks_for_which_the_table_has_no_room_are_unknown(job: Job) -> None:
    """Not in what is cached, and the profile and the metric have their number."""
    count = 2 * ROWS
    held = job.run(f"[site_1(512) for _ in range({count})]")
    allocated, reserved = job.counted()
    assert count * 512 == allocated
    found = job.in_use()
    assert ROWS // 8 * 512 <= found["site_1"] + found["unknown"] == allocated
    assert found["unknown"] >= (count - ROWS) * 512
    assert reserved - allocated == found[CACHED]
    assert any(it.endswith("stacks are missing: blocks") for it in job.profile().comments)
    assert job.observed.value("gpu_profile_stacks_dropped_total", reason="blocks") >= count - ROWS
    assert "0" == job.run(f"free({held})")
    assert {CACHED: reserved} == dict(job.in_use())


def test_rows_go_with_their_process(job: Job) -> None:
    job.run("[site_2(512) for _ in range(20)]")
    profiling = job.observed.collector.profiling
    assert profiling and profiling.capture.blocks
    blocks, programs = profiling.capture.blocks, profiling.capture.object
    assert len(blocks.read()[job.pid].blocks) == 20
    job.process.kill()
    until(lambda: job.pid not in blocks.read(), "its allocator is gone")
    until(lambda: job.pid not in {key.tgid for key, _ in programs.maps["blocks"].items()}, "its rows are gone")
    until(lambda: len(list(programs.maps["blocks"].items())) == programs.globals()["block_rows"], "all are counted")


def test_blocks_of_all_threads(job: Job) -> None:
    """Freed in threads other than the one that allocated them, as deferred frees are."""
    held = [int(job.run(f"site_{n % 3}(512)")) for n in range(23)]
    job.run(f"free_in_other_threads({held[::2]})")
    allocated, reserved = job.counted()
    kept = Counter({f"site_{n % 3}": 0 for n in range(3)})
    for n in range(1, 23, 2):
        kept[f"site_{n % 3}"] += 512
    assert allocated == kept.total()
    assert {**kept, CACHED: reserved - allocated} == dict(job.in_use())


def test_an_address_that_is_given_out_again(job: Job) -> None:
    """Without a report that it was given back, as it was before its library was probed: its last block counts."""
    at = int(job.run("site_1(4096)"))
    job.run(f"report({at}, 1024, 1024, 2 << 20, 1)")
    found = job.given_out()
    assert [(at, 1024)] == [(it.address, it.bytes) for it in found.blocks if it.address == at]
    assert not found.unknown
    job.run(f"report({at}, -1024, 0, 2 << 20, 1)")
    job.run(f"report({at}, -1024, 0, 2 << 20, 1)")
    assert at not in {it.address for it in job.given_out().blocks}
    assert not job.given_out().unknown


def test_nonsense(observed: Observed, job: Job, tmp_path: Path) -> None:
    """A process that reports any addresses, bytes and GPUs takes no room of others, and its memory stays what it is."""
    job.run("site_1(5 << 20)")
    job.run("report_nonsense(50_000)")
    assert job.used() == job.in_use().total()
    assert all(value >= 0 for it in job.profile().samples for value in it.values)
    assert len(job.given_out().blocks) <= ROWS // 2
    (folder := tmp_path / "other").mkdir()
    with Job(folder) as other:
        other.seen_by(observed)
        other.run("[site_2(512) for _ in range(20)]")
        assert 20 * 512 == other.in_use()["site_2"]
        assert len(other.given_out().blocks) == 20
    profiling = observed.collector.profiling
    assert profiling
    programs = profiling.capture.object
    job.process.kill()
    until(lambda: not job.given_out().reserved, "its rows are gone")
    until(lambda: len(list(programs.maps["blocks"].items())) == programs.globals()["block_rows"], "all are counted")
    until(lambda: not list(programs.maps["block_shares"].items()), "no process has rows")


def test_a_forked_child_holds_none_of_its_parents_blocks(job: Job) -> None:
    job.run("[site_2(512) for _ in range(20)]")
    before = job.in_use()
    child = int(job.run("os.fork() or (free([0]), __import__('time').sleep(60))"))
    try:
        assert before == job.in_use()
        assert not [it for it in job.profile().samples if it.labels.get("pid") == str(child)]
    finally:
        os.kill(child, 9)
