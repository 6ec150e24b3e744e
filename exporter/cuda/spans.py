"""Single CUDA calls as spans: the records of `cuda_spans` in bpf/cuda/cuda.bpf.c."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping

from exporter.cuda.codes import error_name
from exporter.cuda.functions import CudaFunction
from exporter.cuda.names import Names
from exporter.cuda.records import CudaSpan
from exporter.durations import duration_slot
from exporter.model import Exemplar, Labels, Span
from exporter.node import Clock

Attribute = str | int | float | bool
MOST_EXEMPLARS = 4096
OUT_OF_MEMORY = 2
_FAILED: dict[str, Attribute] = {"gpu.profile.path": "/flamegraph#profile=gpu_oom"}
WAIT_FIRST, WAIT_SLOTS = -20, 38
"""WAIT_FIRST and WAIT_SLOTS of bpf/cuda/cuda.h."""


def span(
    record: CudaSpan, function: CudaFunction, names: Names, clock: Clock, process: Labels, profiles: bool = False
) -> Span:
    """The span of one call, in a trace of its own: nothing links it to others.

    With `profiles` that of an allocation that failed for want of memory has the path of what was in use.
    """
    error = error_name(function.layer, record.code) or str(record.code) if record.code else ""
    return Span(
        name=function.name,
        trace_id=secrets.token_hex(16),
        span_id=secrets.token_hex(8),
        start_ns=clock.wall_ns(record.start_ns),
        end_ns=clock.wall_ns(record.end_ns),
        attributes=_attributes(record, function, names, error)
        | (_FAILED if profiles and _failed(record, function) else {}),
        process=process,
        error=error,
    )


def _failed(record: CudaSpan, function: CudaFunction) -> bool:
    allocates = function.effect.startswith("allocate") or function.effect == "create"
    return record.code == OUT_OF_MEMORY and allocates and function.memory != "pinned_host"


def _attributes(record: CudaSpan, function: CudaFunction, names: Names, error: str) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "gpu.cuda.api": function.name,
        "gpu.cuda.api_layer": function.layer,
        "thread.id": record.tid,
        "thread.name": bytes(record.comm).split(b"\0")[0].decode("utf-8", "backslashreplace"),
    }
    if record.context:
        attributes["gpu.cuda.context"] = f"{record.context:#x}"
    if record.code:
        attributes["gpu.cuda.error.code"] = record.code
        attributes["error.type"] = error
    if function.effect.startswith("copy") and record.bytes:
        attributes["gpu.cuda.memory.copy.bytes"] = record.bytes
        attributes["gpu.cuda.memory.copy.direction"] = names.direction[record.direction]
        if host := names.host[record.host]:
            attributes["gpu.cuda.memory.copy.host_memory"] = host
    elif record.bytes:
        attributes["gpu.cuda.memory.bytes"] = record.bytes
        attributes["gpu.cuda.memory.type"] = names.memory[record.memory]
    if record.address:
        attributes["gpu.cuda.memory.address"] = f"{record.address:#x}"
    return attributes


class Exemplars:
    """The newest span of each waiting function of a process, by bucket of its histogram. Safe from any thread.

    The functions that waited last are kept.
    """

    def __init__(self, most: int = MOST_EXEMPLARS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, int], dict[int, Exemplar]] = OrderedDict()

    def add(self, pid: int, api: int, wait_ns: int, made: Span) -> None:
        exemplar = Exemplar(wait_ns / 1e9, made.end_ns / 1e9, made.trace_id, made.span_id)
        with self._lock:
            self._kept.setdefault((pid, api), {})[duration_slot(wait_ns, WAIT_FIRST, WAIT_SLOTS)] = exemplar
            self._kept.move_to_end((pid, api))
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def of(self, pid: int, api: int) -> Mapping[int, Exemplar]:
        with self._lock:
            return dict(self._kept.get((pid, api), {}))

    def forget(self, pids: Collection[int]) -> None:
        with self._lock:
            for key in [key for key in self._kept if key[0] in pids]:
                del self._kept[key]
