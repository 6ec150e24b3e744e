"""What the kernel part says that objects of processes point to: bpf/verbs_live.h and bpf/verbs_extended.h."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from exporter.bpf.maps import Map
from exporter.verbs.functions import CQ_CALLS, QP_CALLS
from exporter.verbs.live import POINTERS

Addresses = Mapping[str, int]
"""Of functions in a process, by what they are called there; 0 is none."""


def of_context(functions: Any) -> Addresses:
    """From struct live_functions."""
    return {op: getattr(functions, op) for op in POINTERS}


def of_object(calls: Any, of_cq: int) -> Addresses:
    """From struct extended_calls, of a queue pair or a completion queue."""
    return dict(zip(CQ_CALLS if of_cq else QP_CALLS, calls.functions, strict=False))


class Pointers:
    """What was told of a process until now."""

    def __init__(self, maps: Mapping[str, Map]) -> None:
        self._maps = maps

    def contexts(self, pid: int) -> Iterator[Addresses]:
        yield from [of_context(value) for key, value in self._maps["live_functions"].items() if key.tgid == pid]

    def objects(self, pid: int) -> Iterator[Addresses]:
        calls = self._maps["extended_calls"].items()
        yield from [of_object(value, key.of_cq) for key, value in calls if key.tgid == pid]

    def observed(self) -> None:
        """All calls that were told of are observed from now on: queue pairs that are made now are seen whole."""
        self._maps["extended_since"].set(0, time.monotonic_ns())
