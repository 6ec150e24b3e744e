"""Memory of an observed process, by a descriptor of /proc/PID/mem that someone with the right to has opened."""

from __future__ import annotations

import os
import struct

_WORD = struct.Struct("=Q")
_HIGHEST = (1 << 63) - 1


class Unreadable(OSError):
    """An address that is not mapped, or the process has ended."""


class Memory:
    """Reads; what an address holds may change, so all of it is to be checked."""

    def __init__(self, descriptor: int) -> None:
        """Take over the descriptor."""
        self._descriptor = descriptor

    def read(self, address: int, size: int) -> bytes:
        """Return so many bytes. Raises Unreadable."""
        if not 0 < address <= _HIGHEST:
            raise Unreadable("no address")
        try:
            found = os.pread(self._descriptor, size, address)
        except (OSError, OverflowError) as error:
            raise Unreadable(str(error)) from error
        if len(found) != size:
            raise Unreadable("not all of it is mapped")
        return found

    def word(self, address: int) -> int:
        """Return the 64-bit number at an address. Raises Unreadable."""
        return int(_WORD.unpack(self.read(address, 8))[0])

    def close(self) -> None:
        os.close(self._descriptor)
