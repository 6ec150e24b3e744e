"""Blocks that PyTorch's caching allocator has given out of its segments, with the flag profile-allocators.

The allocator reports each block to a function that libc10.so exports, with the block's address and bytes, and with what
it has given out and holds on that GPU. That function does not fail, so no return is probed: a return probe on a
function of C++ that throws, as the allocator's own do when memory is short, would end the process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from exporter.bpf.ends import forget
from exporter.bpf.hook import Hook
from exporter.bpf.libbpf import Object
from exporter.bpf.library import Library
from exporter.bpf.probe import Probes
from exporter.bpf.safety import protection
from exporter.node import Node

OF_BLOCKS = frozenset({"allocators", "block_shares", "blocks", "ended"})
"""Maps of bpf/stacks/blocks.h and bpf/probe.h, which the program that takes stacks of threads does not have."""
ROWS = 1 << 18
"""Blocks of all processes; one process gets an eighth of the table, and more while less than half is taken."""
BYTES_OF_STACKS = 64 << 20
"""The ring buffer of stacks: 1,300 of them, as a program that starts has most of its blocks within a second."""
REPORTS = (
    "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
    "_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE",
)
"""c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, Device), and that of PyTorch 1, with int64_t."""


class Block(NamedTuple):
    """A block that is given out; `stack` is the number of its stack, 0 for none."""

    address: int
    bytes: int
    stack: int


@dataclass(slots=True)
class GivenOut:
    """Memory that the allocators of one process have allocated from their segments."""

    blocks: list[Block] = field(default_factory=list)
    unknown: dict[int, int] = field(default_factory=dict)
    """By PyTorch's number of the GPU the bytes that are given out in blocks without a row."""
    reserved: dict[int, int] = field(default_factory=dict)
    """The bytes of all segments, as the allocator counted them when it last reported a block."""


class Blocks:
    """Probes the function, and reads the tables that its program fills. `programs` is the object of bpf/stacks/."""

    def __init__(self, node: Node, programs: Object) -> None:
        self.object = programs
        self.probes = Probes(
            "allocators",
            programs,
            {name: [Hook("on_block")] for name in REPORTS},
            hits=dict,
            protection=partial(protection, node.proc),
            returns_allowed=lambda _: (True, ""),
            listener=self,
        )

    def read(self) -> Mapping[int, GivenOut]:
        """Return what is given out now, by pid; of processes with an allocator that has reported a block."""
        found: dict[int, GivenOut] = {}
        for key, row in self.object.maps["allocators"].items():
            of = found.setdefault(key.tgid, GivenOut())
            of.reserved[key.device] = row.reserved
            if (unknown := row.allocated - max(row.tracked, 0)) > 0:
                of.unknown[key.device] = unknown
        for pid, address, size, number in self.object.maps["blocks"].rows(("tgid", "address"), ("bytes", "stack")):
            if pid in found:
                found[pid].blocks.append(Block(address, size, number))
        return found

    # The processes that have the library (exporter.bpf.probe.Listener).

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        """Do nothing: a process is known by its first block."""

    def processes_ended(self, pids: Collection[int]) -> None:
        """Forget the blocks of these processes."""
        self._drop(pids)

    def processes_replaced(self, pids: Collection[int]) -> Collection[int]:
        """Forget the blocks of the programs that these processes ran before. Return the processes that had blocks."""
        return self._drop(pids)

    def _drop(self, pids: Collection[int]) -> Collection[int]:
        reported = {key.tgid for key, _ in self.object.maps["allocators"].items()}
        if with_rows := reported.intersection(pids):
            forget(self.object, with_rows)
        return with_rows
