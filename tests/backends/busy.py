"""A node with something of everything for backends: GPUs, a job of two ranks, failed calls, and an Xid."""

from __future__ import annotations

import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bpf.cuda_node import BUILD
from tests.bpf.nccl_node import build_standins
from tests.e2e.test_nccl_traces import ONE_NODE, Member
from tests.e2e.test_nccl_traces import Node as Namespace
from tests.program.process import Exporter
from tests.standins import nvml

COLLECTIVES = 23
SECONDS = 120.0
"""For what takes one or two on a machine that nothing else runs on."""
SERVICE = "train-7"
NODE = "node-7"
XID = "NVRM: Xid (PCI:0000:00:00): 171, pid='<unknown>', name=<unknown>, DRAM uncorrectable error"
_GROUP = "lib.ncclGroupStart(); reduce_all(c, 1); reduce_all(c, 1); lib.ncclGroupEnd()"
_FAILURE = "cuda = ctypes.CDLL({!r}); new(cuda.cuMemAlloc_v2, size(1 << 50), check=2)"


@dataclass
class Busy:
    """A running exporter, and the processes that it observes. They are at rest unless `work` runs."""

    exporter: Exporter
    ranks: list[Member]
    kernel_log: Path
    libraries: Path

    @property
    def pids(self) -> set[int]:
        return {rank.pid for rank in self.ranks}

    def work(self) -> None:
        """23 collectives of both ranks, a group of two, an allocation that fails in each, and one Xid of no process.

        The communicator is another each time: ids of its spans are made of its name and would be those of before.
        """
        communicator = secrets.token_bytes(8)
        for number, rank in enumerate(self.ranks):
            rank.run(f"c = init({number}, {len(self.ranks)}, {communicator!r})")
        for rank in self.ranks:
            rank.run(f"for i in range({COLLECTIVES}): reduce_all(c, 1)")
            rank.run(_GROUP)
            rank.run(_FAILURE.format(str(self.libraries / "libcuda.so.1")))
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        with self.kernel_log.open("a") as log:
            log.write(f"3,1,{now},-;{XID}\n")


@contextmanager
def busy(folder: Path, *flags: str, **variables: str) -> Iterator[Busy]:
    """The exporter as in a pod of a node, with these flags and variables. It sees the processes of its job alone."""
    build_standins()
    nvml.build()
    folder.mkdir(parents=True, exist_ok=True)
    libraries, log = folder / "lib", folder / "kmsg"
    log.touch()
    scenario = nvml.Scenario(folder)
    given = ["--profile=debug", f"--kmsg.path={log}"]
    with ExitStack() as stack:
        namespace = Namespace(libraries, stack)
        shutil.copy(BUILD / "libcuda.so.1", libraries)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("OTEL_SERVICE_NAME", SERVICE)
        ranks = [stack.enter_context(Member(namespace)) for _ in range(2)]
        patch.delenv("OTEL_SERVICE_NAME")
        variables |= scenario.environment() | {"NODE": namespace.network, "NODE_NAME": NODE}
        exporter = Exporter(folder, *given, *flags, prefix=(sys.executable, "-c", ONE_NODE), **variables)
        stack.callback(exporter.process.wait, 20)
        stack.callback(exporter.process.kill)
        exporter.await_(lambda: exporter.get("/-/ready")[0] == 200, SECONDS)
        made = Busy(exporter, ranks, log, libraries)
        exporter.await_(lambda: attached(made, "libnccl.so.2"), SECONDS)
        for rank in ranks:
            rank.run(f"cuda = ctypes.CDLL({str(libraries / 'libcuda.so.1')!r})")
        exporter.await_(lambda: attached(made, "libcuda.so.1"), SECONDS)
        exporter.await_(lambda: "hw_energy_joules_total{" in exporter.get("/metrics")[1], SECONDS)
        yield made


def attached(node: Busy, library: str) -> bool:
    """Return whether every probe of the library is attached."""
    prefix = f'accel_exporter_probe_attached{{library="{node.libraries / library}"'
    lines = [line for line in node.exporter.get("/metrics")[1].splitlines() if line.startswith(prefix)]
    return bool(lines) and all(line.endswith(" 1") for line in lines)
