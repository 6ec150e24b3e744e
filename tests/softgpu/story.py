"""What NVML reports of the soft GPUs: its stand-in's scenario follows from what the soft driver counts."""

from __future__ import annotations

from collections.abc import Mapping

from tests.standins.nvml import Scenario

CONTEXT = 512 << 20
"""Bytes that a process has on a GPU besides what it allocates."""
XID = 8
"""nvmlEventTypeXidCriticalError."""


class Story:
    """Two GPUs, their processes and Xids, in the scenario that the exporter's NVML reads."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._lines: set[str] = set()
        self._xids = 0
        scenario.set({"gpus": 2})

    def report(self, processes: Mapping[int, Mapping[int, int]]) -> None:
        """Report these processes by pid, each with the bytes in use by GPU, and no others."""
        rows: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
        for pid, gpus in processes.items():
            for gpu, in_use in gpus.items():
                rows[gpu].append((pid, in_use + CONTEXT))
        values: dict[str, object] = dict.fromkeys(self._lines)
        for gpu, held in rows.items():
            values[f"gpu{gpu}.memory_used"] = sum(size for _, size in held)
            for at, (pid, size) in enumerate(held):
                values[f"gpu{gpu}.process.{at}"] = f"{pid} compute {size} 50 20"
        self._lines = {line for line in values if ".process." in line}
        self._scenario.set(values)

    def xid(self, gpu: int, number: int) -> None:
        """Report an Xid of a GPU."""
        self._xids += 1
        self._scenario.set({f"event.{self._xids}": f"{gpu} {XID} {number}"})
