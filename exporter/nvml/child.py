"""The child process as its parent holds it: started, read from, told to end, and given up when it does not."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import exporter
from exporter.nvml.snapshot import Options

MOST_BYTES = 4 << 20
"""The longest line; 72 links of a GPU are 40 KB."""
KILL_SECONDS = 1.0
"""A killed process that is still there after that waits in the kernel: it cannot be waited for."""


class Child:
    """Starts the worker. The thread that makes this must outlive it: the kernel kills the child when it ends."""

    def __init__(self, options: Options) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-S", "-m", "exporter.nvml.worker", json.dumps(asdict(options))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(_places())},
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._input.fileno(), False)
        self._rest = b""
        self.pid = self._process.pid

    def lines(self, seconds: float) -> list[bytes] | None:
        """What it said within that time, line by line; None once it has ended. Raises ValueError for endless lines."""
        readable, _, _ = select.select([self._output], [], [], seconds)
        if not readable:
            return []
        received = os.read(self._output.fileno(), 1 << 16)
        if not received:
            return None
        *lines, self._rest = (self._rest + received).split(b"\n")
        if len(self._rest) > MOST_BYTES:
            raise ValueError(f"a line of more than {MOST_BYTES} bytes")
        return lines

    def command(self, text: str) -> None:
        """Tells it something, in vain if it does not listen. Any thread may."""
        with suppress(OSError, ValueError):
            os.write(self._input.fileno(), text.encode() + b"\n")

    def hang_up(self) -> None:
        """Closes its input: it gives its handles back and ends, if it still can."""
        with suppress(OSError):
            self._input.close()

    def ended(self) -> int | None:
        """Its exit status, negative for a signal; None while it is there."""
        return self._process.poll()

    def kill(self) -> bool:
        """Kills it and waits a moment; False when it is still there, which is for whom it is abandoned."""
        self._process.kill()
        until = time.monotonic() + KILL_SECONDS
        while self._process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        self.hang_up()
        self._output.close()
        return self._process.poll() is not None


def _places() -> list[str]:
    """Where the child finds this package and nvidia-ml-py; it looks at no other site's packages, which saves memory."""
    found = importlib.util.find_spec("pynvml")
    places = [Path(exporter.__file__).parents[1]]
    if found is not None and found.origin:
        places.append(Path(found.origin).parent)
    return [str(place) for place in places]
