"""A reader of Protocol Buffers' wire format, field by field, for a few messages without compiler or runtime.

https://protobuf.dev/programming-guides/encoding/ describes the format. The reader copies no fields and does not read
beyond the end.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
MOST_TEXT = 512


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the fields of a message in order: the number, and an int for a varint, else the field's bytes.

    Raises ValueError when the message is malformed or cut off.
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise ValueError(f"field number {number}")
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif not length:
            raise ValueError(f"wire type {kind}")
        if length > len(message) - at:
            raise ValueError("a field is cut off")
        yield number, message[at : at + length]
        at += length


def messages(message: memoryview, number: int) -> Iterator[memoryview]:
    """Yield every field of that number as bytes, several for a repeated message. Raises ValueError."""
    for found, value in fields(message):
        if found == number:
            if isinstance(value, int):
                raise ValueError(f"field {number} is a number")
            yield value


def texts(message: memoryview, number: int) -> Iterator[str]:
    """Yield every field of that number as text. Raises ValueError for text too long, not UTF-8 or unprintable."""
    for value in messages(message, number):
        text = bytes(value[: MOST_TEXT + 1]).decode("utf-8")
        if len(value) > MOST_TEXT or not text.isprintable():
            raise ValueError(f"field {number} is no name: {text[:80]!r}")
        yield text


def text(message: memoryview, number: int) -> str:
    """Return the last field of that number as text, or an empty string when there is none."""
    return "".join([*texts(message, number)][-1:])


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_LONGEST_VARINT):
        if at + place >= len(message):
            raise ValueError("a number is cut off")
        byte = message[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("a number is too long")
