"""Copies on the soft GPU as it counts them: by what the call has each side as, and by what lies at its address."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.softgpu.process import RUNTIME, Start

INVALID_VALUE, NOT_SUPPORTED = 1, 801
MADE = """
context(); device = allocate(MIB).value; pinned = new(u64, cu.cuMemHostAlloc, size(MIB), 0).value
managed = new(u64, cu.cuMemAllocManaged, size(MIB), 1).value; pool = new(u64, cu.cuMemAllocAsync, size(MIB), None).value
buffer = C.create_string_buffer(1 << 16); plain = C.addressof(buffer)
other = allocate(MIB).value
HOST, DEVICE, ARRAY, UNIFIED = 1, 2, 3, 4
class Flat(C.Structure):
    _fields_ = [("x", size), ("y", size), ("type", C.c_int), ("host", u64), ("device", u64), ("array", u64),
                ("pitch", size)]
class Deep(C.Structure):
    _fields_ = [("x", size), ("y", size), ("z", size), ("level", size), ("type", C.c_int), ("host", u64),
                ("device", u64), ("array", u64), ("context", u64), ("pitch", size), ("height", size)]
class Copy2D(C.Structure):
    _fields_ = [("source", Flat), ("target", Flat), ("width", size), ("height", size)]
class Copy3D(C.Structure):
    _fields_ = [("source", Deep), ("target", Deep), ("width", size), ("height", size), ("depth", size)]
def side(of, type, address):
    return of(type=type, pitch=100, **{"host" if type == HOST else "device": address})
def flat(to, source, call="cuMemcpy2D_v2", stream=()):
    return getattr(cu, call)(C.byref(Copy2D(side(Flat, *source), side(Flat, *to), 11, 7)), *stream)
def deep(to, source, call="cuMemcpy3D_v2", stream=()):
    return getattr(cu, call)(C.byref(Copy3D(side(Deep, *source), side(Deep, *to), 11, 7, 1)), *stream)
"""
WAYS = [
    ("(DEVICE, device), (HOST, pinned)", "h2d pinned"),
    ("(DEVICE, device), (HOST, plain)", "h2d pageable"),
    ("(DEVICE, device), (HOST, managed)", "h2d managed"),
    ("(DEVICE, device), (HOST, other)", "h2d unknown"),
    ("(DEVICE, device), (HOST, pool)", "h2d unknown"),
    ("(HOST, other), (DEVICE, device)", "d2h unknown"),
    ("(HOST, plain), (DEVICE, device)", "d2h pageable"),
    ("(HOST, plain), (HOST, pinned)", "h2h pageable"),
    ("(HOST, pinned), (HOST, managed)", "h2h pinned"),
    ("(HOST, other), (HOST, pinned)", "h2h unknown"),
    ("(HOST, device), (HOST, other)", "h2h unknown"),
    ("(DEVICE, device), (DEVICE, pinned)", "d2d"),
    ("(UNIFIED, device), (UNIFIED, other)", "d2d"),
    ("(UNIFIED, device), (UNIFIED, pool)", "d2d"),
    ("(UNIFIED, device), (UNIFIED, pinned)", "h2d pinned"),
    ("(UNIFIED, plain), (UNIFIED, device)", "d2h pageable"),
    ("(UNIFIED, device), (UNIFIED, managed)", "unknown managed"),
    ("(DEVICE, device), (UNIFIED, other)", "d2d"),
    ("(HOST, other), (UNIFIED, device)", "d2h unknown"),
    ("(HOST, pinned), (UNIFIED, other)", "d2h pinned"),
]


@pytest.mark.parametrize("copies", ["flat", "deep"])
def test_by_description(start: Start, copies: str) -> None:
    """2D and 3D copies count by the memory type of each side, and by the address alone where that is unified."""
    process = start()
    process.run(MADE)
    expected: dict[str, int] = {}
    for sides, way in WAYS:
        assert 0 == process.run(f"out = {copies}({sides})")
        expected[way] = expected.get(way, 0) + 77
        assert expected == process.counts.copied, sides


@pytest.mark.parametrize(
    ("call", "way"),
    [
        ("cuMemcpyHtoD_v2(u64(device), vp(other), size(77))", "h2d unknown"),
        ("cuMemcpyHtoD_v2(u64(device), vp(managed), size(77))", "h2d managed"),
        ("cuMemcpyDtoHAsync_v2_ptsz(vp(pool), u64(device), size(77), None)", "d2h unknown"),
        ("cuMemcpyDtoD_v2(u64(device), u64(pinned), size(77))", "d2d"),
        ("cuMemcpy(u64(pinned), u64(plain), size(77))", "h2h pageable"),
        ("cuMemcpy(u64(device), u64(other), size(77))", "d2d"),
        ("cuMemcpyAsync(u64(managed), u64(plain), size(77), None)", "unknown pageable"),
    ],
)
def test_by_function(start: Start, call: str, way: str) -> None:
    """Other copies count by the function's name, and by both addresses where that has no direction."""
    process = start()
    assert 0 == process.run(f"{MADE}out = cu.{call}")
    assert {way: 77} == process.counts.copied


def test_recorded(start: Start) -> None:
    """A copy that a capture records counts then, the same way; it is not made."""
    process = start()
    process.run(
        f"{MADE}stream = new(vp, cu.cuStreamCreate, 0); ok(cu.cuStreamBeginCapture_v2(stream, 0)); buffer[0] = b'x'\n"
        "ok(flat((DEVICE, device), (HOST, plain), 'cuMemcpy2DAsync_v2', (stream,)))\n"
        "ok(deep((HOST, pinned), (HOST, device), 'cuMemcpy3DAsync_v2', (stream,)))"
    )
    assert ({}, {"h2d pageable": 77, "h2h unknown": 77}) == (process.counts.copied, process.counts.recorded)
    assert [0, 120] == process.run("out = [C.c_ubyte.from_address(device).value, buffer[0][0]]")


