"""Lines of the kernel log as records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.kmsg.records import Record, parse


def test_fields() -> None:
    """Priority is facility and level, the time is microseconds, further fields and keys are skipped."""
    expected = Record(level=3, facility=1, sequence=352, time_ns=6_074_560_580_000, text="NVRM: a; b")
    assert expected == parse(b"11,352,6074560580,-,caller=T12;NVRM: a; b")


@pytest.mark.parametrize(("flags", "continued"), [(b"-", False), (b"c", True), (b"+", True), (b"-,caller=T1", False)])
def test_the_rest_of_a_message(flags: bytes, continued: bool) -> None:
    """The kernel marks what it printed as the rest of a message, after another one came between."""
    assert continued is parse(b"6,1,1,%s;x" % flags).continued


def test_escapes() -> None:
    """Escapes of the kernel are undone: line feeds, backslashes, UTF-8; bytes that are no UTF-8 stay visible."""
    assert "one\ntwo \\ \u00e9 \\xff" == parse(rb"6,1,1,-;one\x0atwo \x5c \xc3\xa9 \xff").text


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"no semicolon",
        b";",
        b"6,1;text",
        b"-6,1,1,-;text",
        b"6,1,soon,-;text",
        b"6,+1,1,-;text",
        "6,²,1,-;text".encode(),
        b"6,1,%d,-;text" % 2**63,
        b"6,%s,1,-;text" % (b"9" * 5000),
    ],
)
def test_malformed(line: bytes) -> None:
    """A malformed line raises ValueError and nothing else."""
    with pytest.raises(ValueError):
        parse(line)


@given(st.binary(max_size=300))
def test_any_bytes(line: bytes) -> None:
    """Any bytes give a record or a ValueError."""
    try:
        record = parse(line)
    except ValueError:
        return
    assert 0 <= record.level <= 7 and 0 <= record.time_ns < 2**63


@given(st.text().filter(lambda text: text.isprintable()))
def test_printable_text_survives(text: str) -> None:
    """Text survives escaping and parsing."""
    escaped = "".join(
        char if " " <= char < "\x7f" and char != "\\" else "".join(f"\\x{byte:02x}" for byte in char.encode())
        for char in text
    )
    assert text == parse(f"6,1,1,-;{escaped}".encode()).text
