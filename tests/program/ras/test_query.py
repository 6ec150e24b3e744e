"""Answers that are meant to hurt, and those about other people's jobs."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.background import child
from exporter.loopback import Endpoint
from exporter.ras import messages
from exporter.ras.client import MOST_BYTES, RasError
from exporter.ras.owners import CommunicatorOwners
from exporter.ras.query import listening_process, query
from exporter.ras.report import MOST_COMMUNICATORS, MOST_RANKS, RasCommunicator, Report, ReportError, parse
from exporter.resolve.communicators import Member
from tests.standins import ras
from tests.support import PATIENCE

PROC = Path("/proc")
NOBODY = 65_534
ROOM = MOST_BYTES - 1024
RANKS = 30000
MIB = 1 << 20


@pytest.fixture
def server() -> Iterator[ras.RasServer]:
    made = ras.RasServer("")
    yield made
    made.close()


def at(port: int) -> Endpoint:
    return Endpoint((PROC / "self/ns/net").stat().st_ino, port)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def filled(piece: str) -> str:
    """As many of these as fit, as communicators."""
    return '{"communicators":[' + ",".join([piece] * (ROOM // (len(piece) + 1))) + "]}"


@pytest.mark.parametrize("piece", ["{}", '{"a":{}}', "[]", "1.5"])
def test_answers_that_fill_memory(server: ras.RasServer, piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 MiB of small objects are half a gigabyte in Python: they end a child, and take nothing here."""
    monkeypatch.setattr(child, "KILL_SECONDS", PATIENCE)  # a busy machine takes long to free so much
    server.answer = filled(piece)
    before, most, over = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.02):
            most = max(most, resident() - before)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with pytest.raises(ReportError):
            query(PROC, os.getpid(), at(server.port), PATIENCE)
    finally:
        over.set()
        watching.join()

    assert most < 48 * MIB  # of which the stand-in, which encodes it in this process, has a good part


def test_large_job(server: ras.RasServer) -> None:
    """An honest answer of nearly 16 MiB is read: every rank of it."""
    ranks = [ras.rank(number, 23) for number in range(RANKS)]
    server.answer = ras.report(ras.communicator(0xC0FFEE, ranks))
    assert 15 * MIB < len(server.answer) < MOST_BYTES

    report = query(PROC, os.getpid(), at(server.port), PATIENCE)

    assert parse(server.answer) == report
    assert RANKS == len(report.communicators[0].ranks)


@pytest.mark.parametrize(
    "report",
    [
        ras.report(ras.communicator(1, [ras.rank(0, 1) | {"collective_counts": {f"F{n}": n for n in range(17)}}])),
        ras.report(*(ras.communicator(number, []) for number in range(MOST_COMMUNICATORS + 1))),
        "Communicators... (1s)\n#0-0 (1) INCOMPLETE\n  Missing communicator data from 2 ranks\n"
        + "  The missing ranks: "
        + ",".join(["1"] * (MOST_RANKS + 1))
        + "\n",
        "Communicators... (1s)\n" + "#0-0 (1) INCOMPLETE\n  Missing communicator data from 2 ranks\n\n" * 9000,
        '{"communicators":' + "[" * 100_000,
    ],
)
def test_more_than_any_job_has(server: ras.RasServer, report: str) -> None:
    """Functions, communicators and ranks without end, in JSON and in text, are refused."""
    server.answer = report

    with pytest.raises(ReportError):
        query(PROC, os.getpid(), at(server.port), PATIENCE)


