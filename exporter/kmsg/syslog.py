"""The kernel log through syslog(2), for containers that cannot open /dev/kmsg.

A container that is not privileged may open no device; syslog(2) needs CAP_SYSLOG and nothing else. Each poll copies the
newest part of the log; the bytes after the end of the previous copy are new. Reading consumes nothing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections import deque
from collections.abc import Callable

from exporter.kmsg.records import begins_with_process

POLL_MS = 1000
"""Milliseconds between two polls."""
_READ_ALL, _SIZE_BUFFER = 3, 10
_NEWEST, _MOST = 1 << 16, 1 << 24
_TAIL = 4096
_NUMBER = re.compile(rb"\b[0-9a-fA-F]+\b|[0-9]+")
_QUOTES = re.compile(rb"['\"`]")
_LINE = re.compile(rb"(<(\d{1,10})>\[ *(\d{1,10})\.(\d{6})\](?:\[ *[TC]\d+\])? )(.*)")


def read_all(size: int) -> bytes:
    """Returns the newest records of the log that fit into `size` bytes; all of them for 0. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = size or min(libc.klogctl(_SIZE_BUFFER, None, 0), _MOST)
    buffer = ctypes.create_string_buffer(max(size, 1))
    length = libc.klogctl(_READ_ALL, buffer, size)
    if length < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return buffer.raw[:length]


class Syslog:
    """Source of records in the form of /dev/kmsg.

    The kernel repeats the head of a record, its priority and time, on each line of the record, and such lines are one
    record here too: a text in a message may be any user's, and a line feed in it must not begin a message. Messages of
    one microsecond and priority look the same. They are records of their own where they begin alike but for numbers, as
    those of one driver do, while no text of a user's may have come before: no quotation mark, no name of a process at
    the beginning, where both beginnings would be the user's, no line that begins otherwise. Else they become one, of
    which the first message is the beginning.

    Raises OSError where syslog(2) is not permitted, and where the kernel writes no times (printk.time=0): new records
    cannot be distinguished from old ones without times.
    """

    name = "syslog(2)"

    def __init__(self, read: Callable[[int], bytes] = read_all) -> None:
        self._read_all, self._sequence = read, 0
        self._records: deque[bytes] = deque()
        self._gap = False
        text = read(0)
        if text and not any(map(_LINE.fullmatch, text.split(b"\n"))):
            raise OSError(errno.ENODATA, "the kernel log has no times")
        self._tail = text[-_TAIL:]
        self._take(text)

    def read(self) -> bytes:
        """Returns the next record. Raises BlockingIOError when no record is left, BrokenPipeError before a gap."""
        if not self._records:
            self._poll()
        if self._gap:
            self._gap = False
            raise BrokenPipeError(errno.EPIPE, "records were overwritten")
        if not self._records:
            raise BlockingIOError(errno.EAGAIN, "no new record")
        return self._records.popleft()

    def close(self) -> None:
        """Does nothing: no descriptor is open."""

    def _poll(self) -> None:
        for size in (_NEWEST, 0):
            text = self._read_all(size)
            _, seen, new = text.rpartition(self._tail) if self._tail else (b"", b"", text)
            if seen:
                break
        else:  # the last line of the previous copy has been overwritten, or the log was cleared
            new = text
            self._gap = bool(self._tail and text)
            self._sequence += self._gap
        self._tail = text[-_TAIL:]
        self._take(new)

    def _take(self, text: bytes) -> None:
        before, first = b"", list[bytes]()
        for line in text.split(b"\n"):  # a carriage return ends no line of the kernel's
            if not (found := _LINE.fullmatch(line)):
                continue
            prefix, priority, seconds, microseconds, message = found.groups()
            message = message.replace(b"\\", b"\\x5c") + b"\n"
            if prefix == before and (not first or _beginning(message) != first):
                self._records[-1] = self._records[-1].removesuffix(b"\n") + b"\\x0a" + message
                first = []
                continue
            foreign = begins_with_process(message) or _QUOTES.search(message)
            before, first = prefix, [] if foreign else _beginning(message)
            head = b"%s,%d,%d,-;" % (priority, self._sequence, int(seconds) * 1_000_000 + int(microseconds))
            self._records.append(head + message)
            self._sequence += 1


def _beginning(message: bytes) -> list[bytes]:
    """Returns the first two words, which name the driver and the device or kind of message, without numbers."""
    return [_NUMBER.sub(b"0", word) for word in message.split(maxsplit=2)[:2]]
