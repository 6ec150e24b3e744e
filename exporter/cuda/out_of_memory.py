"""Allocations that failed for want of GPU memory: what was in use then is frozen, with the failed request."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from exporter.cuda.samples import function
from exporter.model import Labels
from exporter.stack_profiles.frozen import FailedAllocation, FreeMemory
from exporter.stack_profiles.model import LABELS, Stack, StackProfile
from exporter.stack_profiles.published import StackProfiles

SECONDS = 30.0
"""Time after a frozen profile in which further failures of the same process are not frozen: it may try again."""
MOST_PIDS = 1024
HOST = "pinned_host"
"""The kind of memory that is none of a GPU."""

log = logging.getLogger(__name__)


class Failure(Protocol):
    """struct allocation of bpf/cuda/cuda.h, of a call that failed."""

    bytes: int
    tgid: int
    stack: int
    memory: int
    device: int
    api: int


class OutOfMemory:
    """Freezes profiles in `profiles`, each in a thread of its own that ends with it, one at a time.

    `inuse` returns the profile of memory in use, read when it is called; `stack_of` the stack of a number, which may
    take its time to be known; `labels_of` the labels of a process and a GPU; `memory` names kinds of memory; `free_of`
    the free memory of the GPU with a UUID, as it was read last.
    """

    def __init__(
        self,
        profiles: StackProfiles,
        inuse: Callable[[], StackProfile],
        stack_of: Callable[[int], Stack],
        labels_of: Callable[[int, int], Labels],
        memory: Mapping[int, str],
        free_of: Callable[[str], FreeMemory | None],
    ) -> None:
        self._profiles, self.inuse, self._stack_of = profiles, inuse, stack_of
        self._labels_of, self._memory, self._free_of = labels_of, memory, free_of
        self.busy = threading.Lock()
        self._last: dict[int, float] = {}

    def failed(self, record: Failure) -> None:
        """Receive a failed allocation. Returns at once, and before the record is used again."""
        kind, now = self._memory.get(record.memory, ""), time.monotonic()
        if kind == HOST or now - self._last.get(record.tgid, -SECONDS) < SECONDS:
            return
        if not self.busy.acquire(blocking=False):
            log.warning("process %d is out of GPU memory while another profile is frozen: none is kept", record.tgid)
            return
        if len(self._last) >= MOST_PIDS:
            self._last.clear()
        self._last[record.tgid] = now
        known = self._labels_of(record.tgid, record.device)
        labels = {**{name: known[name] for name in LABELS if known.get(name)}, **({"kind": kind} if kind else {})}
        free = self._free_of(labels["gpu_uuid"]) if "gpu_uuid" in labels else None
        request = FailedAllocation((), labels, record.bytes, free, function(record.api).name)
        arguments = request, record.stack, time.time_ns()
        threading.Thread(target=self._freeze, args=arguments, name="out of memory", daemon=True).start()

    def _freeze(self, request: FailedAllocation, number: int, time_ns: int) -> None:
        try:
            profile = self.inuse()
            request = replace(request, stack=self._stack_of(number))
            frozen = self._profiles.frozen.freeze(self._of_gpu(profile, request, time_ns), request, time_ns)
            log.warning(
                "%s of %d bytes by process %s failed, out of memory: /debug/pprof/gpu_oom?n=%d has what was in use",
                request.api,
                request.size,
                request.labels.get("pid", "?"),
                frozen.number,
            )
        except Exception:
            log.exception("the profile of a failed allocation could not be kept")
        finally:
            self.busy.release()

    def _of_gpu(self, profile: StackProfile, request: FailedAllocation, time_ns: int) -> StackProfile:
        """Return what was in use on the GPU of a request; on all where the request's is not known."""
        gpu = request.labels.get("gpu_uuid", "")
        on_gpus = (sample for sample in profile.samples if sample.labels.get("kind") != HOST)
        samples = tuple(sample for sample in on_gpus if not gpu or sample.labels.get("gpu_uuid", gpu) == gpu)
        comments = [f"read {max(0, profile.time_ns - time_ns) / 1e6:.0f} ms after the call had failed"]
        if not gpu:
            comments.append("the GPU of the failed request is not known: memory of all GPUs")
        return replace(profile, samples=samples, comments=(*profile.comments, *comments))
