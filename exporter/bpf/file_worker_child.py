"""The two processes that read files (reader.py), as the exporter holds them."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

_KILL_SECONDS = 0.5


class WorkerProcesses:
    """The two processes, and how much of the processor's time they used."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self.process, self.connection = process, connection
        self.poll = select.poll()  # select() takes no descriptor above 1023, and probes have many
        self.poll.register(connection, select.POLLIN)
        self.slowness, self.used = 1.0, 0.0
        self.reader = self.reader_pidfd = 0
        self.ended_at = 0.0
        self._lock = threading.Lock()

    def follow(self, reader: int, slowness: float) -> None:
        """Takes the pid of the process that reads, and how slow this machine is."""
        self.reader, self.slowness = reader, slowness
        with suppress(OSError):
            self.reader_pidfd = os.pidfd_open(reader)

    def seconds(self) -> float:
        """Returns the processor time of both since the last call of this method."""
        now = sum(map(processor_seconds, (self.process.pid, self.reader)))
        used, self.used = max(0.0, now - self.used), max(now, self.used)
        return used

    def runs(self) -> bool:
        """Return whether either is on a processor, or waits for one."""
        return any(map(waits_for_processor, (self.process.pid, self.reader)))

    def is_stopped(self) -> bool:
        """Return whether either was stopped by a signal or a tracer."""
        return any(_state(pid) in ("T", "t") for pid in (self.process.pid, self.reader) if pid)

    def kill(self) -> bool:
        """Kills both; returns whether they have ended within a moment."""
        self.connection.close()
        self.process.kill()
        if self.reader_pidfd:
            with suppress(OSError):
                signal.pidfd_send_signal(self.reader_pidfd, signal.SIGKILL)
        until = time.monotonic() + _KILL_SECONDS
        while not self.has_ended() and time.monotonic() < until:
            time.sleep(0.005)
        return self.has_ended()

    def has_ended(self) -> bool:
        """Return whether both have ended; if so, the reader's pidfd is closed. Safe from any thread."""
        with self._lock:
            if self.process.poll() is None:
                return False
            if self.reader_pidfd:
                poll = select.poll()
                poll.register(self.reader_pidfd, select.POLLIN)
                if not poll.poll(0):
                    return False
                os.close(self.reader_pidfd)
                self.reader_pidfd = 0
            self.ended_at = self.ended_at or time.monotonic()
            return True


def processor_seconds(pid: int) -> float:
    """Processor time of a process, 0 for none and one that has ended; clock_getcpuclockid(3)."""
    with suppress(OSError):
        return time.clock_gettime((~pid << 3) | 2) if pid else 0.0
    return 0.0


def waits_for_processor(pid: int) -> bool:
    """Return whether a process is on a processor, or waits for one; False for pid 0."""
    return bool(pid) and _state(pid) == "R"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
