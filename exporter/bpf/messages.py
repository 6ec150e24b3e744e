"""Values as JSON, and back by the type that is expected: what comes from a child can become nothing else.

Plain values, dataclasses, mappings with string keys, tuples, lists and sets; what holds the others is by annotation.
"""

from __future__ import annotations

import types as builtin_types
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
_LONGEST_TEXT = 1 << 16


def encode(value: Any) -> Any:
    """Return what json can write; TypeError for what has no place in a message."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(found) for key, found in value.items()}
    if isinstance(value, tuple | list | AbstractSet):
        return [encode(found) for found in value]
    raise TypeError(f"a message cannot hold a {type(value).__name__}")


def decode(wanted: Any, value: Any) -> Any:
    """The value as an instance of a type, all that it holds included. ValueError where it is none."""
    if wanted is Any:
        return value
    origin, parts = get_origin(wanted) or wanted, get_args(wanted)
    if origin in (Union, builtin_types.UnionType):
        return _one_of(parts, value)
    if origin is Literal and value in parts:
        return value
    if is_dataclass(origin) and isinstance(value, dict):
        return _instance(wanted, value)
    if origin is tuple and isinstance(value, list):
        return _tuple(parts, value)
    if origin is frozenset and isinstance(value, list):
        return frozenset(decode(parts[0], found) for found in value)
    if origin in (list, Collection) and isinstance(value, list):
        return [decode(parts[0], found) for found in value]
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {decode(parts[0], key): decode(parts[1], found) for key, found in value.items()}
    if _is_plain(origin, value):
        return value
    raise ValueError(f"a message holds a {type(value).__name__} in place of {wanted}")


@cache
def declared(holder: Any) -> Mapping[str, Any]:
    """The types that a function or a dataclass is declared with."""
    return get_type_hints(holder)


def _is_plain(wanted: Any, value: Any) -> bool:
    if wanted is None or wanted is type(None):
        return value is None
    if wanted is int:
        return type(value) is int and _LEAST <= value <= _MOST
    if wanted is str:
        return type(value) is str and len(value) <= _LONGEST_TEXT
    return wanted in (bool, float) and type(value) is wanted


def _one_of(choices: tuple[Any, ...], value: Any) -> Any:
    for choice in choices:
        try:
            return decode(choice, value)
        except ValueError:
            continue
    raise ValueError(f"a message holds a {type(value).__name__} that is none of {choices}")


def _tuple(parts: tuple[Any, ...], values: list[Any]) -> tuple[Any, ...]:
    if len(parts) == 2 and parts[1] is ...:
        return tuple(decode(parts[0], found) for found in values)
    if len(parts) != len(values):
        raise ValueError("a message holds a tuple of another length")
    return tuple(decode(part, found) for part, found in zip(parts, values, strict=True))


def _instance(wanted: Any, value: dict[str, Any]) -> Any:
    types = declared(wanted)
    if value.keys() != {field.name for field in fields(wanted)}:
        raise ValueError(f"a message holds no {wanted.__name__}: {', '.join(value)[:100]}")
    return wanted(**{name: decode(types[name], found) for name, found in value.items()})
