"""Calls made by a signal handler while the thread is inside another, on a stack above or below."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.bpf import sessions
from tests.bpf.cuda_node import MIB, Script, build_standins, observe, started
from tests.support import PATIENCE

pytestmark = [pytest.mark.needs_bpf, pytest.mark.timeout(300)]

CALLS = "gpu_cuda_api_calls_total"
INTERRUPTED = """
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
typedef int function(uint64_t);
static function *outside, *inside;
static uint64_t argument;
static int result;
static stack_t own;
static _Atomic int at;
static void handle(int signal) { (void)signal; result = inside(argument); }
static void *work(void *unused)
{
    sigaltstack(&own, 0);
    at = gettid();
    outside(0);
    outside(0);
    return unused;
}
static int sleeps(void)
{
    char path[64], state = 0;
    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", at);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 0;
    if (file)
        fclose(file);
    return state == 'S';
}
int interrupt(int above, void (*busy)(void *, uint64_t), function *outer, function *inner, uint64_t of_inner)
{
    enum { STACK = 1 << 20 };
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK | SA_RESTART};
    struct timespec while_it_waits = {.tv_nsec = 300000000};
    char *both = mmap(0, 2 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t where;
    pthread_t thread;

    outside = outer, inside = inner, argument = of_inner, result = -1, at = 0;
    busy(0, 600000000000);
    own = (stack_t){.ss_sp = above ? both + STACK : both, .ss_size = STACK};
    pthread_attr_init(&where);
    pthread_attr_setstack(&where, above ? both : both + STACK, STACK);
    sigaction(SIGUSR1, &action, 0);
    pthread_create(&thread, &where, work, 0);
    while (!at || !sleeps())
        usleep(1000);
    nanosleep(&while_it_waits, 0);
    busy(0, 0); /* which the interrupted wait sees after the handler */
    pthread_kill(thread, SIGUSR1);
    pthread_join(thread, 0);
    return result;
}
"""

sessions_only = pytest.mark.skipif(not sessions.places(), reason="the kernel has no uprobe sessions (Linux 6.13)")


@pytest.mark.parametrize("above", [pytest.param(1, marks=sessions_only), 0])
def test_a_free_in_a_signal_handler(compile_library: Callable[[str, str], Path], above: int) -> None:
    """The process lives, each call counts, the interrupted ones are timed, and later ones count in full."""
    handler = compile_library("handler.so", INTERRUPTED)
    build_standins()
    with observe(layers="driver") as observed, started(observed, Script()) as script:
        script.run(f"handler = ctypes.CDLL({str(handler)!r})")
        for _ in range(3):
            interrupt = f"handler.interrupt({above}, lib.standin_busy, lib.cuStreamSynchronize, lib.cuMemFree_v2, at)"
            script.run(f"at = new(lib.cuMemAlloc_v2, size({MIB})); assert 0 == {interrupt}")
        script.run(f"held = new(lib.cuMemAlloc_v2, size({MIB})); lib.cuMemFree_v2(held)")

        assert 6 == observed.value(CALLS, script.pid, api="cuStreamSynchronize")
        assert 4 == observed.value(CALLS, script.pid, api="cuMemFree_v2")
        waited = observed.value("gpu_cuda_sync_wait_seconds", script.pid, api="cuStreamSynchronize")
        assert 6 == sum(waited.counts)
        assert 3 == sum(waited.counts[-19:])  # from 0.25 s
        assert 4 * MIB == observed.value("gpu_cuda_memory_allocations_bytes_total", script.pid, memory="device")
        freed = observed.values("gpu_cuda_memory_frees_bytes_total", script.pid)
        assert [MIB] == [size for labels, size in freed.items() if ("implicit", "true") not in labels]
        used = observed.value("gpu_cuda_memory_usage_bytes", script.pid, memory="device")
        assert (used is None) == bool(above)
        assert 3 * above == observed.collector.object.globals()["returns_skipped"]
        assert {} == observed.lost


@sessions_only
def test_a_synchronising_call_in_a_signal_handler(compile_library: Callable[[str, str], Path]) -> None:
    """A call of the same function does not take the place of the one that it was made in."""
    handler = compile_library("handler.so", INTERRUPTED)
    build_standins()
    with observe(layers="driver") as observed, started(observed, Script()) as script:
        script.run(f"handler = ctypes.CDLL({str(handler)!r})")
        calls = "lib.standin_busy, lib.cuStreamSynchronize, lib.cuStreamSynchronize, c_uint64()"
        script.run(f"assert 0 == handler.interrupt(1, {calls})")
        assert 3 == observed.value(CALLS, script.pid, api="cuStreamSynchronize")
        waited = observed.value("gpu_cuda_sync_wait_seconds", script.pid, api="cuStreamSynchronize")
        assert 2 == sum(waited.counts)
        assert 0.3 <= waited.sum < PATIENCE
