"""Failed allocations become frozen profiles."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace

import pytest

from exporter.cuda import out_of_memory
from exporter.cuda.functions import FUNCTIONS
from exporter.cuda.out_of_memory import OutOfMemory
from exporter.model import Labels
from exporter.stack_profiles.frozen import FreeMemory
from exporter.stack_profiles.model import StackProfile
from exporter.stack_profiles.published import StackProfiles
from tests import made_up_profiles as made_up
from tests.support import until

API = next(number for number, it in enumerate(FUNCTIONS, 1) if it.name == "cuMemAlloc_v2")
MEMORY = {1: "device", 2: "pinned_host"}
FREE = FreeMemory(512, 3.25, "NVML")


@dataclass
class Failure:
    tgid: int = 4711
    bytes: int = 1 << 30
    stack: int = 23
    memory: int = 1
    device: int = 1
    api: int = API


class Node:
    """A process that holds memory of two GPUs, and one with pinned memory."""

    def __init__(self, gpu: str = "GPU-aaaa") -> None:
        self.profiles = StackProfiles(wanted=True)
        self.gate = threading.Event()
        self.gate.set()
        self.gpu = gpu
        self.failing = OutOfMemory(
            *(self.profiles, self.inuse, lambda number: made_up.KV_CACHE if number == 23 else (), self.labels, MEMORY),
            {"GPU-aaaa": FREE}.get,
        )

    def inuse(self) -> StackProfile:
        self.gate.wait(10)
        made = made_up.inuse()
        pinned = replace(made.samples[0], labels={**made_up.SERVE, "kind": "pinned_host"})
        return replace(made, samples=(*made.samples, pinned))

    def labels(self, pid: int, device: int) -> Labels:
        return {"pid": str(pid), "comm": "serve", "namespace": "ml", **({"gpu_uuid": self.gpu} if self.gpu else {})}

    def frozen(self, count: int) -> None:
        until(lambda: len(self.profiles.frozen.newest_first()) == count, f"{count} are frozen")


def test_the_gpus_memory_is_frozen_with_the_request(caplog: pytest.LogCaptureFixture) -> None:
    """Only what was in use on that GPU, no host memory; the request has its stack, size, function and labels."""
    node = Node()
    node.failing.failed(Failure())
    node.frozen(1)
    [frozen] = node.profiles.frozen.newest_first()

    assert 1600 == frozen.profile.total()
    assert (made_up.KV_CACHE, 1 << 30, "cuMemAlloc_v2") == (frozen.failed.stack, frozen.failed.size, frozen.failed.api)
    assert {"pid": "4711", "comm": "serve", "gpu_uuid": "GPU-aaaa", "kind": "device"} == frozen.failed.labels
    assert any("ms after the call had failed" in it for it in frozen.profile.comments)
    assert frozen.failed.free == FREE
    until(lambda: "/debug/pprof/gpu_oom?n=1 has what was in use" in caplog.text, "the log has the address")


def test_all_gpus_where_the_one_is_not_known() -> None:
    """Without the request's GPU the memory of all is there, and a remark."""
    node = Node(gpu="")
    node.failing.failed(Failure())
    node.frozen(1)
    [frozen] = node.profiles.frozen.newest_first()

    assert (1630, None) == (frozen.profile.total(), frozen.failed.free)
    assert any("of all GPUs" in it for it in frozen.profile.comments)


def test_a_process_that_tries_again_is_frozen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first failure within half a minute counts, so that one process leaves the others their places."""
    node = Node()
    for _ in range(5):
        node.failing.failed(Failure())
    node.frozen(1)
    until(lambda: not node.failing.busy.locked(), "the thread has ended")
    node.failing.failed(Failure(tgid=815))
    node.frozen(2)

    monkeypatch.setattr(out_of_memory, "SECONDS", 0.0)
    until(lambda: not node.failing.busy.locked(), "the thread has ended")
    node.failing.failed(Failure())
    node.frozen(3)


def test_one_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    """A failure while another is frozen is in the log and nowhere else."""
    caplog.set_level(logging.WARNING)
    node = Node()
    node.gate.clear()
    node.failing.failed(Failure())
    node.failing.failed(Failure(tgid=815))
    node.gate.set()
    node.frozen(1)

    assert "process 815 is out of GPU memory while another profile is frozen" in caplog.text


def test_host_memory_is_none_of_a_gpu() -> None:
    """A failed allocation of pinned memory freezes nothing."""
    node = Node()
    node.failing.failed(Failure(memory=2))

    assert not node.failing.busy.locked()
    assert () == node.profiles.frozen.newest_first()


def test_an_error_leaves_room_for_the_next(caplog: pytest.LogCaptureFixture) -> None:
    """A profile that cannot be read is in the log, and the next failure is frozen."""
    node = Node()
    good, node.failing.inuse = node.failing.inuse, lambda: made_up.Source().missing()  # type: ignore[attr-defined]
    node.failing.failed(Failure())
    until(lambda: "could not be kept" in caplog.text, "the error is logged")
    until(lambda: not node.failing.busy.locked(), "the thread has ended")
    node.failing.inuse = good
    node.failing.failed(Failure(tgid=815))
    node.frozen(1)
