"""The thread that writes the log: nobody waits for a reader that has stopped."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from fcntl import F_SETPIPE_SZ, fcntl

import pytest

from exporter import log
from exporter.log.losses import dropped
from exporter.log.writer import QUEUE_BYTES, LogWriter

PIPE_BYTES = 4096


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A small pipe that is full."""
    reader, writer = os.pipe()
    fcntl(writer, F_SETPIPE_SZ, PIPE_BYTES)
    os.write(writer, b"x" * PIPE_BYTES)
    yield reader, writer
    os.close(reader)


@pytest.fixture
def full(pipe: tuple[int, int]) -> Iterator[LogWriter]:
    writer = LogWriter(pipe[1])
    writer.setFormatter(log.LogfmtFormatter())
    writer.start()
    yield writer
    writer.close()


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("exporter.test", logging.INFO, "test.py", 1, message, (), None)


def reported(line: str) -> int:
    """Return how many lines were dropped by the report in a line of the log, 0 for another line."""
    return int(line.rpartition(" lines=")[2]) if "log lines were dropped" in line else 0


def read_until(reader: int, enough: Callable[[list[str]], bool]) -> list[str]:
    """Return the whole lines that follow what the pipe was filled with, once there are enough."""
    text = b""
    while not text.endswith(b"\n") or not enough(text[PIPE_BYTES:].decode().splitlines()):
        text += os.read(reader, 65536)
    return text[PIPE_BYTES:].decode().splitlines()


def test_a_full_pipe(pipe: tuple[int, int], full: LogWriter) -> None:
    """Threads go on; lines that the queue holds are written in order, those that follow are counted and reported.

    The queue may be taken once more meanwhile, by a thread that begins late: each report stands in place of its lines.
    """
    before = dropped["queue_full"]
    for number in range(5000):
        full.handle(record(f"{number:06} {'y' * 100}"))
    lost = dropped["queue_full"] - before

    lines, number = read_until(pipe[0], lambda lines: sum(map(reported, lines)) >= lost), 0
    for line in lines:
        if not (missing := reported(line)):
            assert number == int(line.split('msg="')[1][:6])
        number += missing or 1

    assert 5000 == number
    assert 0 < lost == sum(map(reported, lines))
    assert QUEUE_BYTES < sum(map(len, lines)) + len(lines) < 2 * QUEUE_BYTES + PIPE_BYTES
    assert "level=warn source=log " in lines[-1]

    full.handle(record("afterwards"))
    assert [True] == ["msg=afterwards" in line for line in os.read(pipe[0], 65536).decode().splitlines()]


def test_a_full_pipe_at_the_end(full: LogWriter) -> None:
    """The end waits once for a reader that has stopped, and goes on."""
    full.handle(record("x"))

    assert not full.drain(0.05)
    assert not full.drain(3600)


def test_the_last_lines(pipe: tuple[int, int], full: LogWriter) -> None:
    """Lines logged before the end are written when `drain` returns."""
    os.read(pipe[0], PIPE_BYTES)
    full.handle(record("last"))

    assert full.drain(60)
    assert b"msg=last\n" in os.read(pipe[0], 65536)


def test_a_pipe_in_non_blocking_mode(pipe: tuple[int, int], full: LogWriter) -> None:
    """A mode that another process has set on a shared standard error loses no line and takes no processor time."""
    os.set_blocking(pipe[1], False)
    full.handle(record("x"))

    assert read_until(pipe[0], lambda lines: any("msg=x" in line for line in lines))


def test_failures_are_counted() -> None:
    """A line that cannot be written is counted, and the loss is logged when writing works again."""
    reader, descriptor = os.pipe()
    writer = LogWriter(descriptor)
    writer.setFormatter(log.LogfmtFormatter())
    os.close(reader)
    before = dropped["write_error"]
    writer.handle(record("lost"))
    assert writer.drain(60)
    assert 1 == dropped["write_error"] - before

    reader, again = os.pipe()
    os.dup2(again, descriptor)
    writer.handle(record("kept"))
    assert writer.drain(60)
    kept, notice = os.read(reader, 65536).decode().splitlines()

    assert "msg=kept" in kept and "dropped" in notice and notice.endswith(" lines=1")
    writer.close()


def test_a_formatter_that_fails(full: LogWriter, capfd: pytest.CaptureFixture[str]) -> None:
    """A line that cannot be formed is counted, and nothing is written around the queue."""

    class Failing(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            raise RuntimeError

    before = dropped["write_error"]
    full.setFormatter(Failing())
    full.handle(record("x"))

    assert 1 == dropped["write_error"] - before
    assert "" == capfd.readouterr().err


PROGRAM = """if True:
    import logging, os, sys, threading
    from exporter import log
    from exporter.log import uncaught

    log.configure("info", "logfmt", queued=True)
    uncaught.to_log()
    logger = logging.getLogger("exporter.test")
    logger.info("first")
    log.start()
    log.configure("info", "logfmt")
    for number in range(90):
        logger.info("line %d", number)
    {end}
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [("pass", 0), ("sys.exit(3)", 3), ("raise ValueError('crashed')", 1), ("log.flush(); os._exit(4)", 4)],
)
def test_lines_before_the_end(end: str, code: int) -> None:
    """All lines before an end of any kind appear, in order, also those before the thread was started."""
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(end=end)], capture_output=True, text=True, timeout=60)
    ends = ["the exporter ends: ValueError: crashed"] if code == 1 else []

    assert code == done.returncode
    assert ["first", *(f"line {number}" for number in range(90)), *ends] == [
        line.split("msg=")[1].split(" traceback=")[0].strip('"') for line in done.stderr.splitlines()
    ]


def test_a_reload_keeps_the_thread() -> None:
    """Configuring again changes level and form of the same writer."""
    script = PROGRAM.format(end="print(sum(thread.name == 'log' for thread in threading.enumerate()))")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)

    assert "1\n" == done.stdout