def test_what_is_no_memory(start: Start) -> None:
    """Arrays, which the soft GPU has not, and numbers that are no memory type are refused."""
    process = start()
    sides = ["(DEVICE, device), (ARRAY, 8)", *(f"({type_}, plain), (DEVICE, device)" for type_ in (0, 5, -1))]
    codes = [NOT_SUPPORTED, *[INVALID_VALUE] * 3]
    assert codes == process.run(f"{MADE}out = [flat(*it) for it in [({'), ('.join(sides)})]]")
    assert codes == process.run(f"out = [deep(*it) for it in [({'), ('.join(sides)})]]")
    assert {} == process.counts.copied


UNMAPPED = """
handle = new(vp, cu.cuMemCreate, size(2 * MIB), place(1), u64(0))
reserved = new(u64, cu.cuMemAddressReserve, size(4 * MIB), size(0), u64(0), u64(0)).value
ok(cu.cuMemMap(u64(reserved), size(2 * MIB), size(0), handle, u64(0)))
freed = allocate(MIB); ok(cu.cuMemFree_v2(freed)); freed = freed.value
"""
WRONG = {
    "past the end": "device + MIB - 4",
    "freed": "freed",
    "the program's": "plain",
    "nothing": "0xdead000",
    "without access": "reserved",
    "not mapped": "reserved + 2 * MIB",
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_addresses_without_memory(start: Start, wrong: str) -> None:
    """Copies and fills that leave the memory of GPUs fail, on either side, and copy nothing."""
    process = start()
    calls = (
        "cu.cuMemcpyHtoD_v2(at, vp(plain), size(8)), cu.cuMemcpyDtoH_v2(vp(plain), at, size(8)),"
        "cu.cuMemcpyDtoDAsync_v2(u64(other), at, size(8), None),"
        "cu.cuMemcpyDtoDAsync_v2(at, u64(other), size(8), None),"
        "cu.cuMemsetD8_v2(at, 1, size(8)), cu.cuMemsetD32Async(at, 1, size(2), None),"
        "flat((DEVICE, at.value), (HOST, plain)), flat((HOST, plain), (DEVICE, at.value))"
    )
    assert [INVALID_VALUE] * 8 == process.run(f"{MADE}{UNMAPPED}at = u64({wrong}); out = [{calls}]")
    assert {} == process.counts.copied
    if wrong == "reserved":
        process.run("access = (C.c_int * 3)(1, 0, 3); ok(cu.cuMemSetAccess(at, size(2 * MIB), access, size(1)))")
        assert [0] * 8 == process.run(f"out = [{calls}]")


def test_over_several_mappings(start: Start) -> None:
    """A copy goes over mappings that lie side by side."""
    process = start()
    codes = process.run(
        f"{MADE}{UNMAPPED}ok(cu.cuMemMap(u64(reserved + 2 * MIB), size(2 * MIB), size(0), handle, u64(0)))\n"
        "access = (C.c_int * 3)(1, 0, 3); ok(cu.cuMemSetAccess(u64(reserved), size(4 * MIB), access, size(1)))\n"
        "out = [cu.cuMemsetD8_v2(u64(reserved + n), 1, size(2 * MIB)) for n in (MIB, 2 * MIB, 2 * MIB + 1)]"
    )
    assert [0, 0, INVALID_VALUE] == codes


def test_variables_of_the_runtime(libraries: Path, start: Start) -> None:
    """Variables that nvcc's code registers are memory of the device: copied to and filled by address too."""
    process = start()
    process.run(
        f"rt = C.CDLL({str(libraries / RUNTIME)!r}); register, at = getattr(rt, '__cudaRegisterFatBinary'), vp()\n"
        "register.restype = vp; host, text = C.create_string_buffer(64), C.create_string_buffer(b'0123456789')\n"
        "getattr(rt, '__cudaRegisterVar')(vp(register(bytes(64))), host, None, b'name', 0, size(64), 0, 0)"
    )
    process.run(
        "ok(rt.cudaMemcpyToSymbol(host, text, size(10), size(2), 1)); ok(rt.cudaGetSymbolAddress(C.byref(at), host))"
    )
    process.run("text.value = b'x' * 10; ok(rt.cudaMemcpy(text, at, size(10), 2)); ok(rt.cudaMemset(at, 0, size(64)))")
    assert "00003031323334353637" == process.run("out = text.raw[:10].hex()")
    assert 1 == process.run("out = rt.cudaMemset(at, 0, size(65))")


@pytest.mark.parametrize(("version", "stored"), [(12080, 1), (13000, 99)])
def test_batches_by_version(start: Start, version: int, stored: int) -> None:
    """Callers of CUDA 12 have one more argument, which gets the number of the copy that failed."""
    process = start()
    last = "C.byref(index), stream" if version < 13000 else "stream"
    process.run(f"{MADE}stream, index, found = new(vp, cu.cuStreamCreate, 0), size(99), vp()")
    process.run(f"ok(cu.cuGetProcAddress_v2(b'cuMemcpyBatchAsync', C.byref(found), {version}, u64(0), None))")
    process.run(
        "def batch(*to): return C.CFUNCTYPE(C.c_int)(found.value)("
        f"(u64 * 2)(*to), (u64 * 2)(pinned, pinned), (size * 2)(23, 23), size(2), None, None, size(0), {last})"
    )
    assert 0 == process.run("out = batch(device, other)")
    assert [INVALID_VALUE, stored] == process.run("out = [batch(device, 0), index.value]")
    assert 3 * 23 == sum(process.counts.copied.values())
