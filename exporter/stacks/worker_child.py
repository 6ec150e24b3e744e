"""The two processes of child.py, as worker.py holds them: what they were given, and whether they make progress."""

from __future__ import annotations

import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from exporter.bpf.file_worker_child import processor_seconds, waits_for_processor


@dataclass
class StackChild:
    """`process` opens; `reader` is the pid of the one that unwinds, 0 until it has begun."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    reader: int = 0
    given: int = 0
    answered: int = 0
    """Stacks given to it, and those that it has answered."""
    last_answer: float = field(default_factory=time.monotonic)
    flushed: int = 0
    opening: int = 0
    """The process of which files are being opened and looked into first; 0: none."""
    _used: float = 0.0
    _looked: float = 0.0
    _last_progress: float = 0.0
    _spent: float = 0.0
    """The processor time of both at the last look, the time of that look, the time of the last progress, and the
    processor time since the last answer.
    """

    def look(self) -> None:
        """Take note of progress. On a busy machine both may wait long for a processor, which is not being stuck."""
        now, used = time.monotonic(), self.seconds()
        if self.last_answer > self._looked:
            self._last_progress, self._spent = self.last_answer, 0.0
        else:
            self._spent += used - self._used
            if used > self._used or any(map(waits_for_processor, (self.process.pid, self.reader))):
                self._last_progress = now
        self._used, self._looked = used, now

    def is_stuck(self, seconds: float) -> bool:
        """Return whether there was no progress for so long, or an answer takes more than that of the processor."""
        return time.monotonic() - self._last_progress > seconds or self._spent > seconds

    def seconds(self) -> float:
        """Return the processor time that both processes have used."""
        return processor_seconds(self.process.pid) + processor_seconds(self.reader)

    def memory(self) -> int:
        """Return bytes of anonymous memory of the process that unwinds; 0 where that is not known."""
        with suppress(OSError, ValueError, IndexError):
            lines = Path(f"/proc/{self.reader}/status").read_text().splitlines()
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))
        return 0
