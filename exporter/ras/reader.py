"""The child process that reads the answer of RAS: `python -m exporter.ras.reader JSON`, one message a line on stdout.

Any process that listens at the port may answer, and 16 MiB of JSON can become half a gigabyte of objects: such an
answer ends this process, which has no capability and little memory, and not the exporter.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from exporter import rlimits
from exporter.background.child import die_with_parent, private_output
from exporter.bpf import privileges
from exporter.ras.client import RasError, request_report
from exporter.ras.messages import FAILED, encode
from exporter.ras.report import ReportError, parse

MEMORY = 256 << 20
"""Limit of the address space; a report of 16 MiB takes half of it."""
CPU_SECONDS = 20
NICE = 10


@dataclass(frozen=True, slots=True)
class ReaderJob:
    """The argument of the child: read the report from the descriptor `connection` within `seconds`."""

    parent: int
    pid: int
    connection: int
    seconds: float


def main(argument: str) -> None:
    order = ReaderJob(**json.loads(argument))
    die_with_parent(order.parent)
    with suppress(OSError):
        privileges.drop(())
    os.nice(NICE)
    rlimits.lower(resource.RLIMIT_AS, MEMORY)
    rlimits.lower(resource.RLIMIT_CPU, CPU_SECONDS)
    with os.fdopen(private_output(), "wb") as output:
        for line in _read(order):
            output.write(line)


def _read(order: ReaderJob) -> Iterator[bytes]:
    failure = ""
    try:
        with socket.socket(fileno=order.connection) as connection:
            yield from encode(parse(request_report(connection, order.pid, order.seconds)))
    except (RasError, ReportError) as error:
        failure = str(error)
    except MemoryError:
        failure = f"the answer of the RAS of process {order.pid} takes more than {MEMORY >> 20} MiB to read"
    if failure:
        yield json.dumps([FAILED, failure]).encode() + b"\n"


if __name__ == "__main__":
    main(sys.argv[1])
