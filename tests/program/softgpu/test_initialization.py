"""Calls of the soft GPU without cuInit(), and in the child of a fork after it."""

from __future__ import annotations

import pytest

from tests.softgpu.counts import Counts
from tests.softgpu.process import RUNTIME, Start
from tests.softgpu.story import CONTEXT

INVALID_VALUE, NOT_INITIALIZED, NO_DEVICE = 1, 3, 100
IN_CHILD = """
def in_child(calls):
    read, write = os.pipe(); child = os.fork()
    if not child: os.write(write, json.dumps(calls()).encode()); os._exit(0)
    os.close(write); answer = json.loads(open(read).read()); os.waitpid(child, 0); return child, answer
"""
NEED_NONE = """
def need_none():
    text, number, found = C.c_char_p(), C.c_int(), vp()
    return [cu.cuDriverGetVersion(C.byref(number)), cu.cuGetErrorName(0, C.byref(text)),
            cu.cuGetErrorString(0, C.byref(text)),
            cu.cuGetProcAddress_v2(b"cuInit", C.byref(found), 13000, u64(0), None)]
"""
DRIVER = """
def driver():
    number, found, text = C.c_int(), u64(), C.create_string_buffer(64)
    return [cu.cuDeviceGetCount(C.byref(number)), cu.cuDeviceGet(C.byref(number), 0), cu.cuDeviceGetName(text, 64, 0),
            cu.cuDevicePrimaryCtxRetain(C.byref(found), 0), cu.cuCtxCreate_v2(C.byref(found), 0, 0),
            cu.cuCtxGetCurrent(C.byref(found)), cu.cuMemAlloc_v2(C.byref(found), size(1)), cu.cuCtxSynchronize(),
            cu.cuMemcpy(u64(8), u64(8), size(1)), cu.cuStreamQuery_ptsz(None),
            cu.cuMemCreate(C.byref(found), size(2 * MIB), place(1), u64(0))]
"""
LOAD = f"""
rt = C.CDLL(os.path.join(os.environ["LD_LIBRARY_PATH"], "{RUNTIME}"))
def versions():
    version = C.c_int(); codes = [rt.cudaDriverGetVersion(C.byref(version)), rt.cudaRuntimeGetVersion(C.byref(version))]
    return [*codes, rt.cudaGetLastError(), version.value]
def runtime():
    number, found, more, text = C.c_int(), vp(), size(), C.create_string_buffer(1008)
    return [rt.cudaGetDeviceCount(C.byref(number)), rt.cudaGetDevice(C.byref(number)), rt.cudaSetDevice(0),
            rt.cudaFree(None), rt.cudaFreeHost(None), rt.cudaMalloc(C.byref(found), size(1)),
            rt.cudaMallocHost(C.byref(found), size(1)),
            rt.cudaGetDeviceProperties(text, 0), rt.cudaDeviceSynchronize(), rt.cudaStreamSynchronize(None),
            rt.cudaMemGetInfo(C.byref(more), C.byref(more)), rt.cudaStreamSynchronize_ptsz(None),
            rt.cudaPointerGetAttributes(text, None), rt.cudaDeviceGetAttribute(C.byref(number), 1, 0)]
"""


def test_calls_before_cuinit(start: Start) -> None:
    """Each call is refused and changes nothing, but for the version, texts of errors, and the search for functions."""
    process = start()
    assert {NOT_INITIALIZED} == set(process.run(f"{DRIVER}out = driver()"))
    assert ({}, {}) == (process.counts.memory, process.counts.gpus)
    functions = process.counts.functions.values()
    assert {(1, 1)} == {(it.calls, it.failures) for it in functions}
    assert [0] * 4 == process.run(f"{NEED_NONE}out = need_none()")
    assert [INVALID_VALUE, NOT_INITIALIZED] == process.run("out = [cu.cuInit(1), cu.cuCtxSynchronize()]")
    assert [0, 0] == process.run("out = [cu.cuInit(0), cu.cuInit(0)]; context()")
    assert 0 == process.run("out = cu.cuCtxSynchronize()")


