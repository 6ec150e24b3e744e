"""Errors of the soft GPU: the names that they have in CUDA's headers, and which the runtime keeps."""

from __future__ import annotations

from exporter.cuda.codes import error_name
from tests.softgpu.process import Start

ILLEGAL_ADDRESS, INVALID_VALUE = 700, 1
NAMES = """
text = C.c_char_p(); rt = runtime(); rt.cudaGetErrorName.restype = rt.cudaGetErrorString.restype = C.c_char_p
def name(code): return "" if cu.cuGetErrorName(code, C.byref(text)) else text.value.decode()
def string(code): return "" if cu.cuGetErrorString(code, C.byref(text)) else text.value.decode()
"""
UNKNOWN = "unrecognized error code"


def test_names(start: Start) -> None:
    """Driver and runtime have the name of each code that CUDA's headers have, and a text; of others none."""
    process = start()
    process.run(f"{NAMES}codes = range(1, 1000)")
    driver = process.run("out = [name(it) for it in codes]")
    assert [error_name("driver", it) for it in range(1, 1000)] == driver
    runtime = process.run("out = [rt.cudaGetErrorName(it).decode() for it in codes]")
    assert [error_name("runtime", it) or UNKNOWN for it in range(1, 1000)] == runtime
    texts = (
        process.run("out = [string(it) for it in codes]"),
        process.run("out = [rt.cudaGetErrorString(it).decode() for it in codes]"),
    )
    assert [bool(it) for it in driver] == [bool(it) for it in texts[0]]
    assert [it == UNKNOWN for it in runtime] == [it == UNKNOWN for it in texts[1]]
    known = "an illegal memory access was encountered"
    assert [known, known] == [texts[0][ILLEGAL_ADDRESS - 1], texts[1][ILLEGAL_ADDRESS - 1]]
    assert ["CUDA_SUCCESS", "no error", "cudaSuccess"] == process.run(
        "out = [name(0), string(0), rt.cudaGetErrorName(0).decode()]"
    )


def test_last_error(start: Start) -> None:
    """An error is given once, unless it has ended the context."""
    process = start()
    process.run("rt = runtime(); last = lambda: rt.cudaGetLastError(); address = vp()")
    calls = "out = [rt.cudaFree(vp(4096)), rt.cudaPeekAtLastError(), last(), last()]"
    assert [INVALID_VALUE, INVALID_VALUE, INVALID_VALUE, 0] == process.run(calls)
    ends = (
        f"os.environ['SOFTGPU_FAIL'] = 'cuStreamSynchronize={ILLEGAL_ADDRESS}'\n"
        "out = [rt.cudaStreamSynchronize(None)]\n"
        "del os.environ['SOFTGPU_FAIL']\n"
        "out += [last(), last(), rt.cudaMalloc(C.byref(address), size(1)), rt.cudaPeekAtLastError(), last(), last()]"
    )
    assert [ILLEGAL_ADDRESS] * 7 == process.run(ends)