def test_child_has_nothing(server: ras.RasServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that reads the answer has no capability, and little memory."""
    seen: list[str] = []
    began = subprocess.Popen

    def watched(*arguments: object, **words: object) -> object:
        child = began(*arguments, **words)  # type: ignore[call-overload]
        server.hang.set()

        def look() -> None:
            while not server.queries:
                pass
            seen.extend(Path(f"/proc/{child.pid}/{name}").read_text() for name in ("status", "limits"))
            server.hang.clear()

        threading.Thread(target=look).start()
        return child

    monkeypatch.setattr(subprocess, "Popen", watched)
    server.answer = ras.report()
    query(PROC, os.getpid(), at(server.port), PATIENCE)

    assert f"CapEff:\t{0:016x}" in seen[0]
    assert str(256 * MIB) in seen[1]


LISTEN = """
import os, socket, sys
os.setresuid(*[int(sys.argv[1])] * 3)
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_listens() -> None:
    """A listener of another user at the port is not queried: its answer could be any claim about this user's job."""
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN, str(NOBODY)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        try:
            assert other.stdout
            port = int(other.stdout.readline())
            with pytest.raises(RasError, match="another user listens there"):
                listening_process(PROC, at(port), [os.getpid()])
            with pytest.raises(RasError, match="another user listens there"):
                query(PROC, os.getpid(), at(port), 1)
            assert other.pid == listening_process(PROC, at(port), [os.getpid(), other.pid])
        finally:
            other.kill()


def test_nobody_listens() -> None:
    """A port without a listener is an error, and nothing is sent there."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(RasError, match="does not listen"):
            listening_process(PROC, at(closed.getsockname()[1]), [os.getpid()])


def report_of(*hashes: str, whole: bool = True) -> Report:
    found = tuple(RasCommunicator(it, 2, 1) for it in hashes)
    return Report("2.29.1", len(found), found, 0, 0, 0.1, whole)


def hashes(report: Report | None) -> list[str] | None:
    return None if report is None else [it.comm_hash for it in report.communicators]


def test_communicators_of_others() -> None:
    """A job may report on its own communicators, also on other nodes; not on those of other users of this node."""
    users = {1: 1001, 2: 1002, 3: 1002}
    owners = CommunicatorOwners()
    owners.update([Member(1, "a" * 16, 0, 2), Member(2, "b" * 16, 0, 2)], users.get)

    assert ["b" * 16, "c" * 16] == hashes(owners.trusted(report_of("a" * 16, "b" * 16, "c" * 16), 1002, {"b" * 16}))
    assert hashes(owners.trusted(report_of("c" * 16), 1002, {"b" * 16})) is None
    assert ["b" * 16] == hashes(owners.trusted(report_of("a" * 16, "b" * 16, whole=False), 1002, {"b" * 16}))


def test_claims_of_a_hash() -> None:
    """A claim on a communicator of another user has no effect while that user's process runs."""
    users = {1: 1001, 2: 1002}
    owners = CommunicatorOwners()
    owners.update([Member(2, "a" * 16, 0, 2)], {}.get)  # the process ended before its user was read
    owners.update([Member(1, "a" * 16, 0, 2)], users.get)
    owners.update([Member(2, "a" * 16, 0, 2), Member(1, "a" * 16, 0, 2)], users.get)

    assert [] == hashes(owners.trusted(report_of("a" * 16), 1002, {"a" * 16}))
    assert ["a" * 16] == hashes(owners.trusted(report_of("a" * 16), 1001, {"a" * 16}))
    owners.update([], users.get)
    owners.update([Member(2, "a" * 16, 0, 2)], users.get)
    assert ["a" * 16] == hashes(owners.trusted(report_of("a" * 16), 1002, {"a" * 16}))


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b'["report", "2.29", 1, 0, 0, 0.1, true]\n'],
        [b"[]\n"],
        [b"nonsense\n"],
        [b'["end"]\n'],
        [b'["rank", 0, "", {}, 0, 0]\n'],
        [b'["report", "2.29", 1, 0, 0, 0.1, true]\n', b'["communicator", "a", 1, "x"]\n', b'["end"]\n'],
        [b'["report", "2.29", 1, 0, 0, 0.1, true]\n'] * (MOST_RANKS + MOST_COMMUNICATORS + 3),
    ],
)
def test_nonsense_of_the_child(lines: list[bytes]) -> None:
    """Messages of the child are checked too, as its input is untrusted."""
    with pytest.raises(ReportError):
        messages.decode(lines)


def test_report_on_its_way() -> None:
    """A report arrives as it was sent."""
    text = ras.report(ras.communicator(1, [ras.rank(0, 23, 1, 2)], [ras.missing(1, dead=True)]), timeouts=3)
    report = parse(text)

    assert report == messages.decode(messages.encode(report))
