"""Pools of another process on the soft GPU, as two processes share them."""

from __future__ import annotations

from tests.softgpu.process import Process, Start

INVALID_VALUE, INVALID_HANDLE = 1, 400
EXPORT = """
context()
def pool(handles): return new(vp, cu.cuMemPoolCreate, C.byref(Place(1, handles, 1, 0, None, 0)))
def take(pool, many): return new(u64, cu.cuMemAllocFromPoolAsync, size(many), pool, None)
def export(pool, flags=0):
    return new(C.c_int, lambda to: cu.cuMemPoolExportToShareableHandle(to, pool, 1, u64(flags))).value
def data(address):
    it = (C.c_ubyte * 64)(); ok(cu.cuMemPoolExportPointer(it, address)); return bytes(it).hex()
shared, own = pool(1), pool(0); held = take(shared, 7 * MIB); fd = export(shared)
ok(cu.cuMemsetD8_v2(held, 23, size(7 * MIB)))
"""
IMPORT = """
context()
def open_pool(path, flags=0):
    return new(vp, cu.cuMemPoolImportFromShareableHandle, vp(os.open(path, os.O_RDONLY)), 1, u64(flags))
def bring(pool, data): return new(u64, cu.cuMemPoolImportPointer, pool, (C.c_ubyte * 64)(*bytes.fromhex(data)))
"""


def path(process: Process) -> str:
    return f"/proc/{process.pid}/fd/{process.run('out = fd')}"


def test_memory_of_a_pool(start: Start) -> None:
    """An imported allocation has the exporter's bytes, costs the importer none, and is freed by both."""
    one, other = start(), start()
    handle = one.run(f"{EXPORT}out = data(held)")
    other.run(f"{IMPORT}pool = open_pool({path(one)!r}); at = bring(pool, {handle!r}); to = C.create_string_buffer(8)")
    assert (23).to_bytes().hex() * 8 == other.run("ok(cu.cuMemcpyDtoH_v2(to, at, size(8))); out = to.raw.hex()")
    other.run("ok(cu.cuMemsetD8_v2(at, 5, size(1)))")
    assert 5 == one.run("to = C.create_string_buffer(1); ok(cu.cuMemcpyDtoH_v2(to, held, size(1))); out = to.raw[0]")
    assert ({"pool": 7 << 20}, {"imported": 7 << 20}) == (one.counts.memory, other.counts.memory)
    assert ({0: 7 << 20}, {}) == (one.counts.gpus, other.counts.gpus)
    frees = "out = [cu.cuIpcCloseMemHandle(at), cu.cuMemFreeAsync(at, None), cu.cuMemFree_v2(at)]"
    assert [INVALID_VALUE, 0, INVALID_VALUE] == other.run(frees)
    assert ({"pool": 7 << 20}, {}) == (one.counts.memory, other.counts.memory)
    assert [0, 0] == one.run("out = [cu.cuMemFreeAsync(held, None), cu.cuMemPoolDestroy(shared)]")
    assert {} == one.counts.memory


def test_refused(start: Start) -> None:
    """A pool without handle types is not exported, an imported one gives no memory, data belong to their pool."""
    one, other = start(), start()
    handle = one.run(f"{EXPORT}out = data(held)")
    second = one.run("second = pool(1); fd = export(second); out = data(take(second, MIB))")
    codes = (
        "[code(export, own), code(export, shared, 1), code(data, take(own, MIB)), code(data, u64(held.value + 512))]"
    )
    assert [INVALID_VALUE] * 4 == one.run(f"out = {codes}")
    other.run(f"{IMPORT}pool, plain = open_pool({path(one)!r}), new(vp, cu.cuDeviceGetDefaultMemPool, 0)")
    assert [INVALID_VALUE] * 5 == other.run(
        "out = [cu.cuMemAllocFromPoolAsync(C.byref(u64()), size(MIB), pool, None), cu.cuDeviceSetMemPool(0, pool),"
        f" code(bring, pool, {handle!r}), code(bring, plain, {second!r}), code(open_pool, '/dev/null')]"
    )
    assert 0 == other.run(f"out = code(bring, pool, {second!r})")


def test_an_exporter_that_has_ended(start: Start) -> None:
    """Imported memory stays after kill -9; nothing more is imported then."""
    one, other = start(), start()
    handle = one.run(f"{EXPORT}out = data(held)")
    other.run(f"{IMPORT}pool = open_pool({path(one)!r}); at = bring(pool, {handle!r})")
    one.kill()
    assert INVALID_HANDLE == other.run(f"out = code(bring, pool, {handle!r})")
    assert [0, 0, 0] == other.run(
        "out = [cu.cuMemsetD8_v2(at, 1, size(7 * MIB)), cu.cuMemFreeAsync(at, None), cu.cuMemPoolDestroy(pool)]"
    )
    assert {} == other.counts.memory


def test_runtime(start: Start) -> None:
    """The runtime's calls are the driver's: what it exports the driver imports."""
    one, other = start(), start()
    one.run(
        "rt = runtime(); shared = new(vp, rt.cudaMemPoolCreate, C.byref(Place(1, 1, 1, 0, None, 0)))\n"
        "held = new(vp, rt.cudaMallocFromPoolAsync, size(MIB), shared, None)\n"
        "fd = new(C.c_int, lambda to: rt.cudaMemPoolExportToShareableHandle(to, shared, 1, 0)).value"
    )
    handle = one.run("it = (C.c_ubyte * 64)(); ok(rt.cudaMemPoolExportPointer(it, held)); out = bytes(it).hex()")
    other.run(f"{IMPORT}pool = open_pool({path(one)!r}); at = bring(pool, {handle!r})")
    assert ({"pool": 1 << 20}, {"imported": 1 << 20}) == (one.counts.memory, other.counts.memory)
    assert [0, 0] == one.run("out = [rt.cudaFreeAsync(held, None), rt.cudaMemPoolDestroy(shared)]")
    assert {} == one.counts.memory
