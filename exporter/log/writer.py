"""Writing of log lines by one thread, so that no other thread waits for a reader of the log that has stopped."""

from __future__ import annotations

import logging
import os
import select
import threading

from exporter.log.losses import dropped

QUEUE_BYTES = 256 * 1024
FLUSH_SECONDS = 1.0


class LogWriter(logging.Handler):
    """A handler that queues lines for its thread; a line for which the queue has no room is dropped and counted.

    logging's QueueListener does the same for records, but waits without limit at its end. The file stays in blocking
    mode, because other processes may share it.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._lines: list[bytes] = []
        self._size = self._missed = 0
        self._writing = self._stuck = self._closed = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        """Start the thread, unless it runs already."""
        if self._thread.ident is None:
            self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n".encode()
        except Exception:
            self.handleError(record)
            return
        with self._changed:
            # After a line without room all are dropped until the queue is taken, so that the notice is in its place.
            room = not self._missed and self._size + len(line) <= QUEUE_BYTES
            if room:
                self._lines.append(line)
                self._size += len(line)
                self._changed.notify_all()
            else:
                self._missed += 1
        if not room:
            dropped.add("queue_full")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Count a line that cannot be formed. logging's own would write to standard error, and wait."""
        dropped.add("write_error")

    def drain(self, seconds: float) -> bool:
        """Wait until the queue is written, at most so many seconds; a reader that has stopped is waited for once.

        Returns False when something is left.
        """
        self.start()
        with self._changed:
            self._stuck = not self._changed.wait_for(self._written, 0 if self._stuck else seconds)
            return not self._stuck

    def flush(self) -> None:
        """Write what is queued; logging calls this at the end of the process."""
        self.drain(FLUSH_SECONDS)

    def close(self) -> None:
        """End the thread, when the queue is written."""
        super().close()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _written(self) -> bool:
        return not self._lines and not self._writing

    def _run(self) -> None:
        lost = 0
        while taken := self._take():
            lines, missed = taken
            for line in lines:
                if not self._write(line):
                    dropped.add("write_error")
                    lost += 1
            lost += missed
            if lost and self._write(self._notice(lost)):
                lost = 0

    def _take(self) -> tuple[list[bytes], int] | None:
        """Wait for lines and return them, with the number of those dropped after them; None at the end."""
        with self._changed:
            self._writing = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._lines or self._closed)
            if not self._lines:
                return None
            taken = self._lines, self._missed
            self._lines, self._size, self._missed, self._writing = [], 0, 0, True
            return taken

    def _write(self, line: bytes) -> bool:
        while line:
            try:
                line = line[os.write(self._descriptor, line) :]
            except BlockingIOError:  # another process that shares the file has set O_NONBLOCK
                self._await_room()
            except OSError:
                return False
            self._stuck = False
        return True

    def _await_room(self) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        poll.poll()

    def _notice(self, lost: int) -> bytes:
        text = "log lines were dropped: standard error was not read fast enough, or writing failed"
        record = logging.LogRecord("exporter.log", logging.WARNING, __file__, 0, text, None, None)
        record.lines = lost
        return f"{self.format(record)}\n".encode()
