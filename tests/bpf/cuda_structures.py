"""Structures of cuda.h and driver_types.h as far as the exporter reads them, for processes that call CUDA."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import Structure, byref, c_int, c_size_t, c_uint32, c_uint64
from typing import Any

HOST, DEVICE, ARRAY, UNIFIED = 1, 2, 3, 4  # CUmemorytype
ON_DEVICE, ON_HOST = 1, 2  # CUmemLocationType


class Location(Structure):
    """CUmemLocation."""

    _fields_ = (("type", c_uint32), ("id", c_int))


class Properties(Structure):
    """The beginning of CUmemAllocationProp and of CUmemPoolProps."""

    _fields_ = (("allocation", c_uint32), ("handles", c_uint32), ("location", Location), ("more", c_uint64 * 10))


class Extent(Structure):
    """struct cudaExtent."""

    _fields_ = (("width", c_size_t), ("height", c_size_t), ("depth", c_size_t))


def _side(levels: Iterable[str], contexts: Iterable[str], last: Iterable[str]) -> tuple[tuple[str, Any], ...]:
    sizes = ((it, c_size_t) for it in ("x", "y", *levels))
    addresses = ((it, c_uint64) for it in ("host", "device", "array", *contexts))
    return (*sizes, ("type", c_int), *addresses, *((it, c_size_t) for it in ("pitch", *last)))


class Side2D(Structure):
    _fields_ = _side((), (), ())


class Copy2D(Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (("source", Side2D), ("target", Side2D), ("width", c_size_t), ("height", c_size_t))


class Side3D(Structure):
    _fields_ = _side(("z", "level"), ("context",), ("height",))


class Copy3D(Structure):
    """CUDA_MEMCPY3D, and CUDA_MEMCPY3D_PEER."""

    _fields_ = (
        *(("source", Side3D), ("target", Side3D)),
        *(("width", c_size_t), ("height", c_size_t), ("depth", c_size_t)),
    )


def properties(location: Location) -> Any:
    """Return properties of memory that lies there."""
    return byref(Properties(allocation=1, location=location))


def described(kind: Any, side: Any, way: str, target: int, source: int, width: int) -> Any:
    """Return a description in which all members that do not count are something else than 0."""
    others = dict.fromkeys((name for name, _ in side._fields_), 9)
    sides = {
        "h2d": (side(**others | {"type": HOST, "host": source}), side(**others | {"type": DEVICE, "device": target})),
        "d2h": (side(**others | {"type": ARRAY}), side(**others | {"type": HOST, "host": target})),
        "d2d": (side(**others | {"type": UNIFIED, "device": source}), side(**others | {"type": ARRAY})),
    }[way]
    depth = {"depth": 3} if kind is Copy3D else {}
    return byref(kind(source=sides[0], target=sides[1], width=width, height=7, **depth))
