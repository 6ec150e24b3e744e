"""Calls of the soft driver: memory in the host, pools, variables, and the variants for default streams."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests.softgpu.process import Start
from tests.softgpu.story import CONTEXT
from tests.wheels import CUDART_12, CUDART_13, library

WHOLE = 80 << 30
INVALID_VALUE, OUT_OF_MEMORY, NOT_FOUND, NOT_READY = 1, 2, 500, 600


@pytest.mark.parametrize("at", [2, 3, 4])
def test_handles_of_host_memory(start: Start, at: int) -> None:
    """Physical memory in the host (HOST, HOST_NUMA, HOST_NUMA_CURRENT) is pinned, on no GPU, and is copied as such."""
    process = start()
    free = process.run(
        f"context(); handle = new(vp, cu.cuMemCreate, size(4 * MIB), place({at}), u64(0)); out = unused()\n"
        "address = new(u64, cu.cuMemAddressReserve, size(4 * MIB), size(0), u64(0), u64(0))\n"
        "ok(cu.cuMemMap(address, size(4 * MIB), size(0), handle, u64(0)))\n"
        "ok(cu.cuMemSetAccess(address, size(4 * MIB), None, size(0)))\n"
        "held = allocate(MIB); ok(cu.cuMemcpyHtoD_v2(held, address, size(77)))\n"
        "ok(cu.cuMemcpyDtoH_v2(address, held, size(7))); ok(cu.cuMemcpy(held, address, size(23)))"
    )
    assert (WHOLE - CONTEXT, {0: 1 << 20}) == (free, process.counts.gpus)
    assert {"pinned_host": 4 << 20, "device": 1 << 20} == process.counts.memory
    assert {"h2d pinned": 100, "d2h pinned": 7} == process.counts.copied
    properties = "it = new(Place, cu.cuMemGetAllocationPropertiesFromHandle, handle); out = [it.type, it.at]"
    assert [1, at] == process.run(properties)
    process.run("ok(cu.cuMemRelease(handle)); ok(cu.cuMemUnmap(address, size(4 * MIB)))")
    assert {"device": 1 << 20} == process.counts.memory


def test_handles_elsewhere(start: Start) -> None:
    """Physical memory lies on a GPU that there is or in the host."""
    process = start()
    create = "code(new, vp, cu.cuMemCreate, size(2 * MIB), place({}), u64(0))"
    answers = [process.run(f"context(); out = {create.format(at)}") for at in ("0", "1, 2", "1, -1", "5", "1, 1")]
    assert [101, 101, 101, 101, 0] == answers
    assert {1: 2 << 20} == process.counts.gpus


def test_pools(start: Start) -> None:
    """Pools of a program's own on a GPU, up to their size, and in host memory; one with memory in use is destroyed."""
    process = start()
    process.run(
        "context()\n"
        "def pool(*at): return new(vp, cu.cuMemPoolCreate, place(*at))\n"
        "def take(pool, many): return new(u64, cu.cuMemAllocFromPoolAsync, size(many), pool, None)\n"
        "def used(pool, what): return new(u64, lambda to: cu.cuMemPoolGetAttribute(pool, what, to)).value\n"
        "on_gpu, in_host, standard = pool(1, 1, 8 * MIB), pool(2), new(vp, cu.cuDeviceGetDefaultMemPool, 0)\n"
        "held = [take(on_gpu, 3 * MIB), take(on_gpu, 5 * MIB), take(in_host, 7 * MIB), take(standard, 11 * MIB)]"
    )
    assert {"pool": 19 << 20, "pinned_host": 7 << 20} == process.counts.memory
    assert {0: 11 << 20, 1: 8 << 20} == process.counts.gpus
    assert OUT_OF_MEMORY == process.run("out = code(take, on_gpu, 1)")
    process.run("ok(cu.cuMemFreeAsync(held[0], None))")
    assert [5 << 20, 8 << 20, 11 << 20] == process.run("out = [used(on_gpu, 7), used(on_gpu, 8), used(standard, 7)]")
    process.run("ok(cu.cuMemPoolDestroy(on_gpu)); ok(cu.cuMemPoolDestroy(in_host))")
    assert {"pool": 16 << 20, "pinned_host": 7 << 20} == process.counts.memory
    assert INVALID_VALUE == process.run("out = code(ok, cu.cuMemPoolDestroy(standard))")
    process.run("[ok(cu.cuMemFreeAsync(it, None)) for it in held[1:]]")
    assert ({}, {0: 0, 1: 0}) == (process.counts.memory, process.counts.gpus)


