"""One question to a RAS: connected here, where namespaces can be entered, and read in a child that may run out."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from exporter.child import ChildProcess
from exporter.ras import messages
from exporter.ras.ask import Door, RasError, connect
from exporter.ras.reader import Order
from exporter.ras.report import Report
from exporter.resolve import sockets

SPARE_SECONDS = 10.0
"""For the child to start and to read, besides the time that RAS has."""


def speaker(proc: Path, at: Door, pids: list[int]) -> int:
    """Which of these processes the socket at a door can be of. Raises RasError if none: another user listens there.

    Anybody may listen at the port, so what is heard there counts only for jobs of the same user.
    """
    found = sockets.listeners(proc, pids[0], at.port)
    for pid in pids:
        if found == {user(proc, pid)}:
            return pid
    if not found:
        raise RasError(f"the RAS of process {pids[0]} does not listen at port {at.port}")
    raise RasError(f"port {at.port} of process {pids[0]} is not its own: another user listens there")


def query(proc: Path, pid: int, at: Door, seconds: float) -> Report:
    """What the RAS of a process says of its job. Raises RasError and ReportError."""
    with connect(proc, pid, at) as connection:
        speaker(proc, at, [pid])  # again: who listened before may not be who took the connection
        order = Order(os.getpid(), pid, connection.fileno(), seconds)
        try:
            child = ChildProcess("exporter.ras.reader", json.dumps(asdict(order)), share=(connection.fileno(),))
        except OSError as error:
            raise RasError(f"no child can be started to ask RAS: {error}") from error
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
    """The uid that a process makes sockets as. Raises RasError when it is gone."""
    try:
        status = (proc / str(pid) / "status").read_text(errors="replace")
        return int(status.partition("\nUid:")[2].split(maxsplit=4)[3])
    except (OSError, ValueError, IndexError) as error:
        raise RasError(f"process {pid} cannot be looked at: {error}") from error
