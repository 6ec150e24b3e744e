"""Jobs that hang, of a real interpreter with the stand-in driver: the stacks of all their threads are kept."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from exporter.stack_profiles.hangs import Hang
from exporter.stack_profiles.model import Stack
from exporter.stack_profiles.published import StackProfiles
from tests.bpf.cuda_node import BUILD, build_standins, observe
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(200),
    pytest.mark.evidence(feature="profiles of stacks", on="stand-in"),
]
JOB = """
import ctypes, queue, sys, threading
driver = ctypes.CDLL("libcuda.so.1")
address = ctypes.c_uint64()

def wait_for_the_gpu():
    driver.standin_busy(None, ctypes.c_uint64(600 * 10**9))
    driver.cuStreamSynchronize(None)

def step():
    wait_for_the_gpu()

def load():
    begun.wait()
    queue.Queue().get()

def spin():
    begun.wait()
    while True:
        pass

begun = threading.Barrier(4)
for function in load, spin, load:
    threading.Thread(target=function, daemon=True).start()
begun.wait()
assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20)) == 0
print("begun", flush=True)
sys.stdin.readline()
step()
"""
SECONDS = 1.0


@pytest.fixture
def hanging() -> Iterator[tuple[subprocess.Popen[str], StackProfiles]]:
    """A job in a wait that does not end, and the profiles of a node that looks for calls of more than SECONDS."""
    build_standins()
    profiles = StackProfiles(wanted=True)
    with (
        observe(layers="driver", stack_profiles=profiles, hang_stacks_seconds=SECONDS) as observed,
        subprocess.Popen(
            [sys.executable, "-c", JOB],
            env={"LD_LIBRARY_PATH": str(BUILD)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as job,
    ):
        assert job.stdin and job.stdout and job.stdout.readline()
        try:
            until(lambda: observed.collector.returns, "return probes")
            until(lambda: job.pid in observed.collector.ledger, "the job")
            job.stdin.write("\n")
            job.stdin.flush()
            yield job, profiles
        finally:
            job.kill()


def names(stack: Stack) -> list[str]:
    return [frame.function for frame in stack]


def newest(profiles: StackProfiles) -> Hang | None:
    return next(iter(profiles.hangs.newest_first()), None)


def test_every_thread(hanging: tuple[subprocess.Popen[str], StackProfiles]) -> None:
    """The thread that waits has its frames in the kernel, the driver and Python, in this order; others have theirs. A
    call that still has not returned is in no second profile.
    """
    job, profiles = hanging

    until(lambda: newest(profiles), "a profile of the hang")

    hang = newest(profiles)
    assert hang
    assert ("cuStreamSynchronize", str(job.pid)) == (hang.what, hang.labels["pid"])
    assert SECONDS <= hang.seconds < 60 * SECONDS
    stacks = [names(sample.stack) for sample in hang.profile.samples]
    assert 4 == hang.profile.total() == len(stacks), stacks
    [waits] = [stack for stack in stacks if "wait_for_the_gpu" in stack]
    order = ["cuStreamSynchronize", "wait_for_the_gpu", "step", "<module>"]
    assert order == [name for name in waits if name in order]
    leaf = hang.profile.samples[stacks.index(waits)].stack[0]
    assert leaf.kind == "kernel" and "nanosleep" in leaf.function
    assert 2 == sum("load" in stack for stack in stacks)
    assert 1 == sum("spin" in stack for stack in stacks)
    assert {str(job.pid)} == {sample.labels["pid"] for sample in hang.profile.samples}
    time.sleep(3 * SECONDS)
    assert 1 == len(profiles.hangs.newest_first())
