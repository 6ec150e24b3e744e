"""Calls one of the functions of sites.c, each time by another way, as the numbers on its standard input demand."""

import asyncio
import contextlib
import ctypes
import functools
import sys
import threading

sys.path.insert(0, sys.argv[1])
import sites  # noqa: E402 - from the folder that is given

itself, libc = ctypes.CDLL(sites.__file__), ctypes.CDLL(None)
itself.allocate_at.argtypes = (ctypes.c_uint, ctypes.c_void_p, ctypes.c_size_t)
Compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def plain(site, size):
    sites.allocate(site, size)


def by_callback(site, size):
    sorted([site], key=lambda at: sites.allocate(at, size))


def by_recursion(site, size, depth=37):
    if depth:
        by_recursion(site, size, depth - 1)
    else:
        plain(site, size)


def generated(site, size):
    yield plain(site, size)


def by_generator(site, size):
    return list(generated(site, size))


async def awaited(site, size):
    await asyncio.sleep(0)
    plain(site, size)


def by_coroutine(site, size):
    asyncio.run(awaited(site, size))


def by_ctypes(site, size):
    itself.allocate_at(site, ctypes.byref(ctypes.c_uint64()), size)


def by_callback_of_c(site, size):
    @Compare
    def compare(first, second):
        plain(site, size)
        return 0

    libc.qsort((ctypes.c_uint64 * 2)(), ctypes.c_size_t(2), ctypes.c_size_t(8), compare)


def by_thread(site, size):
    thread = threading.Thread(target=by_callback, args=(site, size))
    thread.start()
    thread.join()


def by_partial(site, size):
    functools.reduce(lambda call, at: call(at, size), [site], functools.partial(plain))


@contextlib.contextmanager
def managed(site, size):
    plain(site, size)
    yield


def by_context(site, size):
    with managed(site, size):
        pass


class Tensor:
    def __init__(self, site, size):
        self.site, self.size = site, size

    def __eq__(self, other):
        by_ctypes(self.site, self.size)
        return True

    @property
    def data(self):
        return [self].index(Tensor(0, 0))


def by_attribute(site, size):
    return Tensor(site, size).data if site % 2 else Tensor(site, size) == 0


WAYS = (
    *(plain, by_callback, by_recursion, by_generator, by_coroutine, by_ctypes, by_callback_of_c, by_thread),
    *(by_partial, by_context, by_attribute),
)
for number in map(int, iter(sys.stdin.readline, "")):
    WAYS[number % len(WAYS)](number % 23, 4099 + number)
    print("done", flush=True)
