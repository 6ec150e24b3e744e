"""The C types of a compiled BPF object, mirrored as ctypes classes: C declares once and Python reads it.

The format is Documentation/bpf/btf.rst of the kernel.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from exporter.bpf.stale import Named, stale

CType = type[Any]


class BtfKind(IntEnum):
    VOID = 0
    INT = 1
    PTR = 2
    ARRAY = 3
    STRUCT = 4
    UNION = 5
    ENUM = 6
    FWD = 7
    TYPEDEF = 8
    VOLATILE = 9
    CONST = 10
    RESTRICT = 11
    FUNC = 12
    PROTO = 13
    VAR = 14
    DATASEC = 15
    FLOAT = 16
    DECL_TAG = 17
    TYPE_TAG = 18
    ENUM64 = 19


_WIDTH = {  # bytes after the common part; for the second group, per item
    BtfKind.INT: 4,
    BtfKind.ARRAY: 12,
    BtfKind.VAR: 4,
    BtfKind.DECL_TAG: 4,
    BtfKind.STRUCT: 12,
    BtfKind.UNION: 12,
    BtfKind.ENUM: 8,
    BtfKind.PROTO: 8,
    BtfKind.DATASEC: 12,
    BtfKind.ENUM64: 12,
}
_REPEATED = {BtfKind.STRUCT, BtfKind.UNION, BtfKind.ENUM, BtfKind.PROTO, BtfKind.DATASEC, BtfKind.ENUM64}
_TRANSPARENT = {BtfKind.TYPEDEF, BtfKind.VOLATILE, BtfKind.CONST, BtfKind.RESTRICT, BtfKind.TYPE_TAG}
_SIGNED, _BOOL = 1, 4  # encodings of an INT
_INTEGERS: dict[tuple[int, bool], CType] = {
    (1, False): ctypes.c_uint8,
    (2, False): ctypes.c_uint16,
    (4, False): ctypes.c_uint32,
    (8, False): ctypes.c_uint64,
    (1, True): ctypes.c_int8,
    (2, True): ctypes.c_int16,
    (4, True): ctypes.c_int32,
    (8, True): ctypes.c_int64,
}


@dataclass(frozen=True, slots=True)
class Type:
    name: str
    kind: BtfKind
    flag: bool
    size: int  # or the id of the type referred to
    tail: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a data section: its type id, and where it lies."""

    type: int
    offset: int
    size: int


