"""NVML's stand-in for tests: a scenario that may change, the worker on it, and what was called."""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Self, TypeVar

import pytest

from exporter.nvml.snapshot import FAST, ChildOptions, Message, NvmlStarted, SetRead, decode
from tests.support import PATIENCE

HERE = Path(__file__).parent
LIBRARY = HERE / "build/nvml/libnvidia-ml.so.1"
OLD_LIBRARY = HERE / "build/nvml/old/libnvidia-ml.so.1"
INTERVALS = {"fast": 0.25, "processes": 0.3, "slow": 0.5}
UUID = "GPU-00000000-0000-0000-0000-{:012x}"
_COUNT = struct.Struct("=56sQ")
M = TypeVar("M", bound=Message)


def build() -> None:
    """Builds the libraries unless they are there and new."""
    subprocess.run(
        ["make", "-s", "-C", HERE, *(str(it.relative_to(HERE)) for it in (LIBRARY, OLD_LIBRARY))], check=True
    )


class Scenario:
    """A file of `key = value`, and the environment in which a program sees its GPUs."""

    def __init__(self, folder: Path, **values: object) -> None:
        self._path, self._calls = folder / "scenario", folder / "calls"
        self._values: dict[str, object] = {}
        self.set(values)

    def set(self, values: Mapping[str, object]) -> None:
        """Adds or replaces lines; None takes one away."""
        self._values |= values
        lines = [f"{key} = {value}\n" for key, value in self._values.items() if value is not None]
        new = self._path.with_suffix(".new")
        new.write_text("".join(lines))
        new.rename(self._path)

    def environment(self, library: Path = LIBRARY) -> dict[str, str]:
        return {
            "ACCEL_NVML_SCENARIO": str(self._path),
            "ACCEL_NVML_CALLS": str(self._calls),
            "LD_LIBRARY_PATH": str(library.parent),
        }

    def calls(self) -> dict[str, int]:
        """Return the number of calls of each function."""
        if not self._calls.exists():
            return {}
        counts = _COUNT.iter_unpack(self._calls.read_bytes())
        return {name.rstrip(b"\0").decode(): count for name, count in counts if count}


class Worker:
    """The child by itself, as its parent sees it."""

    def __init__(
        self,
        scenario: Scenario,
        library: Path = LIBRARY,
        intervals: Mapping[str, float] | None = None,
        skip: tuple[int, ...] = (),
    ) -> None:
        options = ChildOptions(intervals or INTERVALS, skip, os.getpid())
        self.process = subprocess.Popen(
            [sys.executable, "-m", "exporter.nvml.child.worker", json.dumps(asdict(options))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | scenario.environment(library),
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._rest = b""
        self.received: list[Message] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def until(self, kind: type[M], wanted: Callable[[M], bool] = lambda _: True, seconds: float = PATIENCE) -> M:
        """The next message that is wanted; fails when none comes in time."""
        deadline = time.monotonic() + seconds
        while True:
            while self.received:
                message = self.received.pop(0)
                if isinstance(message, kind) and wanted(message):
                    return message
            left = deadline - time.monotonic()
            if left <= 0 or not self._listen(left):
                pytest.fail(f"no {kind.__name__} came; it ended with {self.process.poll()}")

    def read(self, set_name: str = FAST, gpu: int = 0) -> SetRead:
        """The next reading of a set of a GPU."""
        return self.until(SetRead, lambda message: message.set_name == set_name and message.gpu == UUID.format(gpu))

    def second_read(self, gpu: int = 0) -> SetRead:
        """A fast reading that has GPM's means, which take two samples."""
        self.read(gpu=gpu)
        return self.read(gpu=gpu)

    def started(self) -> NvmlStarted:
        return self.until(NvmlStarted)

    def command(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def hang_up(self) -> int:
        """The exit status after its input is closed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)

    def _listen(self, seconds: float) -> bool:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], seconds)
        received = os.read(self.process.stdout.fileno(), 1 << 16) if readable else b""
        *lines, self._rest = (self._rest + received).split(b"\n")
        self.received += map(decode, lines)
        return bool(received)