def test_pool_of_a_gpu(start: Start) -> None:
    """cuMemAllocAsync takes from the pool that was set, from the default one after that is destroyed."""
    process = start()
    process.run(
        "context(); pool = new(vp, cu.cuMemPoolCreate, place(1, 0, MIB)); ok(cu.cuDeviceSetMemPool(0, pool))\n"
        "def take(many): return new(u64, cu.cuMemAllocAsync, size(many), None)"
    )
    assert [0, OUT_OF_MEMORY] == process.run("out = [code(take, MIB), code(take, 1)]")
    assert [True, False] == process.run(
        "def is_set(): return new(vp, cu.cuDeviceGetMemPool, 0).value == pool.value\n"
        "out = [is_set()]; ok(cu.cuMemPoolDestroy(pool)); out += [is_set()]; take(9 * MIB)"
    )
    assert {"pool": 10 << 20} == process.counts.memory


def test_stream_of_another_gpu(start: Start) -> None:
    """cuMemAllocAsync takes from the pool of the stream's GPU, of the current context's for the default streams."""
    process = start()
    process.run(
        "one = context(0); two = context(1); stream = new(vp, cu.cuStreamCreate, 0); ok(cu.cuCtxSetCurrent(one))\n"
        "held = [new(u64, cu.cuMemAllocAsync, size(many * MIB), at) for many, at in ((3, stream), (5, None))]"
    )
    assert {0: 5 << 20, 1: 3 << 20} == process.counts.gpus
    process.run("for it in held: ok(cu.cuMemFreeAsync(it, None))")
    assert {0: 0, 1: 0} == process.counts.gpus


def test_memory_of_graphs(start: Start) -> None:
    """Allocations and frees in a capture are nodes; the first launch takes their memory, until the graph's end."""
    process = start()
    process.run(
        "context(); stream = new(vp, cu.cuStreamCreate, 0); ok(cu.cuStreamBeginCapture_v2(stream, 0)); graph = vp()\n"
        "held = [new(u64, cu.cuMemAllocAsync, size(many * MIB), stream) for many in (3, 5)]\n"
        "ok(cu.cuMemFreeAsync(held[0], stream)); ok(cu.cuStreamEndCapture(stream, C.byref(graph)))\n"
        "nodes = (vp * 9)(); many = size(9); ok(cu.cuGraphGetNodes(graph, nodes, C.byref(many)))\n"
        "executable = new(vp, cu.cuGraphInstantiateWithFlags, graph, C.c_ulonglong(0))"
    )
    kinds = "out = sorted(new(C.c_int, lambda to, it: cu.cuGraphNodeGetType(it, to), vp(it)).value for it in nodes[:3])"
    assert [10, 10, 11] == process.run(kinds)
    assert ({}, {}) == (process.counts.memory, process.counts.gpus)
    process.run("for _ in range(2): ok(cu.cuGraphLaunch(executable, stream)); ok(cu.cuMemFreeAsync(held[1], stream))")
    assert ({}, {0: 8 << 20}) == (process.counts.memory, process.counts.gpus)
    process.run("ok(cu.cuGraphExecDestroy(executable)); ok(cu.cuGraphDestroy(graph))")
    assert {0: 0} == process.counts.gpus


