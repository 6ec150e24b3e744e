"""Helpers shared by tests of all folders."""

from __future__ import annotations

import os
import random
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 60.0
"""Seconds to wait for another thread or process: a busy machine is no fault of what is tested."""
_RANDOM = random.SystemRandom()  # workers of pytest seed the others alike


def until(condition: Callable[[], T], what: object = "", seconds: float = PATIENCE) -> T:
    """Return the first true result of a condition, which is evaluated every 10 ms, later every 100 ms.

    Raise AssertionError, with what was waited for, if there is none in time; `what` may be a function that describes
    the state at that time.
    """
    deadline, pause = time.monotonic() + seconds, 0.01
    while True:
        if result := condition():  # not evaluated again: what is waited for may be over soon
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what() if callable(what) else what}")
        time.sleep(pause)
        pause = min(1.2 * pause, 0.1)


def free_port() -> int:
    """Return a TCP port that nothing listens on now, below those that Linux gives to connections of its own choice.

    Workers of pytest have ports apart: what one is about to listen on is not free for another.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = _RANDOM.randrange(10_000 + worker, 32_000, workers)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def family(page: str, name: str) -> dict[str, float]:
    """Return the values of a metric's series on a page, by the text of their labels."""
    found = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", page, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def labels_of(text: str) -> dict[str, str]:
    """Return the labels in a series' text; values stay escaped."""
    return dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', text))
