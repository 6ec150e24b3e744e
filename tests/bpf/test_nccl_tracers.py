"""Libraries of NCCL's names that pass calls on: each call counts once, where it arrives, for its communicator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bpf.nccl_node import BUILD, NcclNode, Rank, build_standins, observe, started
from tests.bpf.test_nccl_meetings import lags, ranks
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="NCCL calls and bytes", on="stand-in")]

ATTACHED = "accel_exporter_probe_attached"
CALLS = "nccl_collective_calls_total"
ANONYMOUS = "nccl_collective_anonymous_calls_total"
BUS = "nccl_collective_bus_bytes_total"
GROUPS = "nccl_groups_total"
GROUP = "lib.ncclGroupStart(); reduce_all(c, 1000); lib.ncclGroupEnd()"

TRACER = r"""
#include <dlfcn.h>
#include <stddef.h>
typedef void *P;
static P real(const char *name)
{
    static P nccl;
    if (!nccl) nccl = dlopen("libnccl.so.2", RTLD_NOW);
    return dlsym(nccl, name);
}
#define PASS(name, parameters, arguments) int name parameters \
    { volatile int code = ((int (*) parameters)real(#name)) arguments; return code; }
PASS(ncclGroupStart, (void), ())
PASS(ncclGroupEnd, (void), ())
PASS(ncclAllReduce, (P s, P d, size_t n, int t, int o, P c, P st), (s, d, n, t, o, c, st))
PASS(ncclCommCount, (P c, P n), (c, n))
"""
EVERY_ACCESSOR = "PASS(ncclCommUserRank, (P c, P n), (c, n))\nPASS(ncclCommCuDevice, (P c, P n), (c, n))\n"


@pytest.fixture
def observed() -> Iterator[NcclNode]:
    build_standins()
    with observe(spans_per_second=100_000) as observed:
        yield observed


def found(observed: NcclNode, tracer: Path) -> bool:
    """Return whether a library has been looked at, and is known to pass calls on."""
    return str(tracer) in observed.collector.probes.passed()


def probed(observed: NcclNode, library: Path) -> bool:
    """Return whether groups are probed, their ends at the return too."""
    groups = ("ncclGroupStart", "ncclGroupEnd")
    return all(observed.value(ATTACHED, symbol=it, library=str(library)) for it in groups)


def depths(observed: NcclNode, rank: Rank) -> list[object]:
    """Return the depth of each collective."""
    called = [it for it in observed.spans_of(rank.pid) if it.name == "AllReduce"]
    return [it.attributes["nccl.group.depth"] for it in called]


def go_through(tracer: Path) -> str:
    """Return lines after which a rank's calls go through a library."""
    return f"real = lib; lib = ctypes.CDLL({str(tracer)!r})\nassert not lib.ncclCommCount(c, byref(c_int()))"


@pytest.mark.parametrize("accessors", ["", EVERY_ACCESSOR], ids=["one accessor", "every accessor"])
def test_a_tracer_before_nccl(observed: NcclNode, compile_library: Callable[[str, str], Path], accessors: str) -> None:
    """Groups, arrival lags and bus bytes of a rank with a tracer are those of one without."""
    tracer = compile_library("libtracer.so", TRACER + accessors)
    with ranks(observed, 2, "traced") as job:
        job[1].run(go_through(tracer))
        until(lambda: found(observed, tracer), "the tracer found")
        for rank in job:
            rank.run(f"for _ in range(20): {GROUP}\nfor _ in range(10): reduce_all(c, 1000)")
        assert [30, 30] == lags(observed, job)
        for rank in job:
            assert 20 == observed.value(GROUPS, rank.pid)
            assert 30 == observed.value(CALLS, rank.pid, collective="AllReduce")
            assert 30 * 4000 == observed.value(BUS, rank.pid, collective="AllReduce")
            assert not observed.value(ANONYMOUS, rank.pid)
        assert not probed(observed, tracer)
        [problem] = [it for it in observed.collector.problems() if str(tracer) in it]
        assert str(BUILD / "libnccl.so.2") in problem


def test_a_tracer_that_is_mapped_first(observed: NcclNode, compile_library: Callable[[str, str], Path]) -> None:
    """A library with all of NCCL's functions is probed until it loads NCCL, which is probed from then on."""
    tracer = compile_library("libtracer.so", TRACER + EVERY_ACCESSOR)
    with Rank(tracer) as rank:
        until(lambda: probed(observed, tracer) and rank.pid in observed.collector.ledger, "the tracer alone is probed")
        rank.run("real = ctypes.CDLL('libnccl.so.2'); lib.ncclGroupStart(); lib.ncclGroupEnd()")
        until(lambda: found(observed, tracer) and probed(observed, BUILD / "libnccl.so.2"), "recognised")
        before = observed.value(GROUPS, rank.pid) or 0
        rank.run(f"c = init(0, 2, b'first', real)\nfor _ in range(23): {GROUP}")
        assert 23 == (observed.value(GROUPS, rank.pid) or 0) - before
        assert 23 * 4000 == observed.value(BUS, rank.pid, collective="AllReduce")
        assert not observed.value(ANONYMOUS, rank.pid)
        assert [0] == [it.depth for it in observed.kernel("callers", rank.pid)]


def test_a_library_of_nccls_name(observed: NcclNode, compile_library: Callable[[str, str], Path]) -> None:
    """One that is taken for an NCCL of unknown layout is probed; groups through it have the depth that they have."""
    tracer = compile_library("libnccl.so.2", TRACER + EVERY_ACCESSOR)
    with ranks(observed, 1, "named") as (rank,):
        rank.run(go_through(tracer))
        rank.libraries.add(str(tracer))
        started(observed, rank)
        for _ in range(23):
            rank.run(f"lib.ncclGroupStart(); {GROUP}; {GROUP}; lib.ncclGroupEnd()")
        assert 23 == observed.value(GROUPS, rank.pid)
        assert 46 == observed.value(ANONYMOUS, rank.pid, collective="AllReduce")
        assert [0] == [it.depth for it in observed.kernel("callers", rank.pid)]
        until(lambda: len(depths(observed, rank)) >= 46, "spans")
        assert [2] * 46 == depths(observed, rank)
