"""C source of a library that leaves calls by longjmp, and makes others from deeper frames."""

from __future__ import annotations

JUMPER = """
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
typedef int function(uint64_t, uint64_t);
static sigjmp_buf outside;
static void leave(int signal) { siglongjmp(outside, signal); }
int abandon(function *call, uint64_t a, uint64_t b)
{
    signal(SIGALRM, leave);
    if (sigsetjmp(outside, 1))
        return -1;
    ualarm(50000, 0);
    return call(a, b);
}
__attribute__((noinline)) int deeper(function *call, uint64_t a, uint64_t b, int depth)
{
    char frame[256];
    memset(frame, 7, sizeof(frame));
    asm volatile("" ::"r"(frame) : "memory");
    int result = depth ? deeper(call, a, b, depth - 1) : call(a, b);
    asm volatile("" ::"r"(frame) : "memory");
    return result;
}
"""
