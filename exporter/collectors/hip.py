"""HIP jobs: launches, memory, copies, waits and errors, from probes on libamdhip64; costs time at each call."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from exporter.background.poller import Poller
from exporter.bpf import process_links
from exporter.bpf.hook import Hook
from exporter.bpf.interposers import Interposers
from exporter.bpf.library import Library
from exporter.bpf.passing import Passing, PassingProcesses
from exporter.bpf.process_links import LinkedProcesses
from exporter.bpf.process_user import user_of
from exporter.call_collector import ERRORS, CallCollector, Rows
from exporter.governor.subject import Subject
from exporter.hip import metrics
from exporter.hip.gpus import HipGpus, read
from exporter.hip.launches import HipLaunches
from exporter.hip.records import CALLS, COPIES, LAUNCHES, PROCESSES, TOTALS, WAITS
from exporter.hip.samples import Names, only_gpu, sample, samples, used_by_device
from exporter.ledger import Process
from exporter.model import Metric, Sample
from exporter.node import Node
from exporter.options import Flag
from exporter.probe_collector import Table
from exporter.series import limit_flag

METRICS: tuple[Metric, ...] = tuple(value for value in vars(metrics).values() if isinstance(value, Metric))
DEFAULT = False
FLAGS = (
    Flag(
        "live-allocations",
        1 << 16,
        "Maximum number of live allocations that are tracked, of all processes, with 96 bytes of kernel memory each. "
        "One process gets an eighth of the table, at least one entry, and more while less than half of the table is "
        "in use.",
        1,
        1 << 24,
    ),
    limit_flag(10_000),
)

UNCOVERED = {
    r"hipLaunchByPtr|_ZN8hip_impl\w*": "launches by hipModuleLaunchKernel (HIP 5.2 to 6.4), which is probed",
    r"hip(Launch|DrvLaunch)HostFunc\w*": "runs a function on the host: no kernel",
    r"hip\w*Graph(Add|Exec|Mem|Get|Set|Kernel|Host|Child|Event|Node)\w*|hipDrvGraph\w*": (
        "describes a graph's node: the work is done by the graph's launch, and not seen call by call"
    ),
    r"hip\w*MemPool\w*": "manages a pool: what is taken from it is counted where it is taken",
    r"hipMem(AddressFree|AddressReserve|\w*Handle\w*|Get\w*|MapArrayAsync)": "neither takes nor frees memory",
    r"hipIpc\w+": "memory that another process holds",
}
"""Symbols that sound like the probed ones and are not, by pattern, with the reason."""
_SOUNDS_LIKE = (
    r"(_Z\w*?)?hip\w*(Malloc|Alloc(?!ation)|Free|Launch(?!Params)|Memcpy|Synchronize|Host(Un)?[Rr]egister)\w*"
    r"|hipMem(Create|Release|Map|Unmap)\w*|hipDeviceReset|hip(Mipmapped)?Array(3D)?(Create|Destroy)\w*"
)
_NAMES = re.compile(r"libamdhip64(-[0-9a-f]+)?\.so(\.[0-9]+)*")
_MANGLED = re.compile(r"_Z\d+(hip[A-Za-z]+?)P18ihip\w+")


def create(node: Node) -> Hip:
    return Hip(node)


def function(symbol: str) -> str:
    """Return the name of a function by its symbol, which in HIP 5 may be one of C++."""
    found = _MANGLED.fullmatch(symbol)
    return found[1] if found else symbol


def _launch(api: int) -> Hook:
    return Hook("on_launch", api, gated=True, sampled="launches", of_one="on_launch_of_one")


class Hip(CallCollector):
    """The probes of bpf/hip/hip.bpf.c."""

    name, api = "hip", "HIP"
    counted = (PROCESSES, LAUNCHES, CALLS, ERRORS, WAITS, TOTALS, COPIES)
    coverable = re.compile(rf"(?!(?:{'|'.join(UNCOVERED)})$)(?:{_SOUNDS_LIKE})")
    kfd_interval: ClassVar[float] = 10.0
    """Seconds between two readings of which GPUs processes use."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._unseen: set[int] = set()
        self._joined: dict[int, set[str]] = {}
        """Of processes that may have made calls before all of a library was probed, the paths of the libraries."""
        self._mixed: set[int] = set()
        """Processes that ran another program, and had memory before that was noticed."""
        self._first: dict[int, bool] = {}
        """By process: true if all its threads were seen from their start on."""
        self.kfd = Poller("hip kfd", partial(read, node.sys), self.kfd_interval)
        """In a thread of its own, since amdkfd may block."""
        self._gpus = HipGpus(node.proc, lambda: self.kfd.last.value)

    def entries(self) -> dict[str, int]:
        return {"live": self.node.settings["live-allocations"]}

    def constants(self) -> dict[str, int]:
        return {"live_most": self.node.settings["live-allocations"]}

    def start(self) -> None:
        super().start()
        self.kfd.start()

    def close(self) -> None:
        self.kfd.close()
        super().close()

    def _prepare(self) -> None:
        super()._prepare()
        self._interposers = Interposers(_NAMES, self._functions)
        self._launching = [api for name, api in self._functions.items() if "Launch" in function(name)]
        self._called = Names(self._function, self._values_of("memory"), self._values_of("direction"))

    def _values_of(self, enum: str) -> Mapping[int, str]:
        return {number: name.removeprefix(f"{enum}_") for name, number in self.object.types.enum(enum).items()}

    def _table(self) -> Table:
        launches = {self._names[api]: [_launch(api)] for api in self._launching}
        return {**super()._table(), **launches}

    def _subject(self) -> Subject:
        self.launches = HipLaunches(self.probes, self.object.maps, self._names, self._launching)
        return self.launches

    def _options(self) -> Mapping[str, Any]:
        processes = PassingProcesses(self.object.maps["passing"], self.object.maps["passing_processes"])
        user = partial(user_of, self.node.proc)
        passing = Passing(self._interposers.passes_on, user, processes, self._lose_counted)
        maps = self.object.maps
        rows = LinkedProcesses(maps["linked"], maps["linked_processes"])
        linked = {"launches": rows} if process_links.supported() else {}
        return {**super()._options(), "withdrawn": self._unseen.update, "passing": passing, "linked": linked}

    def _lose_counted(self, pids: Collection[int]) -> None:
        """Mark processes with memory of which calls are not seen any more."""
        self._unseen.update({key.tgid for key, _ in self.object.maps[PROCESSES].items()}.intersection(pids))

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        if not (from_first_call and self.returns):
            self._joined.setdefault(pid, set()).add(library.path)
        if not from_first_call:
            self.object.programs["join"].run(struct.pack("=Q", pid))
        self._first[pid] = from_first_call and self._first.get(pid, True)
        super().process_started(pid, library, from_first_call)

    def processes_replaced(self, pids: Collection[int]) -> Collection[int]:
        counted = super().processes_replaced(pids)
        self._unseen.update(self._mixed.intersection(pids))
        self._mixed.difference_update(pids)
        return counted

    def processes_ended(self, pids: Collection[int]) -> None:
        super().processes_ended(pids)
        self._mixed.difference_update(pids)

    def _read(self) -> Mapping[int, Rows]:
        seen = super()._read()
        unsure = self._unsure()
        for pid, rows in seen.items():
            if self.watch:
                self.launches.add(rows, self.watch.missed(pid))
            first = self._first.get(pid, False) and pid not in unsure
            rows.gpus = self._gpus.labels(pid, used_by_device(rows, self._called.memory), first)
        return seen

    def _unsure(self) -> Collection[int]:
        """Return the processes with threads of which the device found no room: these have the key of other threads."""
        counted = self.object.globals()
        if counted["devices_lost"]:
            return self._first.keys()
        if not counted["places_lost"]:
            return ()
        return {pid for pid, it in self.object.maps["devices"].items() if it.unsure}

    def _take(self, pids: Collection[int]) -> Mapping[int, Rows]:
        for key, value in self.object.maps[PROCESSES].items():
            held = value.own or value.missed > 1  # since exec: bpf/hip/memory.h
            if held and key.tgid in pids and os.access(f"{self.node.proc}/{key.tgid}", os.F_OK):
                self._mixed.add(key.tgid)
        unsure = self._unsure()
        taken = super()._take(pids)
        for pid in pids:
            rows = taken.get(pid, Rows())
            if self.watch:
                self.launches.add(rows, self.watch.finish(pid, self.launches.last(pid, rows)))
            first = self._first.get(pid, False) and pid not in unsure
            rows.gpus = self._gpus.last(pid, used_by_device(rows, self._called.memory), first)
        return taken

    def _forget(self, pids: Collection[int]) -> None:
        self._unseen.difference_update(pids)
        for pid in pids:
            self._joined.pop(pid, None)
            self._first.pop(pid, None)
            self._gpus.forget(pid)

    def costs(self, pids: Collection[int]) -> Mapping[int, float]:
        return {}

    def _losses(self) -> Iterator[Sample]:
        yield from super()._losses()
        yield metrics.COPIES_UNREAD.sample(self.object.globals()["copies_unread"])

    def _samples(self) -> Iterator[Sample]:
        for process in self.ledger.processes():
            yield from self._samples_of(process)
            if not process.ended and process.pid in self.ledger:
                whole = not self._is_unseen(process) and (
                    self._joined.get(process.pid, set()) <= self.probes.passed_by(process.pid)
                )
                whole &= not self.watch or self.watch.whole(process.pid)
                yield sample(process, metrics.SEEN_FROM_START, int(whole), only_gpu(process.activity))

    def _is_unseen(self, process: Process[Rows]) -> bool:
        """Return whether a call on memory was not seen, or may have been made while return probes were off."""
        missed = any(value.missed for _, value in process.activity.of(PROCESSES))
        return missed or process.replaced or (process.pid in self._unseen and not process.ended)

    def _function(self, api: int) -> str:
        return function(self._names[api])

    def _samples_of(self, process: Process[Rows]) -> Iterator[Sample]:
        return samples(process, self._called, self.node.clock.wall_ns, self._is_unseen(process))
