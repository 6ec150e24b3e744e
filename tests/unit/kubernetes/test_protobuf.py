"""The wire format of Protocol Buffers, whole, broken and hostile."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.kubernetes.podresources import parse
from exporter.kubernetes.protobuf import MOST_TEXT, fields, messages, text


def view(*parts: bytes) -> memoryview:
    return memoryview(b"".join(parts))


def test_every_kind_of_field() -> None:
    """Numbers are returned as numbers, other fields as bytes; a field of any kind can be skipped."""
    message = view(b"\x08\x96\x01", b"\x11" + bytes(range(8)), b"\x1a\x03abc", b"\x25\1\2\3\4", b"\x32\x00")
    found = [(number, value if isinstance(value, int) else bytes(value)) for number, value in fields(message)]
    assert [(1, 150), (2, bytes(range(8))), (3, b"abc"), (4, b"\1\2\3\4"), (6, b"")] == found


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\x08", "a number is cut off"),
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "a number is too long"),
        (b"\x1a\x05abc", "a field is cut off"),
        (b"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "a field is cut off"),
        (b"\x11\0\0", "a field is cut off"),
        (b"\x0b\x0c", "wire type 3"),
        (b"\x00\x00", "field number 0"),
    ],
)
def test_broken_messages(message: bytes, reason: str) -> None:
    """A message that is cut off, endless or of no known kind is refused, and nothing beyond the end is read."""
    with pytest.raises(ValueError, match=reason):
        list(fields(view(message)))


def test_repeated_and_missing_fields() -> None:
    """Of a field that is there once too often the last counts, as the format has it; a missing one is empty."""
    message = view(b"\x0a\x01a", b"\x12\x01x", b"\x0a\x01b")
    assert ["a", "b"] == [str(it, "ascii") for it in messages(message, 1)]
    assert ["b", "x", ""] == [text(message, number) for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("value", "reason"),
    [(b"\xff", "decode"), (b"a\nb", "no name"), (b"a" * (MOST_TEXT + 1), "no name"), ("\u202e".encode(), "no name")],
)
def test_names_that_are_none(value: bytes, reason: str) -> None:
    """A name is UTF-8, prints and is not long."""
    length = bytes([len(value) & 0x7F | 0x80, len(value) >> 7])
    with pytest.raises(ValueError, match=reason):
        text(view(b"\x0a" + length + value), 1)


def test_a_number_where_a_message_belongs() -> None:
    """Another kind than the field has is refused."""
    with pytest.raises(ValueError, match="field 1 is a number"):
        list(parse(view(b"\x08\x01")))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    """Whatever comes is either understood or refused with ValueError."""
    try:
        list(parse(memoryview(data)))
    except ValueError as error:
        assert str(error)
