"""Rows of large BPF maps as tuples of the fields that are wanted: ctypes objects take several times as long."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

from exporter.bpf.btf import CType

_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


def unpacker(ctype: CType, names: Sequence[str]) -> struct.Struct:
    """Return what unpacks these fields of a C structure, in the order in which it has them. Raises TypeError for others
    than integers.
    """
    form, at = ["="], 0
    kinds = {field[0]: field[1] for field in ctype._fields_} if issubclass(ctype, ctypes.Structure) else {}
    for name in names:
        kind, start = kinds.get(name), int(getattr(ctype, name).offset) if name in kinds else -1
        if kind is None or not issubclass(kind, ctypes._SimpleCData) or start < at:
            raise TypeError(f"{ctype.__name__} has no integer {name} there")
        code = _CODES[ctypes.sizeof(kind)]
        form.append(f"{start - at}x{code if kind(-1).value > 0 else code.lower()}")
        at = start + ctypes.sizeof(kind)
    return struct.Struct("".join((*form, f"{ctypes.sizeof(ctype) - at}x")))


def field_format(ctype: CType, name: str, size: int = 0) -> str:
    """The format of one unsigned field for `struct`, or of an integer, with the other bytes of `size` skipped."""
    at, width = (getattr(ctype, name).offset, getattr(ctype, name).size) if name else (0, ctypes.sizeof(ctype))
    return f"{at}x{_CODES[width]}{(size or ctypes.sizeof(ctype)) - at - width}x"


def tgid_at(ctype: CType, at: int = 0) -> int | None:
    """Return where a key has the process's id: its field `tgid`, wherever that is nested, or all of a 32-bit key."""
    if not issubclass(ctype, ctypes.Structure):
        return at if not at and ctypes.sizeof(ctype) == 4 else None
    if hasattr(ctype, "tgid"):
        return at + int(ctype.tgid.offset)
    for field in ctype._fields_:
        name, inner = field[0], field[1]
        if issubclass(inner, ctypes.Structure):
            found = tgid_at(inner, at + getattr(ctype, name).offset)
            if found is not None:
                return found
    return None