@pytest.mark.parametrize("kind", ["Module", "Library"])
def test_variables(start: Start, tmp_path: Path, kind: str) -> None:
    """Variables of a module have the sizes and contents of its image, and are no allocations."""
    (tmp_path / "image.c").write_text("int table[3] = {23, 29, 31}; char zeros[1000]; int function(void) { return 0; }")
    subprocess.run(["gcc", "-c", "-fno-common", "-o", tmp_path / "image", tmp_path / "image.c"], check=True)
    process = start()
    load, find = {
        "Module": ("cu.cuModuleLoadData, image", "cu.cuModuleGetGlobal_v2"),
        "Library": ("cu.cuLibraryLoadData, image, *[None] * 2, 0, *[None] * 2, 0", "cu.cuLibraryGetGlobal"),
    }[kind]
    process.run(
        f"context(); image = open({str(tmp_path / 'image')!r}, 'rb').read(); module = new(vp, {load}); del image\n"
        "def find(name):\n"
        f"    many = size(); address = new(u64, {find}, C.byref(many), module, name); return address, many.value\n"
    )
    assert [12, 1000] == process.run("out = [find(b'table')[1], find(b'zeros')[1]]")
    assert [NOT_FOUND] * 2 == process.run("out = [code(find, b'function'), code(find, b'table2')]")
    assert [23, 29, 31] == process.run(
        "to = (C.c_int * 3)(); ok(cu.cuMemcpyDtoH_v2(to, find(b'table')[0], size(12))); out = list(to)"
    )
    assert INVALID_VALUE == process.run("out = code(ok, cu.cuMemFree_v2(find(b'table')[0]))")
    assert ({}, {}) == (process.counts.memory, process.counts.gpus)
    process.run(f"ok(cu.cu{kind}Unload(module))")


@pytest.mark.parametrize("wheel", [CUDART_12, CUDART_13], ids=["12", "13"])
def test_variants(libraries: Path, wheel: tuple[str, str]) -> None:
    """Each function that cuda.h has with the suffix _ptsz or _ptds is there with it too."""
    header = library(wheel[0], "cuda.h").read_text()
    named = re.findall(r"^\s*#define\s+cu\w+\s+__CUDA_API_(PTDS|PTSZ)\((cu\w+)\)", header, re.MULTILINE)
    with (libraries / "libcuda.so.1").open("rb") as file:
        exported = {it.name for it in ELFFile(file).get_section_by_name(".dynsym").iter_symbols()}
    expected = {f"{name}_{kind.lower()}" for kind, name in named if name in exported}
    assert len(expected) > 23
    assert [] == sorted(expected - exported)


def test_lookup_of_variants(start: Start) -> None:
    """cuGetProcAddress finds them by name for programs with CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM."""
    process = start()
    process.run(
        "def found(name, flags):\n"
        "    return new(vp, lambda to: cu.cuGetProcAddress_v2(name, to, 13000, u64(flags), None)).value\n"
        "def at(name): return C.cast(getattr(cu, name), vp).value"
    )
    for name, plain, variant in (
        ("cuLaunchKernel", "cuLaunchKernel", "cuLaunchKernel_ptsz"),
        ("cuMemcpyHtoD", "cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds"),
        ("cuStreamBeginCapture", "cuStreamBeginCapture_v2", "cuStreamBeginCapture_v2_ptsz"),
        ("cuMemAlloc", "cuMemAlloc_v2", "cuMemAlloc_v2"),
    ):
        addresses = process.run(f"out = [found(b'{name}', flags) for flags in (0, 1, 2)]")
        assert process.run(f"out = [at('{plain}'), at('{plain}'), at('{variant}')]") == addresses


def test_default_streams(start: Start) -> None:
    """A kernel on a thread's own default stream keeps that one busy, not another thread's nor the legacy one."""
    process = start(SOFTGPU_KERNEL_NS=3600 * 10**9)
    queries = process.run(
        "held = context(); function = C.create_string_buffer(8)\n"
        "ok(cu.cuLaunchKernel_ptsz(function, *[1] * 6, 0, *[None] * 3)); out = []\n"
        "def query(): out.extend([cu.cuStreamQuery_ptsz(None), cu.cuStreamQuery(None), cu.cuStreamQuery(vp(2))])\n"
        "def other(): ok(cu.cuCtxSetCurrent(held)); query()\n"
        "query(); thread = threading.Thread(target=other); thread.start(); thread.join()"
    )
    assert [NOT_READY, 0, NOT_READY, 0, 0, 0] == queries
    functions = process.counts.functions
    assert [1, 0] == [
        functions[name].calls if name in functions else 0 for name in ("cuLaunchKernel_ptsz", "cuLaunchKernel")
    ]
    assert 0 == functions["cuStreamQuery_ptsz"].failures
