"""Calls the functions of tests/bpf/cuda_calls.py in a process that is observed, 23 times each, and some that fail."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_uint64
from typing import Any

from tests.bpf.cuda_calls import FAILED, FAILING, FUNCTIONS, SIZES, TOO_MUCH, code, layer
from tests.bpf.cuda_structures import ON_DEVICE, Copy2D, Copy3D, Extent, Location, Side2D, Side3D, described, properties

HERE = properties(Location(ON_DEVICE, 0))
GRANULE = 2 << 20
"""Of mappings."""
LIBRARIES: dict[str, ctypes.CDLL] = {}
USUAL = {"_": 0, "stream": 0x6000, "pool": 0x7000, "context": 0x9000, "array": 0x8000, "offset": 3, "width": 500}
"""Values of parameters for which a call has no other."""
held: dict[str, int] = {}
"""Addresses and handles that later calls need."""


def load(driver: str, runtime: str) -> None:
    LIBRARIES.update(driver=ctypes.CDLL(driver), runtime=ctypes.CDLL(runtime))
    LIBRARIES["driver"].start(c_uint64(0x7F00_0000_0000))
    LIBRARIES["runtime"].start(c_uint64(0x7E00_0000_0000))


def call(name: str, returned: int = 0, **values: Any) -> int:
    """Call a function that returns this code; return what it gave, else 0."""
    function, made, made_3d = FUNCTIONS[name], c_uint64(), (c_uint64 * 4)()
    given = {**USUAL, "made": byref(made), "pitch": byref(c_uint64()), "made_3d": made_3d, **values}
    library = LIBRARIES[layer(name)]
    c_int.in_dll(library, "result").value = returned
    assert returned == getattr(library, name)(*(_argument(given[it]) for it in function.parameters))
    return made.value or made_3d[0]


def _argument(value: Any) -> Any:
    return c_uint64(value) if isinstance(value, int) else value


def fail(name: str, **values: Any) -> None:
    for _ in range(FAILING):
        call(name, code(name), **values)


def counted(name: str) -> None:
    for _ in SIZES:
        call(name)
    fail(name)


def allocate(name: str, **values: Any) -> list[int]:
    made = [call(name, bytes=size, properties=HERE, **values) for size in SIZES]
    fail(name, bytes=TOO_MUCH, properties=HERE, **values)
    return made


def register(name: str) -> list[int]:
    """Register memory beginning at odd addresses."""
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


def release(name: str) -> None:
    handles = allocate("cuMemCreate")
    fail(name, handle=handles[0])
    for it in handles:
        call(name, handle=it)


def retain(name: str) -> None:
    """Retain each of several handles once more, and release it once."""
    handles = allocate("cuMemCreate")
    for it in handles:
        assert it == call(name, address=it)
    fail(name, address=handles[0])
    for it in handles:
        call("cuMemRelease", handle=it)
    held["handle"], held["step"] = handles[0], handles[1] - handles[0]


def release_rest() -> None:
    for number, _ in enumerate(SIZES):
        call("cuMemRelease", handle=held["handle"] + number * held["step"])


PLACE = 0x6F00_0000_0000


def map_handles(name: str) -> None:
    """Map handles and release them; those that are mapped without success are free then."""
    for number, (size, it) in enumerate(zip(SIZES, allocate("cuMemCreate"), strict=True)):
        call(name, address=PLACE + number * GRANULE, bytes=size, offset=0, handle=it)
        call("cuMemRelease", handle=it)
    for _ in range(FAILING):
        it = call("cuMemCreate", bytes=FAILED, properties=HERE)
        call(name, code(name), address=PLACE - GRANULE, bytes=FAILED, offset=0, handle=it)
        call("cuMemRelease", handle=it)


def unmap_all(name: str) -> None:
    fail(name, address=PLACE, bytes=SIZES[0])
    for number, size in enumerate(SIZES):
        call(name, address=PLACE + number * GRANULE, bytes=size)


def use_one_device() -> None:
    """Make a context, and allocate memory of the two kinds that copies are between."""
    call("cuCtxCreate_v2", device=0)
    held["on_device"] = call("cuMemAlloc_v2", bytes=60_000)
    held["pinned"] = call("cuMemHostAlloc", bytes=60_000)


def copy(name: str) -> None:
    device, pinned = held["on_device"], held["pinned"] + 99
    ends = {"target": device, "source": device, "host_target": pinned, "host_source": pinned}
    for size in SIZES:
        call(name, bytes=size, **ends)
    fail(name, bytes=TOO_MUCH, **ends)


def copy_plain(*before: str) -> None:
    """Call functions, and copy memory of the host that was neither allocated nor registered."""
    for name in before:
        call(name)
    for size in SIZES:
        call("cuMemcpyHtoD_v2", bytes=size, target=held["on_device"], host_source=0x1111_0000_0000)


def ways() -> list[tuple[str, int]]:
    """Return the direction and the size of each of 23 copies: 7 to the device, 11 from it, 5 on it."""
    return list(zip(["h2d"] * 7 + ["d2h"] * 11 + ["d2d"] * 5, SIZES, strict=True))


def _ends(way: str) -> tuple[int, int]:
    """Return the addresses of target and source."""
    device, pinned = held["on_device"], held["pinned"] + 99
    return pinned if way == "d2h" else device, pinned if way == "h2d" else device


def copy_by_address(name: str) -> None:
    for way, size in ways():
        target, source = _ends(way)
        call(name, bytes=size, target=target, source=source)
    fail(name, bytes=TOO_MUCH, target=held["on_device"], source=held["on_device"])


def copy_by_description(name: str) -> None:
    for way, size in ways():
        flat, deep = (described(*kind, way, *_ends(way), size) for kind in ((Copy2D, Side2D), (Copy3D, Side3D)))
        call(name, copy_2d=flat, copy_3d=deep, copy_3d_peer=deep)
    fail(name, copy_2d=flat, copy_3d=deep, copy_3d_peer=deep)


def copy_batches(name: str) -> None:
    """Copy in batches of three, one in each direction."""
    pack = c_uint64 * 3
    ends = [_ends(way) for way in ("h2d", "d2h", "d2d")]
    given = {"targets": pack(*(to for to, _ in ends)), "sources": pack(*(at for _, at in ends)), "count": 3}
    for size in SIZES:
        call(name, sizes=pack(size, size + FAILED, size + 2 * FAILED), **given)
    fail(name, sizes=pack(1, 2, 3), **given)


def copy_unread(name: str) -> None:
    for _ in SIZES:
        call(name, count=3)
    fail(name, count=3)


def capture(name: str, end: str, allocating: str) -> None:
    """Allocate in captures, and where none has begun."""
    for _ in SIZES:
        call(name)
        call(allocating, bytes=TOO_MUCH)
        call(end)
    for _ in range(FAILING):
        call(name, code(name))
        call(allocating, bytes=FAILED)


def end_capture(name: str, begin: str, allocating: str) -> None:
    """Allocate after captures, and in one that has not ended."""
    for size in SIZES:
        call(begin)
        call(name)
        call(allocating, bytes=size)
    call(begin)
    fail(name)
    call(allocating, bytes=TOO_MUCH)
    call(name)


def own_counts(of: str) -> dict[str, int]:
    """Return how often the library itself counted that each function was called."""
    names = [it for it in FUNCTIONS if layer(it) == of]
    calls = (c_uint64 * 256).in_dll(LIBRARIES[of], "calls")
    return {name: count for name, count in zip(names, calls, strict=False) if count}
