"""A child process as its parent holds it: started, read from, told to end, and given up when it does not.

What may block for ever in the kernel or crash is called in one of these, never in the exporter itself.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import exporter

MOST_BYTES = 4 << 20
"""The longest line; 72 links of a GPU are 40 KB."""
KILL_SECONDS = 1.0
"""A killed process that is still there after that waits in the kernel: it cannot be waited for."""
_PR_SET_PDEATHSIG = 1
_OOM_SCORE = 500
"""Added to the exporter's own: where memory is short a child, which is replaced, goes before it."""
_SECRETS = ("OTEL_", "ACCEL_EXPORTER_")
"""Variables that begin so may hold passwords of backends, and are not for children."""


class ChildProcess:
    """Runs `python -m MODULE ARGUMENT`, which finds this package and what is in `places`, and no other packages.

    Another `command` takes the place of `python -m MODULE`; it inherits the descriptors of `share`. What it says of
    errors goes nowhere, unless it is wanted among its lines.
    The thread that makes this must outlive it: the kernel kills the child when it ends (die_with_parent).
    """

    def __init__(
        self,
        module: str,
        argument: str,
        places: Iterable[Path] = (),
        command: Sequence[str] = (),
        share: Collection[int] = (),
        with_errors: bool = False,
    ) -> None:
        found = [Path(exporter.__file__).parents[1], *places]
        self._process = subprocess.Popen(
            [*(command or (sys.executable, "-P", "-S", "-m", module)), argument],
            pass_fds=share,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if with_errors else subprocess.DEVNULL,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith(_SECRETS)},
                "PYTHONPATH": os.pathsep.join(map(str, found)),
            },
        )
        offer_to_oom(self._process.pid)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._input.fileno(), False)
        self._poll = select.poll()  # select() takes no descriptor above 1023, and probes have many
        self._poll.register(self._output, select.POLLIN)
        self._rest = b""
        self.pid = self._process.pid

    def lines(self, seconds: float) -> list[bytes] | None:
        """What it said within that time, line by line; None once it has ended. Raises ValueError for endless lines."""
        if not self._poll.poll(seconds * 1000):
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

    def wait(self, seconds: float) -> int | None:
        """Its exit status as `ended` gives it, once it has one, but None after that time."""
        until = time.monotonic() + seconds
        while self._process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        return self._process.poll()

    def kill(self) -> bool:
        """Kills it and waits a moment; False when it is still there, which is for whom it is abandoned."""
        self._process.kill()
        gone = self.wait(KILL_SECONDS) is not None
        self.hang_up()
        self._output.close()
        return gone


def offer_to_oom(pid: int) -> None:
    """Has the kernel kill a child before this process when memory is short. Does nothing where it is refused."""
    with suppress(OSError, ValueError):
        score = int(Path("/proc/self/oom_score_adj").read_text()) + _OOM_SCORE
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(min(score, 1000)))


def die_with_parent(parent: int) -> None:
    """Of the child: has the kernel kill it when the thread that started it ends. Ends at once if that was before."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(0)


def private_output() -> int:
    """Of the child: a descriptor of its own for what it tells; what libraries print goes nowhere from now on."""
    output = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
    return output
