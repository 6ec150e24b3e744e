"""One query to a RAS: connected in this process, which can enter namespaces, and read in a limited child process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from exporter.background.child import ChildProcess
from exporter.loopback import Endpoint
from exporter.ras import messages
from exporter.ras.client import RasError, connect
from exporter.ras.reader import ReaderJob
from exporter.ras.report import Report
from exporter.resolve import sockets

SPARE_SECONDS = 10.0
"""Time for the child to start and to parse, on top of the time limit of RAS."""


def listening_process(proc: Path, at: Endpoint, pids: list[int]) -> int:
    """Return the first of these processes with the same user as the listener. Raises RasError when there is none.

    Any process may listen at the port, so an answer from there counts only for jobs of the listener's user.
    """
    found = sockets.listeners(proc, pids[0], at.port)
    for pid in pids:
        if found == {user(proc, pid)}:
            return pid
    if not found:
        raise RasError(f"the RAS of process {pids[0]} does not listen at port {at.port}")
    raise RasError(f"port {at.port} of process {pids[0]} is not its own: another user listens there")


def query(proc: Path, pid: int, at: Endpoint, seconds: float) -> Report:
    """Return the RAS report of a process on its job, received within `seconds`. Raises RasError and ReportError."""
    with connect(proc, pid, at) as connection:
        listening_process(proc, at, [pid])  # again: another process may listen since the check before connecting
        order = ReaderJob(os.getpid(), pid, connection.fileno(), seconds)
        try:
            child = ChildProcess("exporter.ras.reader", json.dumps(asdict(order)), share=(connection.fileno(),))
        except OSError as error:
            raise RasError(f"no child process can be started to query RAS: {error}") from error
    try:
        return messages.decode(_lines(child, time.monotonic() + seconds + SPARE_SECONDS))
    finally:
        child.kill()


def _lines(child: ChildProcess, until: float) -> Iterator[bytes]:
    while time.monotonic() < until:
        lines = child.lines(0.5)
        if lines is None:
            return
        yield from lines


def user(proc: Path, pid: int) -> int:
    """Return the uid with which a process makes sockets (fsuid). Raises RasError when the process has ended."""
    try:
        status = (proc / str(pid) / "status").read_text(errors="replace")
        return int(status.partition("\nUid:")[2].split(maxsplit=4)[3])
    except (OSError, ValueError, IndexError) as error:
        raise RasError(f"process {pid} cannot be read: {error}") from error
