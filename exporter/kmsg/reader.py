"""A thread that follows the kernel log, from the oldest record that the kernel still has."""

from __future__ import annotations

import errno
import logging
import os
import re
import select
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

from exporter.bpf import privileges
from exporter.kmsg.records import Record, parse
from exporter.kmsg.syslog import POLL_MS, Syslog
from exporter.model import Unavailable

DEVICE = Path("/dev/kmsg")
LONGEST = 8192
"""Largest size of a line in bytes; no record of the kernel is longer (PRINTKRB_RECORD_MAX is 1024, escaped and with its
keys).
"""
REPLAY_SECONDS = 5.0
_GATHER_MS = 20
_POLL_FILE_MS = 200
RESTRICTED = Path("/proc/sys/kernel/dmesg_restrict")

log = logging.getLogger(__name__)


def open_log(path: Path) -> int:
    """Opens the log at `path` for reading without blocking. Returns the descriptor.

    A FIFO is opened for writing too, which keeps the FIFO open while nobody else writes. Raises Unavailable with the
    reason and a remedy.
    """
    try:
        writing = stat.S_ISFIFO(path.stat().st_mode)
        return os.open(path, (os.O_RDWR if writing else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        remedy = "give the container the host's /dev/kmsg"
        raise Unavailable(
            f"there is no {path}", remedy if privileges.in_user_namespace() else f"grant CAP_SYSLOG, or {remedy}"
        ) from None
    except PermissionError as error:
        why = "kernel.dmesg_restrict is 1" if _restricted() else error.strerror
        remedy = "grant CAP_SYSLOG, or set kernel.dmesg_restrict to 0"
        if privileges.in_user_namespace():
            remedy = f"set kernel.dmesg_restrict to 0, or {privileges.LEAVE_USER_NAMESPACE}"
        raise Unavailable(f"{path} may not be read ({why})", remedy) from None
    except OSError as error:
        raise Unavailable(f"{path} cannot be opened: {error.strerror}") from None


class _Descriptor:
    """Source of bytes behind a descriptor: /dev/kmsg, a FIFO or a file."""

    def __init__(self, path: Path) -> None:
        self.name, self.descriptor = str(path), open_log(path)

    def read(self) -> bytes:
        """Returns a record of /dev/kmsg, or any part of another file; no bytes at the end of a file. Raises OSError."""
        return os.read(self.descriptor, LONGEST)

    def close(self) -> None:
        os.close(self.descriptor)


def open_source(path: Path) -> _Descriptor | Syslog:
    """Opens the log at `path`, or syslog(2) where /dev/kmsg cannot be opened. Raises Unavailable."""
    try:
        return _Descriptor(path)
    except Unavailable:
        if path != DEVICE:
            raise
        try:
            return Syslog()
        except OSError:
            pass
        raise


class Reader:
    """Calls `receive` with each record of a line that matches `wanted`; other lines cost the search and no more.

    `path` is /dev/kmsg, or a FIFO or a growing file with lines of the same form. `receive` runs in the reader's thread
    and must not block for long: records that the kernel overwrites meanwhile are lost, and counted.
    """

    def __init__(self, path: Path, wanted: re.Pattern[bytes], receive: Callable[[Record], None]) -> None:
        self._path, self._wanted, self._receive = path, wanted.search, receive
        self.lost = 0
        """Number of records overwritten before they were read, too long, malformed or failed on by `receive`."""
        self.failure = ""
        """Reason why the log is no longer read; empty while the log is read."""
        self.caught_up = threading.Event()
        """Set once all records older than the start are read, or take too long: later records are live."""
        self._last = b""
        self._partial = b""
        self._skipping = self._overrun = self._complained = self._ending = False

    def start(self) -> None:
        """Opens the log and starts the thread. Raises Unavailable when the log cannot be opened."""
        self._log = open_source(self._path)
        self._closing = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="kmsg", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; records not read by then are dropped."""
        self._ending = True
        os.eventfd_write(self._closing, 1)
        self._thread.join(1)
        if not self._thread.is_alive():
            self._log.close()
            os.close(self._closing)

    def _run(self) -> None:
        try:
            self._follow()
        except OSError as error:
            self.failure = f"{self._log.name} is no longer read: {error.strerror}"
            log.error("%s", self.failure)

    def _follow(self) -> None:
        readable, closing = select.poll(), select.poll()
        if isinstance(self._log, _Descriptor):
            readable.register(self._log.descriptor, select.POLLIN)
        longest = POLL_MS if isinstance(self._log, Syslog) else None
        for poll in (readable, closing):
            poll.register(self._closing, select.POLLIN)
        while not self._ending:
            try:
                data = self._log.read()
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    self.caught_up.set()
                    readable.poll(longest)
                    closing.poll(_GATHER_MS)  # one wait for many records when records come fast
                elif error.errno == errno.EPIPE:
                    self._overrun = True
                elif error.errno == errno.EINVAL:  # the kernel skips a record longer than our buffer
                    self.lost += 1
                else:
                    raise
                continue
            if data:
                self._take(data)
            else:  # the end of a file
                self.caught_up.set()
                closing.poll(_POLL_FILE_MS)

    def _take(self, data: bytes) -> None:
        """Splits one record of /dev/kmsg, with its keys on further lines, or any part of a stream of records."""
        if self._overrun:
            self._overrun = False
            self.lost += _between(self._last, data)
        self._last = data
        if not self._partial and not self._skipping and data.endswith(b"\n") and not self._wanted(data):
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            if self._skipping:
                self._skipping = False
            elif not line.startswith(b" ") and self._wanted(line):
                self._deliver(line)
        if len(self._partial) > LONGEST:
            self.lost += not self._skipping
            self._partial, self._skipping = b"", True

    def _deliver(self, line: bytes) -> None:
        if not self.caught_up.is_set() and time.monotonic() - self._started > REPLAY_SECONDS:
            self.caught_up.set()
        try:
            self._receive(parse(line, not self.caught_up.is_set()))
        except Exception:
            if not self._complained:
                log.exception("a record of %s was lost (logged once, counted)", self._path)
            self._complained = True
            self.lost += 1


def _between(before: bytes, after: bytes) -> int:
    """Returns the number of records between two, by their sequence numbers; 1 at least."""
    try:
        return max(1, _sequence(after) - _sequence(before) - 1)
    except (IndexError, ValueError):
        return 1


def _sequence(data: bytes) -> int:
    return int(data.split(b",", 2)[1])


def _restricted() -> bool:
    try:
        return RESTRICTED.read_text().strip() == "1"
    except OSError:
        return False
