"""Functions of the soft runtime for programs in which each thread has a default stream of its own."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests.softgpu.process import HERE, Start
from tests.wheels import CUDART_12, CUDART_13, library

NOT_READY = 600
MADE = """
rt = runtime(); ok(rt.cudaFree(None)); held = new(vp, rt.cudaMalloc, size(MIB)); host = C.create_string_buffer(MIB)
event, at, number = new(vp, rt.cudaEventCreateWithFlags, 0), vp(), C.c_int()
class At(C.Structure): _fields_ = [('type', C.c_int), ('id', C.c_int)]
managed = new(vp, rt.cudaMallocManaged, size(MIB), 1); function = C.CFUNCTYPE(None, vp)(lambda _: None)
"""
CALLS = {
    "cudaMemcpy_ptds(held, host, size(23), 1)": "cuMemcpyHtoD_v2_ptds",
    "cudaMemcpyAsync_ptsz(host, held, size(23), 2, None)": "cuMemcpyDtoHAsync_v2_ptsz",
    "cudaMemcpy2DAsync_ptsz(held, size(8), host, size(8), size(8), size(3), 1, None)": "cuMemcpy2DAsync_v2_ptsz",
    "cudaMemset_ptds(held, 0, size(23))": "cuMemsetD8_v2_ptds",
    "cudaMemsetAsync_ptsz(held, 0, size(23), None)": "cuMemsetD8Async_ptsz",
    "cudaMallocAsync_ptsz(C.byref(at), size(23), None)": "cuMemAllocAsync_ptsz",
    "cudaFreeAsync_ptsz(at, None)": "cuMemFreeAsync_ptsz",
    "cudaEventRecord_ptsz(event, None)": "cuEventRecord_ptsz",
    "cudaEventRecordWithFlags_ptsz(event, None, 0)": "cuEventRecordWithFlags_ptsz",
    "cudaStreamWaitEvent_ptsz(None, event, 0)": "cuStreamWaitEvent_ptsz",
    "cudaStreamSynchronize_ptsz(None)": "cuStreamSynchronize_ptsz",
    "cudaStreamQuery_ptsz(None)": "cuStreamQuery_ptsz",
    "cudaStreamGetPriority_ptsz(None, C.byref(number))": "cuStreamGetPriority_ptsz",
    "cudaStreamIsCapturing_ptsz(None, C.byref(number))": "cuStreamIsCapturing_ptsz",
    "cudaLaunchHostFunc_ptsz(None, function, None)": "cuLaunchHostFunc_ptsz",
    "cudaMemPrefetchAsync_ptsz(managed, size(23), At(1, 0), 0, None)": "cuMemPrefetchAsync_v2_ptsz",
}


@pytest.mark.parametrize(("wheel", "release"), [(CUDART_12, 12), (CUDART_13, 13)], ids=["12", "13"])
def test_variants(tmp_path: Path, wheel: tuple[str, str], release: int) -> None:
    """Each function that cuda_runtime_api.h has with the suffix _ptsz or _ptds is there with it too."""
    header = library(wheel[0], "cuda_runtime_api.h").read_text()
    named = re.findall(r"__CUDART_API_(PTDS|PTSZ)\((cuda\w+)\)", header)
    built = tmp_path / str(release) / f"libcudart.so.{release}"
    subprocess.run(["make", "-s", "-C", HERE, f"BUILD={tmp_path}", built], check=True)
    with built.open("rb") as file:
        exported = {it.name for it in ELFFile(file).get_section_by_name(".dynsym").iter_symbols()}
    expected = {f"{name}_{kind.lower()}" for kind, name in named if name in exported}
    assert len(expected) > 23
    assert [] == sorted(expected - exported)


def test_calls(start: Start) -> None:
    """Each calls the driver's function of that suffix, once, and no other of the same name."""
    process = start()
    process.run(MADE)
    for call, function in CALLS.items():
        before = process.counts.functions
        assert 0 == process.run(f"out = rt.{call}")
        after = process.counts.functions
        called = {name for name, row in after.items() if name not in before or row.calls != before[name].calls}
        assert {function} == called - {"cuCtxGetCurrent", "cuGetProcAddress_v2"}
        assert 1 == after[function].calls - (before[function].calls if function in before else 0)


def test_default_streams(start: Start) -> None:
    """The default stream of these is the thread's own, of the others the legacy one; also by an entry point."""
    process = start(SOFTGPU_KERNEL_NS=3600 * 10**9)
    process.run(f"{MADE}one, plain = vp(), vp()")
    process.run(
        "ok(rt.cudaGetDriverEntryPoint_ptsz(b'cuLaunchKernel', C.byref(one), u64(0), None))\n"
        "ok(rt.cudaGetDriverEntryPoint(b'cuLaunchKernel', C.byref(plain), u64(0), None))\n"
        "def launch(it): return C.CFUNCTYPE(C.c_int)(it.value)(host, *[1] * 6, 0, *[None] * 3)"
    )
    queries = "rt.cudaStreamQuery(None), rt.cudaStreamQuery_ptsz(None)"
    assert [0, NOT_READY] == process.run(f"ok(launch(one)); out = [{queries}]")
    assert [NOT_READY, NOT_READY] == process.run(f"ok(launch(plain)); out = [{queries}]")
