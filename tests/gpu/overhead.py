"""5. Steps per second with the exporter on and off, in turns."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from tests.gpu.machine import Job, Machine
from tests.gpu.outcome import CANNOT, Row, expect

NUMBER = 5
SECONDS = 2.0
MOST = {"plain": 1.01, "eager": 1.01, "tiny": 1.35}
"""Greatest ratio of a loop's times: a training step 1 %; for launches alone the cost of a hit over a launch's."""


def run(machine: Machine) -> Iterator[Row]:
    with machine.job("tiny") as job:
        training = "plain" if "plain" in job.loops else "eager"
        for loop in (training, "tiny"):
            steps = _steps(job, loop, 0.2 if machine.dry else SECONDS)
            ratios = []
            for _ in range(machine.pairs):
                off = job.run(loop, steps)["seconds"]
                with machine.exporter() as exporter:
                    exporter.watch(job)
                    job.run(loop, 1)
                    ratios.append(job.run(loop, steps)["seconds"] / off)
            yield _row(machine, loop, steps, ratios)


def _steps(job: Job, loop: str, seconds: float) -> int:
    """So many that the loop takes about that long."""
    job.run(loop, 3)
    took: float = job.run(loop, 3)["seconds"]
    return max(3, min(100_000, round(3 * seconds / max(1e-6, took))))


def _row(machine: Machine, loop: str, steps: int, ratios: list[float]) -> Row:
    question = f"time of the {'launch-bound' if loop == 'tiny' else 'training'} loop with the exporter over without"
    shown = f"median {statistics.median(ratios):.4f} of {len(ratios)} pairs of {steps} steps, {min(ratios):.4f} to "
    shown += f"{max(ratios):.4f}"
    if machine.dry:  # a stand-in's launch takes no time, so the ratio shows nothing about a GPU's
        return Row(NUMBER, question, CANNOT, f"a stand-in shows nothing of it; {shown}")
    return expect(NUMBER, question, statistics.median(ratios) <= MOST[loop], f"{shown}; at most {MOST[loop]}")
