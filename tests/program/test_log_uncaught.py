"""Exceptions that nothing catches: lines of the log, with its format and its bounds."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.log.limits import RATES
from exporter.log.lines import LINE_BYTES

PROGRAM = """if True:
    import asyncio, contextlib, gc, logging, sys, threading
    from exporter import cli

    class Unraisable:
        def __del__(self):
            raise KeyError("ignored")

    class Server:
        def __init__(self, *arguments): ...

        def fail(self, number, depth=30):
            if depth:
                self.fail(number, depth - 1)
            raise ValueError(f"thread {number}\\nlevel=error " + "\\x01" * 5000)

        async def run(self):
            for number in range(THREADS):
                thread = threading.Thread(target=self.fail, args=(number,), name=f"worker {number}")
                thread.start()
                thread.join()
            Unraisable()
            asyncio.get_running_loop().create_task(self.task())
            await asyncio.sleep(0)
            gc.collect()
            raise OSError("the end")

        async def task(self):
            raise IndexError("of a task")

    cli.App = Server
    sys.exit(cli.main(["--collector.disable-defaults", "--privileges.keep", "--log.format=FORMAT"]))
"""


ROOT = Path(__file__).parents[2]


def run(form: str, threads: int) -> tuple[int, list[str]]:
    """Return the exit code of the program and what it wrote to standard error."""
    program = PROGRAM.replace("THREADS", str(threads)).replace("FORMAT", form)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=120)
    return done.returncode, done.stderr.decode().splitlines()


def test_one_line_each() -> None:
    """An exception of a thread, of a task, of a finalizer and of the program is one line, with the innermost frames."""
    code, lines = run("json", 1)
    errors = [line for line in map(json.loads, lines) if line["level"] == "error"]
    shown = {line["source"] + ": " + line["msg"].partition("\n")[0] for line in errors}

    assert 1 == code
    assert shown == {
        "uncaught: the thread worker 0 ends: ValueError: thread 0",
        "uncaught: an exception is ignored: KeyError: 'ignored'",
        "asyncio: Task exception was never retrieved",
        "uncaught: the exporter ends: OSError: the end",
    }
    (ended,) = [line for line in errors if "the exporter ends" in line["msg"]]
    assert all(text in ended["traceback"] for text in ("in run\n", "OSError: the end"))


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_bounded(form: str) -> None:
    """However many threads end so, with whatever texts, the lines have the length and the rate of the log."""
    burst = RATES[logging.WARNING].burst
    code, lines = run(form, 3 * burst)
    threads, end = (sum(what in line for line in lines) for what in ("the thread", "the exporter ends"))

    assert (1, 1) == (code, end)
    assert burst <= threads <= burst + 2  # one more a minute
    assert all(len(line) < LINE_BYTES for line in lines)
    assert all(line.startswith("ts=" if form == "logfmt" else '{"ts"') for line in lines)
