"""Follows the kernel log in a thread of its own, from the oldest record that the kernel still has."""

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

from exporter.kmsg.records import Record, parse
from exporter.kmsg.syslog import LOOK_MS, Syslog
from exporter.model import Unavailable

DEVICE = Path("/dev/kmsg")
LONGEST = 8192
"""Bytes of a line; no record of the kernel is longer (PRINTKRB_RECORD_MAX is 1024, escaped and with its keys)."""
_REPLAY_SECONDS = 5.0
_GATHER_MS = 20
_LOOK_AGAIN_MS = 200
_RESTRICTED = Path("/proc/sys/kernel/dmesg_restrict")

log = logging.getLogger(__name__)


def open_log(path: Path) -> int:
    """A descriptor to read the log from, never blocking. Raises Unavailable with the reason and a remedy.

    A FIFO is opened for writing too: so it stays open while nobody else writes.
    """
    try:
        writing = stat.S_ISFIFO(path.stat().st_mode)
        return os.open(path, (os.O_RDWR if writing else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Unavailable(
            f"there is no {path}", "grant CAP_SYSLOG, or give the container the host's /dev/kmsg"
        ) from None
    except PermissionError as error:
        why = "kernel.dmesg_restrict is 1" if _restricted() else error.strerror
        raise Unavailable(
            f"{path} may not be read ({why})", "grant CAP_SYSLOG, or set kernel.dmesg_restrict to 0"
        ) from None
    except OSError as error:
        raise Unavailable(f"{path} cannot be opened: {error.strerror}") from None


class _Descriptor:
    """The log by a descriptor: /dev/kmsg, a FIFO or a file."""

    def __init__(self, path: Path) -> None:
        self.name, self.descriptor = str(path), open_log(path)

    def read(self) -> bytes:
        """A record of /dev/kmsg, or any part of another file; empty at a file's end. Raises OSError."""
        return os.read(self.descriptor, LONGEST)

    def close(self) -> None:
        os.close(self.descriptor)


def open_source(path: Path) -> _Descriptor | Syslog:
    """What to read the log from: in place of /dev/kmsg, where it cannot be opened, syslog(2). Raises Unavailable."""
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
    """Gives `receive` each record in whose line `wanted` is found; others cost the search and no more.

    Besides /dev/kmsg it follows a FIFO, or a file that grows, of the same lines. `receive` runs in the reader's thread
    and must not block for long: what the kernel overwrites meanwhile is lost, and counted.
    """

    def __init__(self, path: Path, wanted: re.Pattern[bytes], receive: Callable[[Record], None]) -> None:
        self._path, self._wanted, self._receive = path, wanted.search, receive
        self.lost = 0
        """Records overwritten before they were read, too long, malformed or failed on by `receive`."""
        self.failure = ""
        """Why the log is no longer read; empty while it is."""
        self.caught_up = threading.Event()
        """Set when what is older than the start has been read, or takes too long: records are live from then on."""
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
        """Ends the thread; what it has not read by then is not read."""
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
        news, closing = select.poll(), select.poll()
        if isinstance(self._log, _Descriptor):
            news.register(self._log.descriptor, select.POLLIN)
        longest = LOOK_MS if isinstance(self._log, Syslog) else None
        for poll in (news, closing):
            poll.register(self._closing, select.POLLIN)
        while not self._ending:
            try:
                data = self._log.read()
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    self.caught_up.set()
                    news.poll(longest)
                    closing.poll(_GATHER_MS)  # one wait for many records when they come fast
                elif error.errno == errno.EPIPE:
                    self._overrun = True
                elif error.errno == errno.EINVAL:  # a record longer than our buffer: it is passed over
                    self.lost += 1
                else:
                    raise
                continue
            if data:
                self._take(data)
            else:  # the end of a file
                self.caught_up.set()
                closing.poll(_LOOK_AGAIN_MS)

    def _take(self, data: bytes) -> None:
        """One record of /dev/kmsg, with its keys on further lines, or any part of a stream of them."""
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
                self._tell(line)
        if len(self._partial) > LONGEST:
            self.lost += not self._skipping
            self._partial, self._skipping = b"", True

    def _tell(self, line: bytes) -> None:
        if not self.caught_up.is_set() and time.monotonic() - self._started > _REPLAY_SECONDS:
            self.caught_up.set()
        try:
            self._receive(parse(line, not self.caught_up.is_set()))
        except Exception:
            if not self._complained:
                log.exception("a record of %s was lost (said once, counted)", self._path)
            self._complained = True
            self.lost += 1


def _between(before: bytes, after: bytes) -> int:
    """How many records lie between two, by their sequence numbers; one at least."""
    try:
        return max(1, _sequence(after) - _sequence(before) - 1)
    except (IndexError, ValueError):
        return 1


def _sequence(data: bytes) -> int:
    return int(data.split(b",", 2)[1])


def _restricted() -> bool:
    try:
        return _RESTRICTED.read_text().strip() == "1"
    except OSError:
        return False