class Btf:
    """The types of the object of this name, numbered from 1 as BTF numbers them. ValueError on what it cannot read."""

    def __init__(self, section: bytes, object_name: str = "the object") -> None:
        self._object = object_name
        self._types: list[Type] = [Type("void", BtfKind.VOID, False, 0, ())]
        self._classes: dict[int, CType] = {}
        try:
            self._read(section)
        except (struct.error, IndexError) as error:
            raise ValueError(f"malformed BTF: {error}") from error

    def _read(self, section: bytes) -> None:
        _, _, _, header, types_at, types_len, names_at, names_len = struct.unpack_from("=HBBIIIII", section)
        self._names = section[header + names_at :][:names_len]
        at, end = header + types_at, header + types_at + types_len
        while at < end:
            name, info, size = struct.unpack_from("=III", section, at)
            kind, count = BtfKind(info >> 24 & 0x1F), info & 0xFFFF
            width = _WIDTH.get(kind, 0)
            length = width * (count if kind in _REPEATED else 1)
            tail = section[at + 12 : at + 12 + length]
            items = tuple(struct.iter_unpack(f"={width // 4}I", tail)) if width else ()
            self._types.append(Type(self._text(name), kind, bool(info >> 31), size, items))
            at += 12 + length

    def _text(self, offset: int) -> str:
        return self._names[offset : self._names.index(0, offset)].decode()

    def _at(self, type_id: int) -> Type:
        if type_id >= len(self._types):
            raise ValueError(f"malformed BTF: there is no type {type_id}")
        return self._types[type_id]

    def variables(self, section: str) -> dict[str, Variable]:
        """The variables of a data section such as .maps, by name; empty if there is no such section."""
        for found in self._types:
            if found.kind is BtfKind.DATASEC and found.name == section:
                variables = [(self._at(type_id), offset, size) for type_id, offset, size in found.tail]
                return {variable.name: Variable(variable.size, offset, size) for variable, offset, size in variables}
        return {}

    def members(self, type_id: int) -> dict[str, int]:
        """The type ids of a struct's members by name."""
        return {self._text(name): member for name, member, _ in self._at(type_id).tail}

    def pointee(self, type_id: int) -> int:
        """The id of the type a pointer points at: how __type() gives a type in a map's declaration."""
        return self._at(type_id).size

    def struct(self, name: str) -> CType:
        """The ctypes class of a struct by its C name; StaleObject if the object has none."""
        for type_id, found in enumerate(self._types):
            if found.kind is BtfKind.STRUCT and found.name == name:
                return self.ctype(type_id)
        raise stale(self._object, f"struct {name}")

    def enum(self, name: str) -> dict[str, int]:
        """The constants of an enum by their C names; StaleObject if the object uses no such enum, or not the constant.

        Negative ones come out as unsigned numbers: clang records the sign only since version 15.
        """
        for found in self._types:
            if found.kind is BtfKind.ENUM and found.name == name:
                constants = Named[int](self._object, "constant")
                constants.update((self._text(text), value) for text, value in found.tail)
                return constants
        raise stale(self._object, f"enum {name}")

    def ctype(self, type_id: int) -> CType:
        """The ctypes class of a type by its id. Pointers become 64-bit numbers; TypeError for what has no mirror."""
        if type_id not in self._classes:
            try:
                self._classes[type_id] = self._mirror(self._at(type_id))
            except (LookupError, OverflowError, RecursionError) as error:
                raise ValueError(f"malformed BTF: type {type_id} contradicts itself") from error
        return self._classes[type_id]

    def _mirror(self, found: Type) -> CType:
        if found.kind in _TRANSPARENT:
            return self.ctype(found.size)
        if found.kind is BtfKind.PTR:
            return ctypes.c_uint64
        if found.kind is BtfKind.ENUM:
            return _INTEGERS[found.size, False]
        if found.kind is BtfKind.INT:
            encoding = found.tail[0][0] >> 24 & 0xF
            if found.name == "char":
                return ctypes.c_char
            return ctypes.c_bool if encoding & _BOOL else _INTEGERS[found.size, bool(encoding & _SIGNED)]
        if found.kind is BtfKind.ARRAY:
            element, _, count = found.tail[0]
            array: CType = self.ctype(element) * count
            return array
        if found.kind in (BtfKind.STRUCT, BtfKind.UNION):
            return self._record(found)
        raise TypeError(f"BTF kind {found.kind.name} ({found.name or 'anonymous'}) has no ctypes mirror")

    def _record(self, found: Type) -> CType:
        base: Any = ctypes.Structure if found.kind is BtfKind.STRUCT else ctypes.Union
        if found.flag:
            raise TypeError(f"struct {found.name} has bit-fields: use whole fields between kernel and exporter")
        members = [
            (self._text(name) or f"_{i}", member, bits // 8) for i, (name, member, bits) in enumerate(found.tail)
        ]
        body = {
            "_anonymous_": [f"_{i}" for i, (name, _, _) in enumerate(found.tail) if not self._text(name)],
            "_fields_": [(name, self.ctype(member)) for name, member, _ in members],
            "__slots__": (),  # a field that is not there is an error
        }
        made: CType = type(base)(found.name or "anonymous", (base,), body)
        layout = [getattr(made, name).offset for name, _, _ in members]
        if ctypes.sizeof(made) != found.size or layout != [offset for _, _, offset in members]:
            raise TypeError(f"struct {found.name} is laid out otherwise than C does by default: do not pack it")
        return made