def test_child_after_cuinit(start: Start) -> None:
    """No call works in a child of a fork, cuInit() neither; its parent goes on, and a program after exec begins."""
    process = start()
    child, codes = process.run(
        f"{IN_CHILD}{DRIVER}{NEED_NONE}context(); out = in_child(lambda: [cu.cuInit(0), *driver(), *need_none()])"
    )
    assert ([NOT_INITIALIZED] * 12, [0] * 4) == (codes[:12], codes[12:])
    assert (1, 1, 0) == Counts(process.folder, child).functions["cuMemAlloc_v2"]
    assert ({}, {}) == (Counts(process.folder, child).memory, Counts(process.folder, child).gpus)
    grandchild = "out = in_child(lambda: in_child(lambda: cu.cuInit(0))[1])[1]"
    assert NOT_INITIALIZED == process.run(grandchild)
    assert 0 == process.run("allocate(1); out = cu.cuCtxSynchronize()")
    program = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    assert "0" == process.run(
        f"import subprocess; out = subprocess.run([sys.executable, '-c', {program!r}], preexec_fn=lambda: None,"
        " capture_output=True, text=True, check=True).stdout.strip()"
    )


def test_child_before_cuinit(start: Start) -> None:
    """Children of a process that has read the version, without cuInit(), use the GPU as others do."""
    process = start()
    process.run(f"{IN_CHILD}{NEED_NONE}need_none()")
    for _ in range(2):
        assert 0 == process.run("out = in_child(lambda: code(lambda: (context(), allocate(1))))[1]")
    assert 0 == process.run("out = code(context)")


def test_runtime(start: Start) -> None:
    """The runtime calls cuInit() with its first call that needs a driver, which those for versions do not."""
    process = start()
    assert [0, 0, 0, 13000] == process.run(f"{IN_CHILD}{LOAD}out = versions()")
    assert 0 == process.counts.calls("cuInit")
    child, codes = process.run("out = in_child(runtime)")
    assert {0} == set(codes)
    assert 1 == Counts(process.folder, child).calls("cuInit")
    assert 0 == process.counts.calls("cuInit")


@pytest.mark.parametrize("first", ["cudaGetDeviceCount", "cudaGetDevice", "cudaMalloc"])
def test_runtime_in_a_child(start: Start, first: str) -> None:
    """After any call but for a version, a child gets cudaErrorInitializationError of all calls but these."""
    process = start()
    rest = ", size(1)" if first == "cudaMalloc" else ""
    child, codes = process.run(
        f"{IN_CHILD}{LOAD}new(vp, rt.{first}{rest}); out = in_child(lambda: [*versions(), *runtime()])"
    )
    assert ([0, 0, 0, 13000], {NOT_INITIALIZED}) == (codes[:4], set(codes[4:]))
    calls = Counts(process.folder, child, "libcudart").functions
    assert (1, 1, 0) == calls["cudaMalloc"]
    assert {0} == set(process.run("out = runtime()"))


def test_runtime_after_the_driver(start: Start) -> None:
    """A child gets that error too if its parent has called cuInit() itself, not through the runtime."""
    process = start()
    assert {NOT_INITIALIZED} == set(process.run(f"{IN_CHILD}{LOAD}cu.cuInit(0); out = in_child(runtime)[1]"))
    assert {0} == set(process.run("out = runtime()"))


def test_runtime_without_a_gpu(start: Start) -> None:
    """Without a GPU each call returns cudaErrorNoDevice, and versions are there."""
    process = start(CUDA_VISIBLE_DEVICES="")
    assert [0, 0, 0, 13000] == process.run(f"{LOAD}out = versions()")
    assert {NO_DEVICE} == set(process.run("out = runtime()"))


def test_runtime_without_memory(start: Start) -> None:
    """A call fails while there is no memory for the context, and works once there is."""
    holding, process = start(), start()
    holding.run("context(); allocate(79 * GIB + GIB // 4)")
    allocate = "out = rt.cudaMalloc(C.byref(vp()), size(1))"
    assert 2 == process.run(f"{LOAD}{allocate}")
    assert 0 == process.run("out = rt.cudaGetDeviceCount(C.byref(C.c_int()))")
    holding.kill()
    assert 0 == process.run(allocate)
    left = "out = new(size, rt.cudaMemGetInfo, C.byref(size())).value"
    assert (80 << 30) - CONTEXT - 1 == process.run(left)
