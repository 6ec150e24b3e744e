"""Profiles of the CUDA collector, while they are on: imported only then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from exporter.bpf.libbpf import Object
from exporter.model import Sample
from exporter.node import Node
from exporter.stacks.capture import Capture
from exporter.stacks.profiles import CudaProfiles, LabelsOf


class Allocation(Protocol):
    """struct allocation of bpf/cuda/cuda.h."""

    bytes: int
    tgid: int
    stack: int
    layer: int
    memory: int
    device: int


class Profiling:
    """Takes stacks, and publishes the profiles in the node. `layer` is the API layer of which allocations count."""

    def __init__(self, node: Node, cuda: Object, layer: str, labels_of: LabelsOf) -> None:
        """Load the programs. Raises Unavailable, BpfError."""
        settings = node.settings
        self._node = node
        self._layer = cuda.types.enum("layer")[f"layer_{layer}"]
        self._capture = Capture(node, cuda, layer, settings["profile-cpu-ratio"], settings["profile-launches-every"])
        self._source = CudaProfiles(self._capture, cuda.maps["live"], cuda.types, layer, labels_of, lambda: "")

    def start(self) -> None:
        """Take stacks from now on, of libraries as discovery finds them."""
        self._capture.start()
        self._node.targets.want(self._capture.probes)
        self._node.stack_profiles.publish(self._source)

    def allocated(self, record: Allocation) -> None:
        """Receive a successful allocation."""
        if record.layer == self._layer:
            self._capture.ledger.allocated(record.tgid, record.memory, record.device, record.bytes, record.stack)

    def collect(self) -> Iterator[Sample]:
        """Yield the metrics about stacks."""
        yield from self._capture.collect()

    def close(self) -> None:
        """Withdraw the profiles and unload; discovery has detached before."""
        self._node.stack_profiles.withdraw(self._source)
        self._capture.close()
