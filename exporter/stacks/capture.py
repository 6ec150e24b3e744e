"""Stacks of CUDA calls that allocate and launch, from the kernel to the ledger, while profiles are on.

The probes are an object of their own (bpf/stacks/) on the functions that the CUDA collector probes too: it puts the
number of a call's stack where the collector's programs find it when the call has succeeded.
"""

from __future__ import annotations

import logging
import struct
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from exporter.bpf import object_path
from exporter.bpf.events import Events
from exporter.bpf.hook import Hook
from exporter.bpf.libbpf import BpfError, Object
from exporter.bpf.library import Library
from exporter.bpf.native import not_started
from exporter.bpf.probe import Probes
from exporter.bpf.safety import protection
from exporter.cuda.functions import FUNCTIONS, CudaFunction
from exporter.model import Sample
from exporter.node import Node
from exporter.stack_profiles.model import Stack
from exporter.stacks import metrics, record
from exporter.stacks.blocks import BYTES_OF_STACKS, OF_BLOCKS, ROWS, Blocks
from exporter.stacks.budget import CpuBudget
from exporter.stacks.ledger import StackLedger
from exporter.stacks.threads import Key, Threads
from exporter.stacks.worker import StackWorker

_ALLOCATES = frozenset({"allocate", "allocate_from", "allocate_pitch", "allocate_extent", "register", "create"})
_TICK_SECONDS = 0.5
UNWIND_SECONDS = 20.0
"""Time that a profile waits for stacks. On a busy machine the child that unwinds may wait long for a processor."""
_LOOK_SECONDS, _AGAIN_SECONDS = 0.01, 0.02
_MOST_EARLY = 256
_ONLY = 0
_COOKIE = struct.Struct("=HB5x")
"""struct cookie of bpf/stacks/stacks.bpf.c."""
log = logging.getLogger(__name__)


