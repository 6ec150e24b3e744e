"""The log of the real process: a reader that has stopped delays nothing, and no job fills a disk."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from exporter.log.limits import RATES
from exporter.log.lines import LINE_BYTES, VALUE_BYTES
from tests.bpf.cuda_node import BUILD
from tests.program.process import Exporter
from tests.support import PATIENCE

SECONDS, MORE_SECONDS = 120, 60
ATTACHED = "attached to a library"
DROPPED = 'accel_exporter_log_lines_dropped_total{reason="%s"}'
RELOADED = "accel_exporter_config_last_reload_success_timestamp_seconds"
CHURN = """if True:
    import mmap, os, sys, time
    library = open(sys.argv[1], "rb").read()
    os.setgid(61001)
    os.setuid(61001)
    os.chdir(sys.argv[2])
    for _ in range(15):
        name = "\x01" * 250
        os.mkdir(name)
        os.chdir(name)
    for number in range(1 << 30):
        if os.fork():
            os.wait()
            continue
        maps = []
        for copy in range(60):
            file = f"{number}-{copy}.so"
            with open(file, "wb") as target:
                target.write(library + file.encode())
            with open(file, "rb") as source:
                maps.append(mmap.mmap(source.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))
            os.unlink(file)
        time.sleep(2)
        os._exit(0)
"""


class Piped(Exporter):
    """An exporter with a pipe for its log, which is filled by fill() and read by `log` only."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        os.mkfifo(folder / "log")
        self._pipe = os.open(folder / "log", os.O_RDWR | os.O_NONBLOCK)
        super().__init__(folder, *arguments)

    def fill(self) -> None:
        for size in (4096, 1):
            with suppress(BlockingIOError):
                while True:
                    os.write(self._pipe, b"x" * size)

    @property
    def log(self) -> str:
        """Text written since the last read."""
        text = b""
        with suppress(BlockingIOError):
            while True:
                text += os.read(self._pipe, 1 << 20)
        return text.decode()

    def reload(self) -> None:
        before = self.value(RELOADED)
        self.process.send_signal(signal.SIGHUP)
        self.await_(lambda: self.value(RELOADED) != before)


@pytest.fixture
def piped(tmp_path: Path) -> Iterator[Piped]:
    exporter = Piped(tmp_path, "--collector.disable-defaults")
    try:
        yield exporter.await_ready()
    finally:
        exporter.process.kill()
        exporter.process.wait(PATIENCE)


def test_a_reader_that_has_stopped(piped: Piped) -> None:
    """Lines are logged to a full pipe: scrapes and reloads are answered, and the end is in time."""
    piped.fill()
    for _ in range(3):
        piped.reload()
        assert 200 == piped.get("/metrics")[0]
    code = piped.end()

    assert 0 == code


def test_a_reader_that_goes_on(piped: Piped) -> None:
    """Lines queued while the reader paused are not lost, and the last lines before the end are written."""
    piped.fill()
    for _ in range(3):
        piped.reload()
    assert 0 == piped.value(DROPPED % "queue_full")
    text = piped.log
    while text.count("settings reloaded") < 3:
        text += piped.log

    assert 0 == piped.end()
    assert "everything is detached" in piped.log


@pytest.mark.needs_bpf
@pytest.mark.timeout(400)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_job_that_maps_ever_new_libraries(tmp_path: Path) -> None:
    """A user's process maps libraries under paths of 4,000 control characters, new ones again and again: what is
    logged about them is bounded, and what is not logged is counted.
    """
    exporter, limit = Exporter(tmp_path), RATES[logging.INFO]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        try:
            exporter.await_ready()
            before = len(exporter.log)
            command = [sys.executable, "-c", CHURN, BUILD / "libcufile.so.0", folder]
            with subprocess.Popen(command, start_new_session=True) as job:
                try:
                    exporter.await_(lambda: exporter.log.count(ATTACHED) >= limit.burst, SECONDS)
                    before_more = exporter.value(DROPPED % "rate_limit") or 0
                    exporter.await_(lambda: (exporter.value(DROPPED % "rate_limit") or 0) > before_more, MORE_SECONDS)
                finally:
                    os.killpg(job.pid, signal.SIGKILL)
            lines = exporter.log[before:].splitlines()
        finally:
            exporter.process.kill()
            exporter.process.wait(PATIENCE)
    hostile = [line for line in lines if "u0001" in line]
    counts = Counter(line.split('"')[1] for line in hostile)

    assert limit.burst / 2 < counts[ATTACHED]
    assert max(counts.values()) < limit.burst + 2 + (SECONDS + MORE_SECONDS) / limit.seconds
    assert max(map(len, lines)) < LINE_BYTES
    assert max(map(len, hostile)) < VALUE_BYTES + 200
