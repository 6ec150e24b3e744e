"""Resource attributes in the messages that SDKs publish."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.resolve.process_context import MOST_ATTRIBUTES, attributes
from tests.standins.otel_context import field, process_context, resource

NAMED = {"service.name": "chat", "n": -23, "share": 0.5, "on": True, "off": False}
TEXTS = {"service.name": "chat", "n": "-23", "share": "0.5", "on": "true", "off": "false"}


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (process_context(NAMED), TEXTS),
        (resource(NAMED), TEXTS),
        (process_context({"a": "1"}, threadlocal="x"), {"a": "1"}),
        (process_context({}), {}),
        (b"", {}),
        (process_context(NAMED)[:-1], {}),
        (process_context({"a": b"bytes", "b": "1", " c": "2", "d": "\n", "e": "", "f" * 129: "3"}), {"b": "1"}),
        (process_context({"a": "x" * 300}), {"a": "x" * 255}),
        (field(1, field(1, field(2, field(1, b"value")))), {}),
        (field(1, field(1, field(1, b"k"))), {}),
        (field(1, field(1, field(1, b"\xff") + field(2, field(1, b"v")))), {}),
        (field(1, field(1, field(1, b"k") + field(2, field(1, b"\xff")))), {"k": "\ufffd"}),
    ],
)
def test_attributes(payload: bytes, expected: dict[str, str]) -> None:
    """Text, numbers and booleans are taken as text, broken attributes are left out."""
    assert expected == attributes(payload)


def test_the_number_of_attributes_is_bounded() -> None:
    """The first ones are taken."""
    payload = process_context({f"k{n}": "v" for n in range(MOST_ATTRIBUTES + 1)})
    assert [f"k{n}" for n in range(MOST_ATTRIBUTES)] == list(attributes(payload))


@given(st.binary(max_size=200))
def test_any_payload(payload: bytes) -> None:
    """Whatever is published, the attributes are bounded and printable."""
    for sent in (payload, field(1, payload), field(1, field(1, payload))):
        for key, value in attributes(sent).items():
            assert len(key) <= 128
            assert 0 < len(value) <= 255
            assert value.isprintable()
