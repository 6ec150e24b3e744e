"""Stacks of allocations on a machine that has little time for them: none is lost, or missing without a comment."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from exporter.bpf.events import Events
from exporter.stack_profiles.model import StackProfile, StackSample
from exporter.stack_profiles.published import StackProfiles
from exporter.stacks import capture
from tests.bpf.cuda_node import BUILD, Script, build_standins, observe
from tests.bpf.fixtures import once
from tests.bpf.observed import Observed
from tests.support import PATIENCE, until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(200),
    pytest.mark.evidence(feature="profiles of stacks", on="real program on a stand-in"),
]
ALLOCATE = "new(lib.cuMemAlloc_v2, size({}))"

observed = once(partial(observe, layers="driver", stack_profiles=StackProfiles(wanted=True), profile_cpu_ratio=1.0))


@contextmanager
def known(observed: Observed) -> Iterator[Script]:
    """A script of which the calls and the frames of its interpreter are seen."""
    profiling = observed.collector.profiling
    assert profiling
    interpreters = profiling.capture.object.maps["interpreters"]
    with Script() as script:
        until(lambda: interpreters.get(script.pid) and script.pid in observed.collector.ledger, "it is known")
        yield script


@contextmanager
def stopped(observed: Observed) -> Iterator[None]:
    """Within it the process that unwinds stacks does not run."""
    profiling = observed.collector.profiling
    assert profiling
    child = until(lambda: profiling.capture._worker.child)
    os.kill(child.reader, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(child.reader, signal.SIGCONT)


def by_leaf(profile: StackProfile, pid: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for it in profile.samples:
        if it.labels.get("pid") == str(pid):
            found[it.stack[0].function if it.stack else ""] += it.values[0]
    return found


@pytest.mark.parametrize("kind", ["inuse", "alloc"])
def test_a_profile_waits_for_its_stacks(observed: Observed, kind: str) -> None:
    """Longer than three seconds, as on a machine with much else to do."""
    take, found = getattr(observed.collector.node.stack_profiles.source, kind), []
    with known(observed) as script:
        with stopped(observed):
            script.run(ALLOCATE.format(4099))
            taking = threading.Thread(target=lambda: found.append(by_leaf(take(), script.pid)))
            taking.start()
            taking.join(3)
        taking.join(PATIENCE)
    assert [{"cuMemAlloc_v2": 4099}] == found


@pytest.mark.parametrize("kind", ["inuse", "alloc"])
def test_a_profile_without_the_newest_stacks(observed: Observed, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A stack that it did not wait for is unknown in it, which a comment shows; the next profile has it."""
    take = getattr(observed.collector.node.stack_profiles.source, kind)
    with known(observed) as script:
        with stopped(observed), monkeypatch.context() as patch:
            patch.setattr("exporter.stacks.profiles.UNWIND_SECONDS", 0.1)
            patch.setattr("exporter.stacks.capture.UNWIND_SECONDS", 0.1)
            script.run(ALLOCATE.format(4099))
            profile = take()
            assert {"": 4099} == by_leaf(profile, script.pid)
            assert [it for it in profile.comments if re.match(r"\d+ stacks are missing: not unwound within", it)]
        profile = take()
        assert {"cuMemAlloc_v2": 4099} == by_leaf(profile, script.pid)
        assert not [it for it in profile.comments if "not unwound within" in it]


