"""Helpers shared by tests of all folders."""

from __future__ import annotations

import itertools
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
_FIRST_PORT, _PORTS, _SHARES = 10_000, 2_000, 11
"""Ports below those that Linux gives to connections of its own choice: so many for each of 10 workers of pytest."""


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


def _own_ports() -> itertools.cycle[int]:
    """Return the ports of this worker in turn, from one at random: no other worker listens on them."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw10").removeprefix("gw")) % _SHARES
    first, turn = _FIRST_PORT + worker * _PORTS, _RANDOM.randrange(_PORTS)
    return itertools.cycle([first + (turn + number) % _PORTS for number in range(_PORTS)])


_own_port = _own_ports()


def free_port() -> int:
    """Return a TCP port that nothing listens on now; what is started next may listen on it some time later.

    Linux gives it to no connection, and it is not returned again for the next thousands of calls.
    """
    while True:
        port = next(_own_port)
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
