"""The kernel log through syslog(2), for where /dev/kmsg cannot be opened.

A container that is not privileged may open no device, but the call takes CAP_SYSLOG and nothing else. Each look copies
the newest part of the log, of which the part after the end of the last look is new. Nothing is consumed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections import deque
from collections.abc import Callable

LOOK_MS = 1000
_READ_ALL, _SIZE_BUFFER = 3, 10
_NEWEST, _MOST = 1 << 16, 1 << 24
_TAIL = 4096
_LINE = re.compile(rb"<(\d{1,10})>\[ *(\d{1,10})\.(\d{6})\](?:\[ *[TC]\d+\])? (.*)")


def read_all(size: int) -> bytes:
    """The newest records of the log that fit into so many bytes; 0 for all of them. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = size or min(libc.klogctl(_SIZE_BUFFER, None, 0), _MOST)
    buffer = ctypes.create_string_buffer(max(size, 1))
    length = libc.klogctl(_READ_ALL, buffer, size)
    if length < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return buffer.raw[:length]


class Syslog:
    """Gives the records as lines of /dev/kmsg, a record of several lines as several. Raises OSError where the call may
    not be made, or where the kernel writes no times (printk.time=0): what is new could not be known then.
    """

    name = "syslog(2)"

    def __init__(self, read: Callable[[int], bytes] = read_all) -> None:
        self._read_all, self._sequence = read, 0
        self._records: deque[bytes] = deque()
        self._gap = False
        text = read(0)
        if text and not any(map(_LINE.fullmatch, text.splitlines())):
            raise OSError(errno.ENODATA, "the kernel log has no times")
        self._tail = text[-_TAIL:]
        self._take(text)

    def read(self) -> bytes:
        """The next record. Raises BlockingIOError when there is none, BrokenPipeError as /dev/kmsg before a gap."""
        if not self._records:
            self._look()
        if self._gap:
            self._gap = False
            raise BrokenPipeError(errno.EPIPE, "records were overwritten")
        if not self._records:
            raise BlockingIOError(errno.EAGAIN, "no news")
        return self._records.popleft()

    def close(self) -> None:
        """Nothing is open."""

    def _look(self) -> None:
        for size in (_NEWEST, 0):
            text = self._read_all(size)
            _, seen, news = text.rpartition(self._tail) if self._tail else (b"", b"", text)
            if seen:
                break
        else:  # so much has come that what was seen last is gone, or the log was cleared
            news = text
            self._gap = bool(self._tail and text)
            self._sequence += self._gap
        self._tail = text[-_TAIL:]
        self._take(news)

    def _take(self, text: bytes) -> None:
        for line in text.splitlines():
            if found := _LINE.fullmatch(line):
                priority, seconds, microseconds, said = found.groups()
                head = b"%s,%d,%d,-;" % (priority, self._sequence, int(seconds) * 1_000_000 + int(microseconds))
                self._records.append(head + said.replace(b"\\", b"\\x5c") + b"\n")
                self._sequence += 1
