"""The client of RAS."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.loopback import Endpoint
from exporter.ras import client as module
from exporter.ras.client import PORT, RasError, connect, endpoint, request_report
from tests.standins import ras

pytestmark = pytest.mark.evidence(feature="NCCL RAS", on="stand-in")

PROC = Path("/proc")
NAMESPACE = (PROC / "self" / "ns" / "net").stat().st_ino
REPORT = ras.report(ras.communicator(0xC0FFEE, [ras.rank(0, 23)]))


@pytest.fixture
def server() -> Iterator[ras.RasServer]:
    made = ras.RasServer(REPORT)
    yield made
    made.close()


def report_of(proc: Path, pid: int, at: Endpoint, seconds: float) -> str:
    with connect(proc, pid, at) as connection:
        return request_report(connection, pid, seconds)


def process(tmp_path: Path, environ: bytes) -> Path:
    """A /proc with process 7 in it."""
    (tmp_path / "7" / "ns").mkdir(parents=True)
    (tmp_path / "7" / "environ").write_bytes(environ)
    (tmp_path / "7" / "ns" / "net").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("environ", "port"),
    [
        (b"", PORT),
        (b"A=1\0NCCL_RAS_ADDR=localhost:4711\0", 4711),
        (b"NCCL_RAS_ADDR=[::1]:4711\0", 4711),
        (b"XNCCL_RAS_ADDR=localhost:4711\0NCCL_RAS_ENABLE=1\0", PORT),
    ],
)
def test_door(tmp_path: Path, environ: bytes, port: int) -> None:
    """The port is NCCL's default, or the one in the process's environment."""
    proc = process(tmp_path, environ)

    assert Endpoint((proc / "7" / "ns" / "net").stat().st_ino, port) == endpoint(proc, 7)


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        (b"NCCL_RAS_ENABLE=0\0", "switched RAS off"),
        (b"NCCL_RAS_ADDR=10.0.0.1:22\0", "not its loopback"),
        (b"NCCL_RAS_ADDR=localhost:99999\0", "not its loopback"),
        (b"NCCL_RAS_ADDR=localhost\0", "not its loopback"),
    ],
)
def test_closed_doors(tmp_path: Path, environ: bytes, reason: str) -> None:
    """No query is sent where RAS is off, nor to an address outside the loopback."""
    with pytest.raises(RasError, match=reason):
        endpoint(process(tmp_path, environ), 7)


def test_process_that_has_ended(tmp_path: Path) -> None:
    """A process that ended has no endpoint."""
    with pytest.raises(RasError, match="process 7 cannot be read"):
        endpoint(tmp_path, 7)


def test_answer(server: ras.RasServer) -> None:
    """The report is returned, and the request has a time limit."""
    assert REPORT == report_of(PROC, os.getpid(), Endpoint(NAMESPACE, server.port), 5)
    assert ["CLIENT PROTOCOL 2", "TIMEOUT 4", "SET FORMAT json", "VERBOSE STATUS"] == server.commands


def test_answer_in_text(server: ras.RasServer) -> None:
    """A NCCL without formats reports an error for the format, and answers in text."""
    server.formats, server.answer = False, "Job summary\n"

    assert "Job summary\n" == report_of(PROC, os.getpid(), Endpoint(NAMESPACE, server.port), 5)


def test_hanging(server: ras.RasServer) -> None:
    """A job that never answers ends the query at the time-out."""
    server.hang.set()

    with pytest.raises(RasError, match="did not answer within 1 s"):
        report_of(PROC, os.getpid(), Endpoint(NAMESPACE, server.port), 1)


def test_somebody_else(server: ras.RasServer) -> None:
    """Another service on the port is not taken for RAS, nor one that hangs up, and a flood is cut off."""
    at = Endpoint(NAMESPACE, server.port)
    server.greeting = "220 smtp"
    with pytest.raises(RasError, match="is not RAS"):
        report_of(PROC, os.getpid(), at, 5)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(RasError, match="cannot be queried"):
            report_of(PROC, os.getpid(), Endpoint(NAMESPACE, closed.getsockname()[1]), 5)


def test_flood(server: ras.RasServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer without end is given up."""
    monkeypatch.setattr(module, "MOST_BYTES", 1 << 20)
    server.answer = "x" * (4 << 20)

    with pytest.raises(RasError, match="larger than 1 MiB"):
        report_of(PROC, os.getpid(), Endpoint(NAMESPACE, server.port), 5)


@pytest.mark.skipif(os.geteuid() != 0, reason="making a network namespace takes root")
def test_another_namespace() -> None:
    """A job in its own network namespace is queried there; this process stays in its namespace."""
    script = "ip link set lo up && exec " + " ".join([sys.executable, ras.__file__, "4711"])
    with subprocess.Popen(["unshare", "--net", "sh", "-c", script], stdout=subprocess.PIPE, text=True) as job:
        try:
            assert job.stdout
            assert "4711\n" == job.stdout.readline()
            at = endpoint(PROC, job.pid)
            assert at.namespace != NAMESPACE
            assert "c0ffee" in report_of(PROC, job.pid, Endpoint(at.namespace, 4711), 5)
        finally:
            job.kill()
    assert NAMESPACE == (PROC / "self" / "ns" / "net").stat().st_ino == (PROC / "thread-self/ns/net").stat().st_ino
