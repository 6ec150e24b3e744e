"""Functions that objects of processes point to, as the BPF programs read them: bpf/verbs_live.h, bpf/verbs_learn.h."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from exporter.bpf.maps import Map
from exporter.verbs.code.live import POINTERS
from exporter.verbs.functions import CQ_CALLS, QP_CALLS

Addresses = Mapping[str, int]
"""Addresses of functions in a process, by the names of the pointers; 0 is none."""


def of_context(functions: Any) -> Addresses:
    """Return the addresses in a struct live_functions."""
    return {op: getattr(functions, op) for op in POINTERS}


def of_object(calls: Any, of_cq: int) -> Addresses:
    """Return the addresses in a struct extended_calls, of a queue pair or a completion queue."""
    return dict(zip(CQ_CALLS if of_cq else QP_CALLS, calls.functions, strict=False))


class Pointers:
    """The pointers that were read in each process so far."""

    def __init__(self, maps: Mapping[str, Map]) -> None:
        self._maps = maps

    def contexts(self, pid: int) -> Iterator[Addresses]:
        """Yield the functions of each context of a process."""
        yield from [of_context(value) for key, value in self._maps["live_functions"].items() if key.tgid == pid]

    def objects(self, pid: int) -> Iterator[Addresses]:
        """Yield the calls of queue pairs and completion queues of a process."""
        calls = self._maps["extended_calls"].items()
        yield from [of_object(value, key.of_cq) for key, value in calls if key.tgid == pid]

    def observed(self) -> None:
        """Note that all calls read so far are probed from now on: queue pairs made after this are seen whole."""
        self._maps["extended_since"].set(0, time.monotonic_ns())