def test_allocations_have_the_last_part_of_the_ring_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing reads it: launches take the first half. Each launch counts, with its stack or without."""
    monkeypatch.setattr(Events, "start", lambda *_, **__: None)
    build_standins()
    profiles = StackProfiles(wanted=True)
    shown = {"stack_profiles": profiles, "profile_launches_every": 1, "profile_cpu_ratio": 1.0}
    with observe(layers="driver", **shown) as observed, known(observed) as script:  # type: ignore[arg-type]
        script.run("for _ in range(1009): lib.cuLaunchKernel(*[None] * 11)")
        for _ in range(23):
            script.run(ALLOCATE.format(4099))
        assert {"cuMemAlloc_v2": 23 * 4099} == by_leaf(profiles.source.inuse(), script.pid)
        launches = by_leaf(profiles.source.launches(), script.pid)
        assert launches.total() == 1009
        lost = observed.value("gpu_profile_stacks_dropped_total", reason="ring")
        assert 0 < launches[""] <= lost


def test_blocks_leave_room_for_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a caching allocator take half of the ring buffer, large ones three quarters."""
    monkeypatch.setattr(Events, "start", lambda *_, **__: None)
    monkeypatch.setattr(capture, "BYTES_OF_STACKS", 1 << 21)
    build_standins()
    profiles = StackProfiles(wanted=True)
    shown = {"stack_profiles": profiles, "profile_allocators": True, "profile_cpu_ratio": 1.0}
    with observe(layers="driver", **shown) as observed, known(observed) as script:  # type: ignore[arg-type]
        script.run(
            "report = ctypes.CDLL('libc10.so')['_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE']\n"
            "report.argtypes = (c_uint64, ctypes.c_int64, c_uint64, c_uint64, ctypes.c_uint16)\n"
            "def block(size, held=[0]):\n"
            "    held[0] += size\n"
            "    report((1 << 40) + held[0], size, held[0], held[0], 1)"
        )

        def blocks(size: int) -> list[int]:
            assert profiling and profiling.capture.blocks
            given_out = profiling.capture.blocks.read().get(script.pid)
            return [bool(it.stack) for it in given_out.blocks if it.bytes == size] if given_out else []

        profiling = observed.collector.profiling

        def seen() -> bool:
            profiles.source.inuse()  # reads all that wait
            script.run("block(512)")
            return any(blocks(512))

        until(seen, "blocks are seen")
        profiles.source.inuse()
        script.run("for _ in range(100): block(1024)")
        script.run("for _ in range(100): block(2 << 20)")
        for _ in range(7):
            script.run(ALLOCATE.format(4099))
        small, large = blocks(1024), blocks(2 << 20)
        assert (100, 100) == (len(small), len(large))
        assert 0 < sum(large) < sum(small) < 50, profiling and profiling.capture.dropped()
        assert {"cuMemAlloc_v2": 7 * 4099} == by_leaf(profiles.source.inuse(), script.pid)
        lost = observed.value("gpu_profile_stacks_dropped_total", reason="ring")
        assert 200 - sum(small) - sum(large) <= lost


def test_libraries_that_are_loaded_one_after_the_other(observed: Observed, tmp_path: Path) -> None:
    """Each is known when memory is allocated through it for the first time."""
    source = tmp_path / "through.c"
    source.write_text(
        "extern int cuMemAlloc_v2(unsigned long long *address, unsigned long bytes);\n"
        "unsigned long long address;\n"
        "int THROUGH(unsigned long bytes) { return cuMemAlloc_v2(&address, bytes) + 1; }\n"
    )
    with known(observed) as script:
        for n in range(7):
            command = ["gcc", "-O2", "-fPIC", "-shared", f"-DTHROUGH=through_{n}", source, BUILD / "libcuda.so.1"]
            subprocess.run([*map(str, command), "-o", str(tmp_path / f"through_{n}.so")], check=True)
            script.run(f"ctypes.CDLL({str(tmp_path / f'through_{n}.so')!r}).through_{n}(size({4099 + n}))")
            samples: Sequence[StackSample] = observed.collector.node.stack_profiles.source.inuse().samples
            samples = [it for it in samples if it.labels.get("pid") == str(script.pid)]
            [stack] = [it.stack for it in samples if it.values[0] == 4099 + n]
            assert ["cuMemAlloc_v2", f"through_{n}"] == [it.function for it in stack[:2]]
            assert stack[-1].kind == "native" and stack[-1].function == "_start"
