"""NVML's reports of the soft GPUs: NVML's stand-in reads what the soft driver writes (story.h)."""

from __future__ import annotations

from pathlib import Path

from tests.standins.nvml import Scenario

CONTEXT = 512 << 20
"""Bytes that a process has on a GPU for each context, besides what it allocates."""


class Story:
    """Two GPUs in the scenario that the exporter's NVML reads; their processes are those that count in a folder."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        scenario.set({"gpus": 2})

    def follow(self, folder: Path) -> None:
        """Report the processes of the soft driver that count in this folder, their Xids too, and no others."""
        self._scenario.set({"softgpu": folder})