class Capture:
    """Takes and unwinds stacks. `cuda` is the object of the CUDA collector, `layer` the API layer that is probed for
    memory, `share` the part of a processor that unwinding may take. One of `every` launches is taken; 0: none.
    `allocators`: blocks of caching allocators too.
    """

    def __init__(
        self, node: Node, cuda: Object, layer: str, share: float, every: int, allocators: bool = False
    ) -> None:
        """Load the programs. Raises Unavailable where the node lacks what they need, BpfError for other failures."""
        self.node, self.every = node, every
        self.ledger = StackLedger()
        try:
            self.object = Object(
                object_path("stacks"),
                constants={"launches_every": max(every, 1), "blocks_most": ROWS},
                entries={"blocks": ROWS, "stacks": BYTES_OF_STACKS} if allocators else {"blocks": 1},
                shared={"stack_ids": cuda.maps["stack_ids"]},
            )
        except BpfError as error:
            raise not_started("the programs that take stacks cannot be loaded", error) from error
        cuda.maps["launch_stacks"].set(_ONLY, self.object.programs["on_some_launches"].fd)
        self._row = self.object.types.struct("interpreter")
        layers = cuda.types.enum("layer")
        hooks = {it.name: self._hooks(api, it, layers) for api, it in enumerate(FUNCTIONS, 1) if it.layer == layer}
        self.probes = Probes(
            "stacks",
            self.object,
            {name: found for name, found in hooks.items() if found},
            hits=dict,
            protection=partial(protection, node.proc),
            returns_allowed=lambda _: (True, ""),
            listener=self,
        )
        self.blocks = Blocks(node, self.object) if allocators else None
        self.live_numbers: Callable[[], Collection[int]] = tuple
        """Returns the numbers of the stacks of all memory that is allocated now; the profiles set it."""
        self._budget = CpuBudget(share)
        self._processes: set[int] = set()
        self._probed_late: set[int] = set()
        self._early: OrderedDict[int, None] = OrderedDict()
        """Processes of stacks that came before discovery had found them."""
        self._problems: dict[int, str] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._worker = StackWorker(self._receive, self._admit_all, self.ledger.begin)
        shared = {name: it for name, it in self.object.maps.items() if name not in OF_BLOCKS}
        self._threads = Threads(node.proc, shared)
        self._events = Events()
        self._ticking = threading.Thread(target=self._tick_on, name="stacks budget", daemon=True)

    def start(self) -> None:
        """Begin; libraries are attached to as discovery finds them."""
        self._events.add(self.object.maps["stacks"], self._take)
        self._events.start("stacks events", look=_LOOK_SECONDS)
        self._worker.start()
        self._ticking.start()

    def close(self) -> None:
        """Unload; discovery has detached before."""
        self._closing.set()
        self._ticking.join(2 * _TICK_SECONDS)
        self._worker.close()  # what waits for it holds up the thread of the events
        self._events.close()
        self._threads.close()
        self.object.close()

    def flush(self, seconds: float) -> bool:
        """Wait until the stacks taken before are unwound. Returns False if that takes longer."""
        until = time.monotonic() + seconds
        read = self._events.flush(self.object.maps["stacks"], seconds)
        return self._worker.flush(max(0.0, until - time.monotonic())) and read

    def await_stacks(self, numbers: Collection[int]) -> int:
        """Wait until the stacks of allocations with these numbers are unwound, or known to be lost. Returns how many of
        them are not in time.
        """
        self._events.flush(self.object.maps["stacks"])  # what the kernel has taken may not have been read yet
        until = time.monotonic() + UNWIND_SECONDS
        while (numbers := self.ledger.unknown(numbers)) and time.monotonic() < until:
            time.sleep(_AGAIN_SECONDS)
        return len(numbers)

    def stack_of(self, number: int) -> Stack:
        """Return the stack of an allocation by its number; empty where it was not taken or is not known in time."""
        self.await_stacks([number])
        return self.ledger.stack(self.ledger.stack_of(number))

    @property
    def processes(self) -> Collection[int]:
        """The processes that use what is probed."""
        with self._lock:
            return set(self._processes)

    @property
    def probed_late(self) -> set[int]:
        """The processes that may have allocated before they were probed."""
        with self._lock:
            return set(self._probed_late)

    def of_threads(self, pids: Collection[int]) -> dict[Key, Stack]:
        """Return the stacks of all threads of processes, as Threads.snapshot does."""
        known = self.processes
        return self._threads.snapshot(pids, lambda pids: self._worker.admit([pid for pid in pids if pid not in known]))

    def problems(self) -> Iterator[str]:
        """Yield why frames are missing in all stacks, or in those of a process."""
        if self._worker.missing:
            yield self._worker.missing
        with self._lock:
            known = list(self._problems.items())
        yield from (f"no frames of Python in process {pid}: {why}" for pid, why in known)

    def dropped(self) -> Mapping[str, int]:
        """Return the stacks that were not taken or not unwound so far, by reason."""
        counted = self.object.globals()
        found = {
            "budget": counted["over_budget"] + counted["launches_over_budget"],
            "ring": counted["stacks_lost"],
            "table": counted["stack_ids_lost"],
            "limit": self.ledger.refused,
            "blocks": counted["blocks_lost"] + counted["allocators_lost"],
        }
        for reason, count in self._worker.dropped.items():
            found[reason] = found.get(reason, 0) + count
        return found

    def launches_without(self) -> Iterator[tuple[int, int]]:
        """Yield pid and number of launches of which no stack was taken though they were chosen."""
        for pid, count in self.object.maps["launches_without"].items():
            yield pid, count * self.every

    def collect(self) -> Iterator[Sample]:
        """Yield the metrics about stacks."""
        yield metrics.TAKEN.sample(self._worker.unwound)
        for reason, count in self.dropped().items():
            yield metrics.DROPPED.sample(count, {"reason": reason})
        for reason, count in [*self.ledger.truncated.items()]:
            yield metrics.TRUNCATED.sample(count, {"reason": reason})

    # The processes of probed libraries (exporter.bpf.probe.Listener).

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        """Have the code of this process opened, before it allocates if possible."""
        with self._lock:
            self._processes.add(pid)
            if not from_first_call:
                self._probed_late.add(pid)
            self._early.pop(pid, None)
        self._worker.admit([pid])

    def processes_ended(self, pids: Collection[int]) -> None:
        """Forget these processes, but not what they allocated."""
        self._forget(pids)
        if self.blocks:
            self.blocks.processes_ended(pids)  # a process may end before its libc10.so is found

    def processes_replaced(self, pids: Collection[int]) -> Collection[int]:
        """Forget the programs that these processes ran before. Return the processes that had allocated memory."""
        self._forget(pids)
        return self.blocks.processes_replaced(pids) if self.blocks else ()

    def _forget(self, pids: Collection[int]) -> None:
        with self._lock:
            known = [pid for pid in pids if self._is_known(pid)]
            self._processes.difference_update(known)
            self._probed_late.difference_update(known)
            for pid in known:
                self._early.pop(pid, None)
                self._problems.pop(pid, None)
        for pid, count in self.object.maps["launches_without"].take(known):
            self.ledger.launched(pid, count * self.every)
        self.object.maps["interpreters"].take(known)
        self._worker.end(known)
        self.ledger.ended(known)

    def _hooks(self, api: int, function: CudaFunction, layers: Mapping[str, int]) -> list[Hook]:
        cookie = int.from_bytes(_COOKIE.pack(api, layers[f"layer_{function.layer}"]), sys.byteorder)
        if function.effect in _ALLOCATES:
            return [Hook("on_allocation", cookie)]
        return []

    def _take(self, raw: record.Stack) -> None:
        """Take a stack of the kernel's program: of any process that has called what is probed, known or not."""
        pid, late = raw.tgid, -1
        with self._lock:
            new = not self._is_known(pid)
            if new:
                self._early[pid] = None
                late = next(iter(self._early)) if len(self._early) > _MOST_EARLY else -1
        if new:
            self._worker.admit([pid])
        if late >= 0:
            self._forget([late])
        if raw.id & record.OF_THREAD:
            if not self._worker.give(lambda: record.pack(raw, 0)):
                self._threads.answered(pid, raw.tid, ())
        elif not self._worker.give(lambda: record.pack(raw, self.ledger.taken(raw.id, pid, raw.weight))):
            self.ledger.lost(raw.id, pid, raw.weight)

    def _receive(self, message: dict[str, Any]) -> None:
        """Take a message of the child, which hostile files may have taken over.

        Raises ValueError, TypeError or KeyError for one that is none.
        """
        if "stack" in message:
            self.ledger.define(int(message["stack"]), message["frames"])
        elif int(message.get("id", 0)) & record.OF_THREAD:
            stack = self.ledger.stack_numbered(message.get("number"))
            self._threads.answered(int(message["pid"]), int(message["id"]) & ~record.OF_THREAD, stack)
        elif "id" in message:
            self.ledger.unwound(message)
            if message.get("lost"):
                self._worker.dropped["process"] += 1
        elif "walk" in message:
            row = self._row(
                runtime=int(message["runtime"]), **{name: int(value) for name, value in message["walk"].items()}
            )
            with self._lock:
                if self._is_known(int(message["pid"])):
                    self.object.maps["interpreters"].set(int(message["pid"]), row)
        elif "problem" in message:
            with self._lock:
                if self._is_known(int(message["pid"])):
                    self._problems[int(message["pid"])] = str(message["problem"])[:200]

    def _is_known(self, pid: int) -> bool:
        return pid in self._processes or pid in self._early

    def _admit_all(self) -> None:
        with self._lock:
            pids = [*self._processes, *self._early]
        self._worker.admit(pids)

    def _make_room(self) -> None:
        if self.ledger.needs_room:
            settled = self.ledger.settled
            if self.ledger.make_room(self.live_numbers(), settled):
                self._worker.number_again()

    def _tick_on(self) -> None:
        before = time.monotonic()
        while not self._closing.is_set():
            now = time.monotonic()
            left = self._budget.allowance(
                now - before, self._worker.seconds(), self._worker.unwound, self._worker.waiting
            )
            before = now
            try:
                self._make_room()
                self.object.maps["allowance"].set(_ONLY, left)
            except BpfError as error:
                log.error("the number of stacks cannot be bounded, so none is taken: %s", error)
                return
            self._closing.wait(_TICK_SECONDS)
