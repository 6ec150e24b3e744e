"""Child processes: start, read, terminate, and abandon those that cannot be killed.

Calls that may block for ever in the kernel or crash are made in a child process, never in the exporter itself.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import exporter

MOST_BYTES = 4 << 20
"""Length of the longest line; 72 links of a GPU are 40 KB."""
KILL_SECONDS = 1.0
"""Wait for a killed process; one that still exists afterwards is blocked in the kernel, or waits for a processor."""
_PR_SET_PDEATHSIG = 1
_OOM_SCORE = 500
"""Added to the exporter's score: when memory is short the kernel kills a child, which is replaceable, first."""
_SECRETS = ("OTEL_", "ACCEL_EXPORTER_")
"""Prefixes of variables that may hold passwords of backends and are not passed to children."""
_unreaped: list[subprocess.Popen[bytes]] = []
"""Killed children that had not ended yet. They are reaped when the next child is made or killed."""
_reaping = threading.Lock()


class ChildProcess:
    """A child that runs `python -m MODULE ARGUMENT` with this package and the folders of `places` as its only packages.

    `command` replaces `python -m MODULE`; the child inherits the descriptors of `share`. The child's standard error is
    discarded, or merged into its lines `with_errors`. The thread that makes the child must outlive the child: the
    kernel kills the child at the end of that thread (die_with_parent).
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
        _reap()
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
        """Return the lines that the child wrote, after waiting at most `seconds`; None once the child has ended.

        Raises ValueError for a line longer than MOST_BYTES.
        """
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
        """Write a line to the child, without waiting; the line is lost when the child does not read. Thread-safe."""
        with suppress(OSError, ValueError):
            os.write(self._input.fileno(), text.encode() + b"\n")

    def hang_up(self) -> None:
        """Close the child's standard input, on which a working child releases its handles and ends."""
        with suppress(OSError):
            self._input.close()

    def ended(self) -> int | None:
        """Return the child's exit status, negative for a signal, or None while the child runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Wait at most `seconds` for the child's end. Returns the exit status as `ended` does, or None."""
        until = time.monotonic() + seconds
        while self._process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        return self._process.poll()

    def kill(self) -> bool:
        """Kill the child and close its pipes. Returns False when the child has not ended within KILL_SECONDS."""
        self._process.kill()
        ended = self.wait(KILL_SECONDS) is not None
        self.hang_up()
        self._output.close()
        _reap(() if ended else (self._process,))
        return ended


def _reap(also: Collection[subprocess.Popen[bytes]] = ()) -> None:
    """Take the exit statuses of killed children that have ended meanwhile, so that none stays a zombie."""
    with _reaping:
        _unreaped[:] = [process for process in (*_unreaped, *also) if process.poll() is None]


def offer_to_oom(pid: int) -> None:
    """Let the kernel kill a child before this process when memory is short. Does nothing where this is refused."""
    with suppress(OSError, ValueError):
        score = int(Path("/proc/self/oom_score_adj").read_text()) + _OOM_SCORE
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(min(score, 1000)))


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this child process at the end of the thread that started it; exit now if that has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(0)


def private_output() -> int:
    """Return a new descriptor of this child's standard output, and redirect what libraries print to /dev/null."""
    output = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
    return output
