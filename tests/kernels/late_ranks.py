"""Observes late_ranks.c and prints the arrival lags of its ranks; run in a virtual machine.

Usage: python -m tests.kernels.late_ranks PROGRAM ROUNDS
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.bpf.nccl_node import BUILD, NcclNode, observe
from tests.support import until

LAG = "nccl_rank_arrival_lag_seconds"
RANKS, COMMUNICATORS = 16, 3
WITHIN = 240.0
"""Emulated, with other work beside it."""


def main(program: str, rounds: str) -> None:
    environment = os.environ | {"LD_LIBRARY_PATH": str(BUILD)}
    with (
        observe() as observed,
        subprocess.Popen(
            [program, rounds], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as job,
    ):
        assert job.stdin and job.stdout
        try:
            until(lambda: observed.attached(job.pid, {str(BUILD / "libnccl.so.2")}), "attached", WITHIN)
            print(file=job.stdin, flush=True)
            assert job.stdout.readline() == "done\n", "the job failed"
            print(json.dumps(_found(observed)))
            print(file=job.stdin, flush=True)
            job.wait(WITHIN)
            until(lambda: not [*observed.collector.object.maps["meetings"].items()], "no rows left", WITHIN)
        finally:
            job.kill()


def _found(observed: NcclNode) -> list[dict[str, Any]]:
    full = observed.values("accel_exporter_map_full_total")
    samples = [it for it in observed.samples() if it.metric.name == "nccl.rank.arrival_lag"]
    return [
        {"hash": it.labels["comm_hash"], "rank": int(it.labels["rank"]), "counts": list(it.value.counts)}
        for it in samples
    ] + [{"full": {dict(labels)["map"]: count for labels, count in full.items()}}]


if __name__ == "__main__":
    main(*sys.argv[1:])
