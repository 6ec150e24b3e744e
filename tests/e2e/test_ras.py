"""The real process, a job of two ranks on the stand-in of NCCL, and what listens where its RAS would."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bpf.cuda_node import build_standins
from tests.program.process import ROOT, Exporter
from tests.standins import ras
from tests.support import free_port
from tests.workers import standins

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="NCCL RAS", on="stand-in")]
LIBRARY = standins() / "libnccl.so.2"
HASH = f"{ras.hash_of(b'demo'):016x}"
FLAGS = ("--collector.disable-defaults", "--collector.nccl", "--collector.ras", "--collector.ras.interval=1")


def start(stack: ExitStack, *words: str, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, *words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=os.environ | environment)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


@pytest.fixture
def port() -> str:
    """The port of the job's RAS: NCCL's own may be that of a job on this machine."""
    return str(free_port())


@pytest.fixture
def job(tmp_path: Path, port: str) -> Iterator[tuple[Exporter, ExitStack]]:
    """An exporter that knows a job's communicator."""
    build_standins()
    with ExitStack() as stack:
        exporter = Exporter(tmp_path, *FLAGS)
        stack.callback(exporter.end)
        exporter.await_ready()
        for rank in range(2):
            command = ["-m", "deploy.demo.rank", str(LIBRARY), str(rank), "2", str(time.time()), "0"]
            start(stack, *command, NCCL_RAS_ADDR=f"localhost:{port}")
        exporter.await_(lambda: f'comm_hash="{HASH}"' in exporter.get("/metrics")[1], 120)
        yield exporter, stack


def test_job(job: tuple[Exporter, ExitStack], port: str) -> None:
    """The answer of the job's own RAS is shown."""
    exporter, stack = job
    listening = start(stack, str(ROOT / "tests/standins/ras.py"), port, "demo")
    assert listening.stdout and f"{port}\n".encode() == listening.stdout.readline()
    series = f'nccl_ras_ranks_missing{{comm_hash="{HASH}",state="unresponsive"}}'

    exporter.await_(lambda: exporter.value(series) == 1, 120)


def test_another_job(job: tuple[Exporter, ExitStack], port: str) -> None:
    """A server that reports other communicators only is not trusted, and the log has the reason."""
    exporter, stack = job
    start(stack, str(ROOT / "tests/standins/ras.py"), port, "another")

    exporter.await_(lambda: "reports on another job" in exporter.log, 120)
    assert "nccl_ras_ranks_missing" not in exporter.get("/metrics")[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start what another user has")
def test_another_user(job: tuple[Exporter, ExitStack], port: str) -> None:
    """Another user of the node, who sees the hash in /metrics and takes the port first, is not believed."""
    exporter, stack = job
    program = "import os; from tests.standins.ras import main; os.setresuid(65534, 65534, 65534); main()"
    start(stack, "-c", program, port, "demo")

    exporter.await_(lambda: "another user listens there" in exporter.log, 120)
    assert "nccl_ras_ranks_missing" not in exporter.get("/metrics")[1]
