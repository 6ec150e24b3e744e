"""Calls the functions of tests/bpf/hip_calls.py in a process that is observed, 23 times each, and some that fail.

The thread's device is 0, but streams are of device 1.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from ctypes import Structure, byref, c_int, c_size_t, c_uint32, c_uint64
from typing import Any

from tests.bpf.cuda_calls import FAILED, FAILING, SIZES, TOO_MUCH
from tests.bpf.cuda_structures import Extent
from tests.bpf.hip_calls import FUNCTIONS


class Dim3(Structure):
    """dim3."""

    _fields_ = (("x", c_uint32), ("y", c_uint32), ("z", c_uint32))


class Config(Structure):
    """hipLaunchConfig_t, and HIP_LAUNCH_CONFIG."""

    _fields_ = (("grid", Dim3), ("block", Dim3), ("shared", c_size_t), ("stream", c_uint64), ("more", c_uint64 * 2))


class Copy2D(Structure):
    """hip_Memcpy2D."""

    _fields_ = (("ends", c_size_t * 14), ("width", c_size_t), ("height", c_size_t))


class End3D(Structure):
    """One end of a hipMemcpy3DParms: an array and a position, or a hipPitchedPtr."""

    _fields_ = (("array", c_uint64), ("position", c_size_t * 3), ("pointer", c_uint64 * 4))


class Copy3D(Structure):
    """hipMemcpy3DParms."""

    _fields_ = (("source", End3D), ("target", End3D), ("extent", Extent), ("kind", c_int))


library = ctypes.CDLL(None)
ELSEWHERE = 0x51
"""Of parameters that are not read."""
USUAL = {"_": ELSEWHERE, "dim3": Dim3(3, 5, 7), "width": 500, "bytes": 9}
held: dict[str, Any] = {}
"""Addresses and handles that later calls need."""


def load(path: str) -> None:
    """Make a stream on device 1, and memory on both."""
    global library
    library = ctypes.CDLL(path)
    call("hipMalloc", bytes=1)
    call("hipSetDevice", device=1)
    call("hipMalloc", bytes=1)
    stream = call("hipStreamCreate")
    held.update(stream=stream, config=byref(Config(Dim3(3, 5, 7), Dim3(3, 5, 7), 11, stream)))
    call("hipSetDevice", device=0)


def call(name: str, returned: int = 0, **values: Any) -> int:
    """Call a function that returns this code; return what it gave, else 0."""
    function, made, made_3d = FUNCTIONS[name], c_uint64(), (c_uint64 * 4)()
    given = {**USUAL, **held, "made": byref(made), "pitch": byref(c_uint64()), "made_3d": made_3d, **values}
    c_int.in_dll(library, "result").value = returned
    assert returned == getattr(library, name)(*(_argument(given[it]) for it in function.parameters))
    return made.value or int(made_3d[0])


def _argument(value: Any) -> Any:
    return c_uint64(value) if isinstance(value, int) else value


def fail(name: str, **values: Any) -> None:
    for _ in range(FAILING):
        call(name, 2, **values)


def counted(name: str) -> None:
    for _ in SIZES:
        call(name, count=3)
    fail(name, count=3)


def allocate(name: str) -> list[int]:
    made = [call(name, bytes=size) for size in SIZES]
    fail(name, bytes=TOO_MUCH)
    return made


def register(name: str) -> list[int]:
    first = held["registered"] = held.get("registered", 0x7D00_0000_0001) + (1 << 24)
    places = [first + (number << 16) for number, _ in enumerate(SIZES)]
    for place, size in zip(places, SIZES, strict=True):
        call(name, address=place, bytes=size)
    fail(name, address=places[-1] + (1 << 16), bytes=TOO_MUCH)
    return places


def rows(name: str) -> None:
    for number, _ in enumerate(SIZES):
        call(name, height=7 + number, extent=Extent(500, 7 + number, 3))
    fail(name, height=TOO_MUCH, extent=Extent(500, TOO_MUCH, 3))


def free(name: str, allocating: str) -> None:
    """Free what a function allocates or registers, and five things that were not seen allocated."""
    places = register(allocating) if "Register" in allocating else allocate(allocating)
    fail(name, address=places[0])
    for place in places:
        call(name, address=place)
    for place in range(5):
        call(name, address=0x1234_0000_0000 + place)


def kinds() -> Iterable[tuple[int, int]]:
    """Return a hipMemcpyKind and a size for each copy: 7 to the device, 11 from it and 5 on it."""
    return zip([1] * 7 + [2] * 11 + [3] * 5, SIZES, strict=True)


def copy(name: str) -> None:
    for kind, size in kinds():
        block = Copy3D(extent=Extent(size, 7, 3), kind=kind)
        flat = Copy2D((c_size_t * 14)(*range(100, 114)), size, 7)
        call(name, bytes=size, height=7, kind=kind, copy_2d=byref(flat), copy_3d=byref(block))
    fail(name, bytes=TOO_MUCH, height=7, kind=1, copy_2d=byref(flat), copy_3d=byref(block))


def set_device(name: str) -> None:
    for _ in SIZES:
        for device in (1, 0):
            call(name, device=device)
            call("hipModuleLaunchKernel", stream=0)
    fail(name, device=1)
    call("hipModuleLaunchKernel", stream=0)


def change_context(name: str) -> None:
    for _ in SIZES:
        call("hipSetDevice", device=0)
        call(name)
        call("hipModuleLaunchKernel", stream=0)
    fail(name)
    call("hipSetDevice", device=0)


def _streams(name: str) -> list[int]:
    call("hipSetDevice", device=1)
    made = [call(name) for _ in SIZES]
    fail(name)
    call("hipSetDevice", device=0)
    return made


def create_streams(name: str) -> None:
    for stream in _streams(name):
        call("hipModuleLaunchKernel", stream=stream)


def end_streams(name: str) -> None:
    for stream in _streams("hipStreamCreate"):
        call(name, stream=stream)
        call("hipModuleLaunchKernel", stream=stream)
    fail(name, stream=1 << 20)


def capture(name: str, end: str) -> None:
    """Allocate in captures, and where none has begun."""
    for _ in SIZES:
        call(name)
        call("hipMallocAsync", bytes=TOO_MUCH)
        call(end)
    for _ in range(FAILING):
        call(name, 2)
        call("hipMallocAsync", bytes=FAILED)


def end_capture(name: str, begin: str) -> None:
    """Allocate after captures, and in one that has not ended."""
    for size in SIZES:
        call(begin)
        call(name)
        call("hipMallocAsync", bytes=size)
    call(begin)
    fail(name)
    call("hipMallocAsync", bytes=TOO_MUCH)
    call(name)


def reset(name: str) -> None:
    """Reset device 1."""
    call("hipSetDevice", device=1)
    fail(name)
    for _ in SIZES:
        call(name)
    call("hipSetDevice", device=0)


def own_counts() -> dict[str, int]:
    """Return how often the library itself counted that each function was called."""
    calls = (c_uint64 * 256).in_dll(library, "calls")
    return {name: count for name, count in zip(FUNCTIONS, calls, strict=False) if count}
