"""Calls AMD's HIP until it is ended: python -m tests.standins.hip_job LIBRARY.

Ten times a second: copies, launches, a graph, a wait, an allocation that is freed, and one that fails.
"""

from __future__ import annotations

import ctypes
import sys
import time
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p

BYTES = 1 << 20
OUT_OF_MEMORY = 2


class Dim3(ctypes.Structure):
    _fields_ = (("x", c_uint32), ("y", c_uint32), ("z", c_uint32))


def main() -> None:
    hip, memory, held, one = ctypes.CDLL(sys.argv[1]), ctypes.create_string_buffer(BYTES), c_void_p(), Dim3(1, 1, 1)
    time.sleep(3)  # until the library is probed: bytes from before are in no series
    stream = c_void_p()
    hip.hipSetDevice(0)
    hip.hipStreamCreate(byref(stream))
    hip.hipMalloc(byref(held), c_size_t(16 * BYTES))
    hip.hipHostMalloc(byref(c_void_p()), c_size_t(BYTES), 0)
    hip.standin_stall(c_uint64(1_000_000))
    while True:
        hip.hipMemcpyHtoD(held, memory, c_size_t(BYTES))
        hip.hipMemcpyDtoHAsync(memory, held, c_size_t(4096), stream)
        for _ in range(10):
            hip.hipLaunchKernel(None, one, one, None, c_size_t(0), stream)
        hip.hipGraphLaunch(None, stream)
        hip.hipStreamSynchronize(stream)
        more = c_void_p()
        hip.hipMalloc(byref(more), c_size_t(BYTES))
        hip.hipFree(more)
        hip.standin_fail(OUT_OF_MEMORY)
        hip.hipMalloc(byref(more), c_size_t(1 << 40))
        time.sleep(0.1)


if __name__ == "__main__":
    main()
