"""C sources of libraries that leave calls in the middle, at SIGALRM: by longjmp, or by another program."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.bpf.cuda_node import Script
from tests.bpf.observed import Observed
from tests.support import until

JUMPER = """
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <unistd.h>
typedef int function(uint64_t, uint64_t);
uint64_t fill = 7; /* what frames have */
static sigjmp_buf outside;
static void leave(int signal) { siglongjmp(outside, signal); }
int abandon(function *call, uint64_t a, uint64_t b)
{
    char room[160]; /* its call begins where frames of deeper() have what they are filled with */
    asm volatile("" ::"r"(room) : "memory");
    signal(SIGALRM, leave);
    if (sigsetjmp(outside, 1))
        return -1;
    return call(a, b);
}
__attribute__((noinline)) int deeper(function *call, uint64_t a, uint64_t b, int depth)
{
    uint64_t frame[32];
    for (int i = 0; i < 32; i++)
        frame[i] = fill;
    asm volatile("" ::"r"(frame) : "memory");
    int result = depth ? deeper(call, a, b, depth - 1) : call(a, b);
    asm volatile("" ::"r"(frame) : "memory");
    return result;
}
"""

REPLACER = """
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
static ucontext_t here, above;
static int (*called)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
static char **program;
static void call(void) { called(0, 0, 0, 0, 0); }
static void replace(int signal) { execv(program[0], program); }
int replace_in(void *function, char **arguments)
{
    void *stack = mmap((void *)0x7ffffff00000, 65536, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    called = function;
    program = arguments;
    signal(SIGALRM, replace);
    getcontext(&above);
    above.uc_link = &here;
    above.uc_stack = (stack_t){.ss_sp = stack, .ss_size = 65536};
    makecontext(&above, call, 0);
    return swapcontext(&here, &above);
}
"""
"""C source of a library that runs another program in the middle of a call, on a stack above those of programs."""


def leave(observed: Observed, job: Script) -> None:
    """Have a job leave the call that it makes, once it sleeps in one: earlier, the library may hold a lock."""
    until(lambda: observed.in_flight(job.pid), "a call in flight")
    until(lambda: "nanosleep" in Path(f"/proc/{job.pid}/wchan").read_text(), "it sleeps")
    os.kill(job.pid, signal.SIGALRM)


def replaced(library: Path, function: str) -> str:
    """Lines for a script (cuda_node.Script): it runs itself again when it leaves a call of this function."""
    return (
        f"arguments = (ctypes.c_char_p * 4)(sys.executable.encode(), b'-c', {Script.DRIVER.encode()!r})\n"
        f"ctypes.CDLL({str(library)!r}).replace_in({function}, arguments)"
    )
