"""A writer of Protocol Buffers, without compiler or runtime (docs/decisions/0014-profile-formats.md).

https://protobuf.dev/programming-guides/encoding/ describes the format. Fields that have the default value are left out.
"""

from __future__ import annotations

from collections.abc import Iterable

_VARINT, _BYTES = 0, 2
_MASK = (1 << 64) - 1


class Message:
    """The bytes of one message, field by field in the order of the calls."""

    def __init__(self) -> None:
        self._out = bytearray()

    def number(self, field: int, value: int) -> Message:
        """Add an integer of 64 bits: int64, uint64 or bool."""
        if value:
            self._varint(field << 3 | _VARINT)
            self._varint(value)
        return self

    def packed(self, field: int, values: Iterable[int]) -> Message:
        """Add a repeated integer."""
        part = Message()
        for value in values:
            part._varint(value)
        return self.data(field, part._out) if part._out else self

    def text(self, field: int, text: str) -> Message:
        """Add a string, also an empty one."""
        return self.data(field, text.encode("utf-8", "replace"))

    def message(self, field: int, part: Message) -> Message:
        return self.data(field, part._out)

    def data(self, field: int, part: bytes | bytearray) -> Message:
        """Add bytes, also none."""
        self._varint(field << 3 | _BYTES)
        self._varint(len(part))
        self._out += part
        return self

    def __bytes__(self) -> bytes:
        return bytes(self._out)

    def _varint(self, value: int) -> None:
        value &= _MASK  # a negative number is its two's complement
        while value > 0x7F:
            self._out.append(value & 0x7F | 0x80)
            value >>= 7
        self._out.append(value)
