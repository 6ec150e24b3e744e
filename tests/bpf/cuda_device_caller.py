"""Calls functions of contexts, streams and pools in a process that uses two devices (tests/bpf/cuda_caller.py)."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import byref

from tests.bpf.cuda_caller import call, fail, held
from tests.bpf.cuda_calls import FAILED, FAILING, SIZES, code
from tests.bpf.cuda_structures import ON_DEVICE, ON_HOST, Location, properties

THERE = properties(Location(ON_DEVICE, 1))


def use_two_devices() -> None:
    """Make a context on each; that of device 0 is current."""
    held["second"] = call("cuCtxCreate_v2", device=1)
    held["first"] = call("cuCtxCreate_v2", device=0)
    call("cuCtxSetCurrent", context=held["first"])


def create_contexts(name: str) -> None:
    for size in SIZES:
        made = call(name, device=1)
        call("cuMemAlloc_v2", bytes=size)
        call("cuCtxDestroy_v2", context=made)
    for _ in range(FAILING):
        call(name, code(name), device=1)
        call("cuMemAlloc_v2", bytes=FAILED)


def keep_context(name: str) -> None:
    """Allocate in a context that is not destroyed without success."""
    held["kept"] = call("cuCtxCreate_v2", device=1)
    call("cuMemAlloc_v2", bytes=FAILED)
    fail(name, context=held["kept"])
    call("cuLaunchKernel")


def end_contexts(name: str) -> None:
    call(name, context=held["kept"])
    for _ in SIZES[1:]:
        call(name, context=call("cuCtxCreate_v2", device=1))
    call("cuLaunchKernel")


def set_contexts(name: str) -> None:
    """Set contexts, which replaces the one on top of the stack."""
    for _ in SIZES:
        call("cuCtxPushCurrent_v2", context=held["second"])
        call("cuLaunchKernel")
        call(name, context=held["first"])
        call("cuCtxPopCurrent_v2")
        call("cuLaunchKernel")


def push_contexts(push: str, pop: str) -> None:
    for _ in SIZES:
        call(push, context=held["second"])
        call("cuLaunchKernel")
        call(pop)
        call("cuLaunchKernel")


def _allocate_in(context: int, *functions: str, sizes: Iterable[int] = SIZES) -> None:
    call("cuCtxSetCurrent", context=context)
    for name in functions:
        for size in sizes:
            call(name, bytes=size)
    call("cuCtxSetCurrent", context=held["first"])


def retain_primary(retain: str, release: str) -> None:
    """Retain the context of device 1 23 times and release it 22 times."""
    for _ in SIZES:
        held["primary"] = call(retain, device=1)
    fail(retain, device=1)
    _allocate_in(held["primary"], "cuMemAlloc_v2")
    fail(release, device=1)
    for _ in SIZES[1:]:
        call(release, device=1)


def call_for_second(name: str) -> None:
    call(name, device=1)


def prepare_reset(name: str, *allocating: str) -> None:
    """Allocate in a primary context that is retained twice."""
    for _ in range(2):
        held["primary"] = call("cuDevicePrimaryCtxRetain", device=1)
    _allocate_in(held["primary"], *allocating, sizes=[FAILED])
    call("cuCtxSetCurrent", context=held["primary"])
    fail(name, device=1)


def reset(name: str) -> None:
    call(name, device=1)


def reset_again(name: str) -> None:
    for _ in SIZES[1:]:
        call(name, device=1)
    call("cuCtxSetCurrent", context=held["first"])


def release_twice(name: str) -> None:
    for _ in range(2):
        call(name, device=1)


def _streams_of_the_second(name: str) -> list[int]:
    call("cuCtxSetCurrent", context=held["second"])
    made = [call(name) for _ in SIZES]
    fail(name)
    call("cuCtxSetCurrent", context=held["first"])
    return made


def create_streams(name: str) -> None:
    for stream, size in zip(_streams_of_the_second(name), SIZES, strict=True):
        call("cuMemAllocAsync", bytes=size, stream=stream)


def end_streams(name: str) -> None:
    for stream, size in zip(_streams_of_the_second("cuStreamCreate"), SIZES, strict=True):
        call(name, stream=stream)
        call("cuMemAllocAsync", bytes=size, stream=stream)
    fail(name, stream=1 << 20)


def create_pools(name: str) -> None:
    """Allocate from 11 pools of device 1, and from 12 of the host."""
    for number, size in enumerate(SIZES):
        at = Location(ON_DEVICE, 1) if number < 11 else Location(ON_HOST, 0)
        made = call(name, properties=properties(at), location=byref(at), type=1, device=1)
        call("cuMemAllocFromPoolAsync", bytes=size, pool=made)
    fail(name, properties=THERE, location=byref(at), type=1, device=1)


def end_pools(name: str) -> None:
    for size in SIZES:
        made = call("cuMemPoolCreate", properties=THERE)
        call(name, pool=made)
        call("cuMemAllocFromPoolAsync", bytes=size, pool=made)
    made = call("cuMemPoolCreate", properties=THERE)
    for _ in range(FAILING):
        call(name, code(name), pool=made)
        call("cuMemAllocFromPoolAsync", bytes=FAILED, pool=made)
