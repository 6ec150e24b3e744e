"""Profiles of the CUDA collector, while they are on: imported only then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from exporter.bpf.libbpf import Object
from exporter.cuda.names import Names
from exporter.cuda.out_of_memory import OutOfMemory
from exporter.cuda.standing import CudaStandingCalls
from exporter.model import Sample, Unavailable
from exporter.node import Node
from exporter.stack_profiles.model import StackProfile
from exporter.stacks.capture import Capture
from exporter.stacks.hang_watch import HangWatch
from exporter.stacks.profiles import CudaProfiles, LabelsOf

log = logging.getLogger(__name__)


class AllocationRecord(Protocol):
    """struct allocation of bpf/cuda/cuda.h."""

    bytes: int
    tgid: int
    stack: int
    layer: int
    memory: int
    device: int
    api: int
    failed: int


def create(
    node: Node,
    cuda: Object,
    layer: str,
    labels_of: LabelsOf,
    read: Callable[[], None],
    between_windows: Callable[[int], int | None],
) -> CudaProfiling | None:
    """Return what takes stacks; None where the node lacks what that needs, which is the published problem then.

    `read` has `allocated` called with all allocations that the kernel has sent; `between_windows` is as
    CudaProfiles has it.
    """
    try:
        return CudaProfiling(node, cuda, layer, labels_of, read, between_windows)
    except (Unavailable, OSError) as error:
        reason = str(error).partition("\n")[0]
        log.error("there are no profiles of stacks: %s", reason)
        node.stack_profiles.publish(_Unavailable(reason))
        return None


class _Unavailable:
    """A ProfileSource without profiles."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def inuse(self) -> StackProfile:
        raise RuntimeError(self._reason)

    def alloc(self) -> StackProfile:
        raise RuntimeError(self._reason)

    def launches(self) -> StackProfile:
        raise RuntimeError(self._reason)

    def problem(self) -> str:
        return self._reason


class CudaProfiling:
    """Takes stacks, and publishes the profiles in the node. `layer` is the API layer of which allocations count."""

    def __init__(
        self,
        node: Node,
        cuda: Object,
        layer: str,
        labels_of: LabelsOf,
        read: Callable[[], None],
        between_windows: Callable[[int], int | None],
    ) -> None:
        """Load the programs. Raises Unavailable, BpfError."""
        settings = node.settings
        self._node = node
        self._layer = cuda.types.enum("layer")[f"layer_{layer}"]
        self.capture = Capture(
            node,
            cuda,
            layer,
            settings["profile-cpu-ratio"],
            settings["profile-launches-every"],
            settings["profile-allocators"],
        )
        names = Names.of(cuda.types).memory
        self._source = CudaProfiles(
            self.capture, cuda.maps["live"], cuda.types, layer, labels_of, lambda: "", read, between_windows
        )
        self._out_of_memory = OutOfMemory(
            node.stack_profiles, self._source.inuse, self.capture.stack_of, labels_of, names, node.gpus.free
        )
        self._standing = CudaStandingCalls(cuda.maps)
        self._hangs = self._watch(settings["hang-stacks-seconds"])

    def _watch(self, seconds: float) -> HangWatch | None:
        if not seconds:
            return None
        node, capture = self._node, self.capture
        return HangWatch(
            seconds,
            node.stack_profiles,
            node.communicators,
            node.proc,
            lambda: capture.processes,
            partial(node.processes.named, of_pod=node.workloads.of),
            capture.of_threads,
        )

    def start(self) -> None:
        """Take stacks from now on, of libraries as discovery finds them."""
        self.capture.start()
        self._node.targets.want(self.capture.probes)
        if self.capture.blocks:
            self._node.targets.want(self.capture.blocks.probes)
        self._node.stack_profiles.publish(self._source)
        self._node.stack_profiles.standing.add("cuda", self._standing.look)
        if self._hangs:
            self._hangs.start()

    def allocated(self, record: AllocationRecord) -> None:
        """Receive an allocation that succeeded, or one for which there was no memory."""
        if record.layer != self._layer:
            return
        if record.failed:
            self._out_of_memory.failed(record)
        else:
            self.capture.ledger.allocated(record.tgid, record.memory, record.device, record.bytes, record.stack)

    def ended(self, pid: int, between_windows: int) -> None:
        """Count the estimated launches of a process that has ended, before the capture forgets it."""
        if between_windows:
            self.capture.ledger.launched(pid, between_windows)

    def collect(self) -> Iterator[Sample]:
        """Yield the metrics about stacks."""
        yield from self.capture.collect()
        if self._hangs:
            yield from self._hangs.collect()

    def close(self) -> None:
        """Withdraw the profiles and unload; discovery has detached before."""
        self._node.stack_profiles.standing.remove("cuda")
        if self._hangs:
            self._hangs.close()
        self._node.stack_profiles.withdraw(self._source)
        self.capture.close()
