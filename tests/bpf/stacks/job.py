"""Allocates GPU memory at known lines, as commands on its standard input demand: one a line, each answered."""

import asyncio
import ctypes
import sys
import threading

sys.path.insert(0, sys.argv[1])
import sites  # noqa: E402 - from the folder that is given

driver = ctypes.CDLL("libcuda.so.1")
driver.cuMemAlloc_v2.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
driver.cuMemFree_v2.argtypes = (ctypes.c_uint64,)


def by_ctypes(size):
    address = ctypes.c_uint64()
    assert not driver.cuMemAlloc_v2(ctypes.byref(address), size)
    return address.value


def begins():
    pass


def profiled(size):
    def profiler(frame, event, argument):
        if frame.f_code is begins.__code__ and event == "call":
            sys.setprofile(None)
            by_ctypes(size)  # the profiler allocates

    sys.setprofile(profiler)
    begins()  # the profiler is called in it


def free(address):
    assert not driver.cuMemFree_v2(address)


def launch():
    driver.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)


def launch_in_threads(count, times):
    threads = [threading.Thread(target=lambda: [launch() for _ in range(times)]) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def one_in(period, times):
    for _ in range(times):
        sites.launch(1)  # the first
        sites.launch(period - 1)  # the others


class Layer:
    def forward(self, site, size):
        return sorted([site], key=lambda at: sites.allocate(at, size))

    def deep(self, depth, size):
        return self.deep(depth - 1, size) if depth else by_ctypes(size)

    def generated(self, size):
        yield by_ctypes(size)

    async def awaited(self, size):
        await asyncio.sleep(0)
        return by_ctypes(size)


layer = Layer()
for line in sys.stdin:
    result = eval(line, globals())  # noqa: S307 - the test's own commands
    print(result, flush=True)
