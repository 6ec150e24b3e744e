"""A CUDA job of exactly known pace, on the stand-in driver: `python paced_job.py LAUNCHES_PER_SECOND`.

It launches in ticks of a twentieth of a second on an absolute schedule, and once a second allocates, frees, copies,
replays a graph and waits. After ten seconds it runs out of memory once. After each tick it prints the wall time in
nanoseconds and the launches made so far; on SIGTERM it ends between two ticks.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import time

TICKS_PER_SECOND = 20
MIB = 1 << 20


class Job:
    """The driver's functions on one context."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        self._call("cuCtxCreate_v2", ctypes.byref(ctypes.c_void_p()), 0, 0)
        self._weights = self._allocate(256 * MIB)
        self._pinned = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(self._pinned), ctypes.c_size_t(MIB), 0)
        self._pageable = ctypes.create_string_buffer(MIB)

    def run_out_of_memory(self) -> None:
        code = self._driver.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1 << 50))
        assert code == 2, code

    def launch(self) -> None:
        self._call("cuLaunchKernel", None, 1, 1, 1, 1, 1, 1, 0, None, None, None)

    def step(self) -> None:
        block = self._allocate(4 * MIB)
        self._call("cuMemcpyHtoDAsync_v2", self._weights, self._pinned, ctypes.c_size_t(MIB), None)
        self._call("cuMemcpyDtoH_v2", self._pageable, self._weights, ctypes.c_size_t(MIB))
        self._call("cuGraphLaunch", None, None)
        self._driver.standin_busy(None, ctypes.c_uint64(2_000_000))
        self._call("cuStreamSynchronize", None)
        self._call("cuMemFree_v2", block)

    def _allocate(self, size: int) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            raise SystemExit(f"{name} returned {code}")


def main(per_second: int) -> None:
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    job, launches, began = Job(), 0, time.monotonic()
    while not ended:
        tick = launches * TICKS_PER_SECOND // per_second
        time.sleep(max(0.0, began + tick / TICKS_PER_SECOND - time.monotonic()))
        for _ in range(per_second // TICKS_PER_SECOND):
            job.launch()
        launches += per_second // TICKS_PER_SECOND
        if tick % TICKS_PER_SECOND == 0:
            job.step()
        if tick == 10 * TICKS_PER_SECOND:
            job.run_out_of_memory()
        print(time.time_ns(), launches, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
