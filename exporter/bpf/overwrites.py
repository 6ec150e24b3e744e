"""Files that are written to while probes are in them, as inotify(7) reports it.

A breakpoint is put where the code of the file was. In a process that maps the file after it was overwritten in place it
would be in the middle of other code, so probes have to go at the first write, not when such a process is found.
"""

from __future__ import annotations

import ctypes
import logging
import os
import struct
from collections.abc import Collection, Iterator

from exporter.background.patience import Patience

_MODIFY, _ONESHOT = 0x2, 0x80000000
_EVENT = struct.Struct("=iIII")
_BYTES = 1 << 16
SECONDS = 0.5
"""Time for the file's file system to answer whether it may be read; a file of one that does not is not followed."""
UNFOLLOWED = -1
"""The watch of a file that is not followed."""

log = logging.getLogger(__name__)


class Overwrites:
    """Follows files until each is written to once. A kernel that refuses that is a warning, and no file is followed."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._patience = Patience("overwrites")
        self.descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        """Readable when a followed file was written to; negative where none can be followed."""
        if self.descriptor < 0:
            reason = os.strerror(ctypes.get_errno())
            log.warning("libraries that are overwritten in place while they are probed are noticed late: %s", reason)

    def follow(self, path: str, device: int) -> int:
        """Return a number for a file of a device that `drain` gives when it is written to, or UNFOLLOWED.

        The same file has the same number.
        """
        if self.descriptor < 0:
            return UNFOLLOWED
        try:
            return self._patience.call(device, lambda: self._add(path), SECONDS)
        except OSError as error:
            log.debug("a library is not followed: %s", error, extra={"library": path})
            return UNFOLLOWED

    def forget(self, watch: int) -> None:
        """Follows a file no longer; harmless where it was written to, or never followed."""
        if watch != UNFOLLOWED:
            self._libc.inotify_rm_watch(self.descriptor, watch)

    def drain(self) -> Collection[int]:
        """Return the numbers of the files that were written to. They are followed no longer."""
        if self.descriptor < 0:
            return ()
        try:
            return {watch for watch, mask in _events(os.read(self.descriptor, _BYTES)) if mask & _MODIFY}
        except BlockingIOError:
            return ()

    def close(self) -> None:
        self._patience.close()
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def _add(self, path: str) -> int:
        watch = self._libc.inotify_add_watch(self.descriptor, os.fsencode(path), ctypes.c_uint32(_MODIFY | _ONESHOT))
        if watch < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(watch)


def _events(content: bytes) -> Iterator[tuple[int, int]]:
    """The watch and the mask of each struct inotify_event."""
    at = 0
    while at + _EVENT.size <= len(content):
        watch, mask, _, name = _EVENT.unpack_from(content, at)
        yield watch, mask
        at += _EVENT.size + name
