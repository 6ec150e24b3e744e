"""Chosen places in running code: every call is counted once, with its arguments, its stack and its result."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.bpf.elf import Elf
from exporter.bpf.libbpf import Object
from exporter.bpf.placement import Placement, place
from exporter.bpf.uprobe import Point, attach

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="finding and attaching", on="real software")]

PARAMETERS = "long a, long b, long c, long d, long e, long f, long g, long h"
LIBRARY = f"""
static __attribute__((noinline)) long other(long a, long b, long c, long d, long e, long f)
{{
    __asm__ volatile("" ::: "memory");
    return a + b + c + d + e + f;
}}
long saves({PARAMETERS})
{{
    __asm__ volatile("" ::: "rbx", "r12");
    return other(f, e, d, c, b, a) + g + h;
}}
long checks({PARAMETERS})
{{
    return b < 0 ? -1 : other(a, b, c, d, e, f);
}}
long passes_on({PARAMETERS})
{{
    return other(a, b, c, d, e, f);
}}
long loops({PARAMETERS})
{{
    do
        __asm__ volatile("nop");
    while (--b > 0);
    return b;
}}
"""
COUNTER = """
#include "probe.h"
#ifdef __TARGET_ARCH_x86
#define SIXTH(ctx) ctx->r9
#else
#define SIXTH(ctx) ctx->user_regs.regs[5]
#endif
struct seen { __u64 calls, returns, arguments[6], stack[2], result; };
MAP(seen, HASH, __u64, struct seen, 16);
static const struct seen none;
SEC("uprobe") int on_entry(struct pt_regs *ctx)
{
    __u64 function = bpf_get_attach_cookie(ctx);
    struct seen *s = lookup_or_init(seen, &function, &none);
    if (!s)
        return 0;
    s->calls++;
    s->arguments[0] = PT_REGS_PARM1(ctx);
    s->arguments[1] = PT_REGS_PARM2(ctx);
    s->arguments[2] = PT_REGS_PARM3(ctx);
    s->arguments[3] = PT_REGS_PARM4(ctx);
    s->arguments[4] = PT_REGS_PARM5(ctx);
    s->arguments[5] = SIXTH(ctx);
    bpf_probe_read_user(s->stack, sizeof(s->stack), (void *)PT_REGS_SP(ctx) + 8);
    return 0;
}
SEC("uretprobe") int on_return(struct pt_regs *ctx)
{
    __u64 function = bpf_get_attach_cookie(ctx);
    struct seen *s = lookup_or_init(seen, &function, &none);
    if (!s)
        return 0;
    s->returns++;
    s->result = PT_REGS_RC(ctx);
    return 0;
}
"""
PROTECTED = "-fcf-protection=branch"
"""Functions begin with endbr64, as most distributions build them."""
KINDS = {
    f"{PROTECTED} -O2": {"saves": True, "checks": True, "passes_on": True, "loops": False},
    f"{PROTECTED} -O0": {"saves": True, "checks": True, "passes_on": True, "loops": True},
    "-fcf-protection=none -O2": {"saves": False, "checks": True, "passes_on": False},
}
"""Compiler flags: the functions, and whether a place past the symbol is chosen."""
CALLS = 23


@pytest.fixture(scope="module", params=[*KINDS])
def flags(request: pytest.FixtureRequest) -> str:
    if platform.machine() != "x86_64":
        pytest.skip("elsewhere than on x86-64 the place is always the symbol")
    return str(request.param)


@pytest.fixture(scope="module")
def library(flags: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("placed") / "placed.so"
    command = ["gcc", "-shared", "-fPIC", *flags.split(), "-x", "c", "-", "-o", path]
    subprocess.run(command, input=LIBRARY, text=True, check=True)
    return path


@pytest.fixture(scope="module")
def placements(flags: str, library: Path) -> dict[str, Placement]:
    with Elf.open(library) as elf:
        functions = elf.functions(list(KINDS[flags]))
        return {name: place(elf, functions[name]) for name in KINDS[flags]}


@pytest.fixture(scope="module")
def counter(compile_bpf: Callable[[str, str], Path]) -> Path:
    return compile_bpf("seen", COUNTER)


def test_places(flags: str, placements: dict[str, Placement]) -> None:
    """The place is past the symbol where that makes it cheap, but never inside a loop that goes round in one call."""
    assert KINDS[flags] == {name: placement.moved for name, placement in placements.items()}


def test_calls(library: Path, placements: dict[str, Placement], counter: Path) -> None:
    """23 calls are 23 entries and 23 returns, and the last one's arguments, also those on the stack, are as passed."""
    points = [Point(placement.offset, cookie) for cookie, placement in enumerate(placements.values())]
    functions = ctypes.CDLL(str(library))
    with Object(counter) as loaded:
        entries = attach(loaded.programs["on_entry"], library, points)
        returns = attach(loaded.programs["on_return"], library, points, returns=True)
        for cookie, name in enumerate(placements):
            called = getattr(functions, name)
            called.restype, called.argtypes = ctypes.c_long, [ctypes.c_long] * 8
            for call in range(CALLS):
                arguments = [1000 + call, 5, *range(12, 18)]
                result = called(*arguments)
            seen = loaded.maps["seen"].get(cookie)
            assert (CALLS, CALLS) == (seen.calls, seen.returns), name
            assert (arguments, result) == ([*seen.arguments, *seen.stack], ctypes.c_long(seen.result).value), name
        entries.close()
        returns.close()
