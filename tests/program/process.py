"""The exporter as a process of its own, for tests."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import PATIENCE, family, free_port

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "exporter"]
BESIDE_OTHERS = [sys.executable, "-m", "tests.workers"]
"""The same, which leaves alone what runs on the files of other workers of pytest."""
WITHOUT_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to be without")


def once(*arguments: str, prefix: tuple[str, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    return subprocess.run(
        [*prefix, *COMMAND, *arguments],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


class Exporter:
    """A running exporter on a free port, its log in a file."""

    def __init__(self, folder: Path, *arguments: str, prefix: tuple[str, ...] = (), **variables: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*prefix, *BESIDE_OTHERS, f"--web.listen-address={self.address}", *arguments],
                cwd=ROOT,
                env=os.environ | variables,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def get(self, path: str, data: bytes | None = None) -> tuple[int, str]:
        request = urllib.request.Request(f"http://{self.address}{path}", data, method="POST" if data else "GET")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def value(self, series: str) -> float | None:
        """The value of a series on /metrics, by its whole text before the value."""
        found = re.search(rf"^{re.escape(series)} (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        return float(found[1]) if found else None

    def family(self, name: str) -> dict[str, float]:
        """The values of a metric's series on /metrics, by the text of their labels."""
        return family(self.get("/metrics")[1], name)

    def await_ready(self) -> Exporter:
        self.await_(lambda: self.get("/-/ready")[0] == 200)
        return self

    def await_(self, happened: Callable[[], bool], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log
            with contextlib.suppress(OSError):
                if happened():
                    return
            time.sleep(0.05)
        pytest.fail(f"it did not happen within {seconds} s; the log: {self.log}")

    def status(self, field: str) -> set[str]:
        """The values of a field of /proc/PID/status in all threads."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        texts = []
        for task in tasks.iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
                texts.append((task / "status").read_text())
        return {value for text in texts for value in re.findall(rf"^{field}:\s*(\S+)$", text, re.MULTILINE)}

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """The exit code after a signal. How long an end takes is measured by `python -m bench exporter`."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Exporter]]:
    started: list[Exporter] = []

    def start(*arguments: str, **words: object) -> Exporter:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Exporter(folder, *arguments, **words))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for exporter in started:
        if exporter.process.poll() is None:
            exporter.process.kill()
            exporter.process.wait(PATIENCE)
