"""One value out of the copies that each CPU has of it."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import Any

from exporter.bpf.btf import CType

_BITS, _BYTES = 64, 8


class Combiner:
    """Adds up the copies of one C type field by field, and takes the greatest of fields named `last_…`.

    Sums wrap at 64 bits as they do in C: a gauge that one CPU raises and another lowers comes out right.
    A copy is added as one long number, which is three times faster than field by field at 224 CPUs; so that no field
    overflows into the next, the fields at even and at odd places are added apart.
    """

    def __init__(self, ctype: CType, copies: int) -> None:
        self._ctype = ctype
        self._words = -(-ctypes.sizeof(ctype) // _BYTES)
        self._copies = struct.Struct(f"{self._words * _BYTES}s" * copies)
        self._even = sum(((1 << _BITS) - 1) << 2 * _BITS * i for i in range(-(-self._words // 2)))
        self._latest = [word for word, latest in _leaves(ctype, 0, False) if latest]

    def __call__(self, raw: memoryview) -> Any:
        copies = [int.from_bytes(copy, "little") for copy in self._copies.unpack(raw)]
        even = sum([copy & self._even for copy in copies])
        odd = (sum(copies) - even) >> _BITS
        combined = even & self._even | (odd & self._even) << _BITS
        value = bytearray(combined.to_bytes((self._words + 1) * _BYTES, "little"))
        for word in self._latest:
            greatest = max(raw.cast("Q")[word :: self._words])
            struct.pack_into("<Q", value, word * _BYTES, greatest)
        return self._ctype.from_buffer_copy(value)


def _leaves(ctype: CType, at: int, latest: bool) -> Iterator[tuple[int, bool]]:
    """The 64-bit fields of a type: at which word, and whether the greatest copy counts instead of the sum."""
    if issubclass(ctype, ctypes.Structure):
        for field in ctype._fields_:
            name, inner = field[0], field[1]
            yield from _leaves(inner, at + getattr(ctype, name).offset, latest or name.startswith("last_"))
    elif issubclass(ctype, ctypes.Array):
        array: Any = ctype
        for i in range(array._length_):
            yield from _leaves(array._type_, at + i * ctypes.sizeof(array._type_), latest)
    elif ctypes.sizeof(ctype) == _BYTES and issubclass(ctype, ctypes._SimpleCData):
        yield at // _BYTES, latest
    else:
        raise TypeError(f"only 64-bit fields of per-CPU values can be added up, not {ctype.__name__}")
