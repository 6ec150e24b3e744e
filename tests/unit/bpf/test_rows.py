"""Fields of rows of BPF maps as tuples."""

from __future__ import annotations

import ctypes

import pytest

from exporter.bpf.rows import unpacker


class Pair(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint32), ("high", ctypes.c_uint32)]


class Row(ctypes.Structure):
    """With the padding of C, and with fields of all widths."""

    _fields_ = [
        ("kind", ctypes.c_uint8),
        ("device", ctypes.c_uint16),
        ("change", ctypes.c_int32),
        ("bytes", ctypes.c_uint64),
        ("pair", Pair),
        ("last", ctypes.c_int8),
    ]


def test_fields_are_those_of_ctypes() -> None:
    rows = [Row(i, 2 * i, -i, (1 << 64) - 1 - i, Pair(i, 7), -1) for i in range(23)]
    raw = b"".join(map(bytes, rows))
    names = ("kind", "device", "change", "bytes", "last")
    for wanted in (names, names[1:2], names[3:], ()):
        found = list(unpacker(Row, wanted).iter_unpack(raw))
        assert [tuple(getattr(it, name) for name in wanted) for it in rows] == found


@pytest.mark.parametrize(
    ("ctype", "names"),
    [
        (Row, ("pair",)),
        (Row, ("none",)),
        (Row, ("bytes", "kind")),
        (Row, ("kind", "kind")),
        (ctypes.c_uint32, ("low",)),
    ],
)
def test_what_is_no_integer_of_the_structure_in_its_order_is_refused(ctype: type, names: tuple[str, ...]) -> None:
    with pytest.raises(TypeError, match=names[-1]):
        unpacker(ctype, names)
