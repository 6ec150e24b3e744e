"""NCCL calls, bytes, communicators and errors are counted exactly, for each process."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from exporter.bpf import sessions
from exporter.bpf.libbpf import run_time_statistics
from exporter.nccl.functions import FUNCTIONS
from exporter.resolve.communicators import Member
from tests.bpf.fixtures import each, once
from tests.bpf.nccl_node import BUILD, ENDS_STALL, NcclNode, Rank, build_standins, end_stall, observe, started
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="NCCL calls and bytes", on="stand-in")]

CALLS = "nccl_collective_calls_total"
BYTES = "nccl_collective_bytes_total"
BUS = "nccl_collective_bus_bytes_total"
INFO = "nccl_communicator_info"
ERRORS = "nccl_errors_total"


observed = once(partial(observe, spans_per_second=100_000))
rank = each(Rank)


def by_collective(observed: NcclNode, metric: str, pid: int) -> dict[str, int]:
    return {dict(labels)["collective"]: value for labels, value in observed.values(metric, pid).items()}


def communicators(observed: NcclNode, pid: int) -> set[tuple[str, str, str, str]]:
    names = ("comm_hash", "rank", "nranks", "cuda_device")
    return {tuple(dict(labels)[name] for name in names) for labels in observed.values(INFO, pid)}


EVERY = """
c = init(3, 8, b'every')
n, st, f16 = size(1000), c_void_p(0x51), 6
lib.ncclAllReduce(None, None, n, f16, 0, c, st)
lib.ncclReduceScatter(None, None, n, f16, 0, c, st)
lib.ncclAllGather(None, None, n, f16, c, st)
lib.ncclBroadcast(None, None, n, f16, 1, c, st)
lib.ncclBcast(None, n, f16, 1, c, st)
lib.ncclReduce(None, None, n, f16, 0, 1, c, st)
lib.ncclSend(None, n, f16, 2, c, st)
lib.ncclRecv(None, n, f16, 2, c, st)
lib.ncclAlltoAll(None, None, n, f16, c, st)
lib.ncclGather(None, None, n, f16, 1, c, st)
lib.ncclScatter(None, None, n, f16, 1, c, st)
lib.ncclPutSignal(None, n, f16, 2, None, size(0), 0, 0, 0, c, st)
lib.ncclSignal(2, 0, 0, 0, c, st)
lib.ncclWaitSignal(1, None, c, st)
lib.ncclAllReduceConfig(None, None, n, f16, 0, c, st, None)
lib.ncclReduceConfig(None, None, n, f16, 0, 1, c, st, None)
lib.ncclAllGatherConfig(None, None, n, f16, c, st, None)
lib.ncclReduceScatterConfig(None, None, n, f16, 0, c, st, None)
lib.ncclBroadcastConfig(None, None, n, f16, 1, c, st, None)
lib.ncclAlltoAllConfig(None, None, n, f16, c, st, None)
lib.ncclGatherConfig(None, None, n, f16, 1, c, st, None)
lib.ncclScatterConfig(None, None, n, f16, 1, c, st, None)
"""


def test_every_collective(observed: NcclNode, rank: Rank) -> None:
    """Each function counts once under its collective, with the bytes it named and those nccl-tests would count."""
    rank.run(EVERY)
    calls = by_collective(observed, CALLS, rank.pid)
    twice = {"AllReduce", "Reduce", "AllGather", "ReduceScatter", "AlltoAll", "Gather", "Scatter"}
    once = {"Send", "Recv", "PutSignal", "Signal", "WaitSignal"}
    assert {"Broadcast": 3} | dict.fromkeys(twice, 2) | dict.fromkeys(once, 1) == calls
    sized = {name: 2000 * count for name, count in calls.items() if name not in ("Signal", "WaitSignal")}
    assert sized == by_collective(observed, BYTES, rank.pid)
    factors = {"AllReduce": 2 * 7 / 8} | dict.fromkeys(
        ["ReduceScatter", "AllGather", "AlltoAll", "Gather", "Scatter"], 7
    )
    expected = {name: size * factors.get(name, 1) for name, size in sized.items()}
    assert expected == by_collective(observed, BUS, rank.pid)
    assert {} == observed.values("nccl_collective_unsized_calls_total", rank.pid)
    assert {} == observed.values("nccl_collective_anonymous_calls_total", rank.pid)


def test_23_calls(observed: NcclNode, rank: Rank) -> None:
    """23 calls give 23, at the time of the last one, each with its host time."""
    before = time.time()
    rank.run("c = init(0, 2, b'a')\nfor i in range(23): reduce_all(c, 1 << 20)")
    assert 23 == observed.value(CALLS, rank.pid, collective="AllReduce")
    assert 23 * 4 << 20 == observed.value(BYTES, rank.pid, collective="AllReduce")
    assert 23 == sum(observed.value("nccl_enqueue_seconds", rank.pid, collective="AllReduce").counts)
    assert 1 == sum(observed.value("nccl_communicator_operation_seconds", rank.pid, operation="Init").counts)
    assert before - 1 <= observed.value("nccl_last_call_timestamp_seconds", rank.pid) <= time.time() + 1
    assert 0 == observed.value("nccl_calls_in_flight", rank.pid)


TYPE_BYTES = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1]


def test_every_type(observed: NcclNode, rank: Rank) -> None:
    """Bytes are counted by the size of the type; a type from the future counts as unsized."""
    rank.run("c = init(0, 2, b'a')\nfor type in range(13): reduce_all(c, 1000, type)")
    assert 1000 * sum(TYPE_BYTES) == observed.value(BYTES, rank.pid, collective="AllReduce")
    assert 1 == observed.value("nccl_collective_unsized_calls_total", rank.pid, collective="AllReduce")


def test_communicators_of_a_process(observed: NcclNode, rank: Rank) -> None:
    """Every communicator is shown with its rank: made one by one, all at once, split, shrunk, grown."""
    hashes = rank.run(
        "c = init(5, 8, b'world')\n"
        "def look(c): return ctypes.string_at(c.value + 246944, 8)[::-1].hex()\n"
        "many = (c_void_p * 3)(); lib.ncclCommInitAll(many, 3, None)\n"
        "made = [c] + [c_void_p(it) for it in many]\n"
        "for call in ('lib.ncclCommSplit(c, 1, 2, byref(n), None)',\n"
        "             'lib.ncclCommShrink(c, None, 1, byref(n), None, 0)',\n"
        "             'lib.ncclCommGrow(c, 9, None, 5, byref(n), None)',\n"
        "             'lib.ncclCommInitRankScalable(byref(n), 4, 1, 1, byref(Id(b\"s\")), None)'):\n"
        "    n = c_void_p(); assert not eval(call); made.append(n)\n"
        "n = c_void_p(); lib.ncclCommSplit(c, -1, 2, byref(n), None)\n"
        "out = [look(it) for it in made]"
    )
    ranks = [("5", "8"), ("0", "3"), ("1", "3"), ("2", "3"), ("2", "4"), ("5", "7"), ("5", "9"), ("1", "4")]
    expected = {(comm_hash, *who, who[0]) for comm_hash, who in zip(hashes, ranks, strict=True)}
    assert expected == communicators(observed, rank.pid)
    members = {it for it in observed.node.communicators.all() if it.pid == rank.pid}
    assert {Member(rank.pid, comm_hash, int(it), int(n)) for comm_hash, it, n, _ in expected} == members


def test_ended_communicators(observed: NcclNode, rank: Rank) -> None:
    """A destroyed or aborted communicator is not shown any more; another at its address is shown as itself."""
    rank.run("a, b = init(0, 2, b'a'), init(1, 2, b'b'); reduce_all(a, 1); reduce_all(b, 1)")
    assert {"0", "1"} == {it[1] for it in communicators(observed, rank.pid)}
    rank.run("lib.ncclCommDestroy(a)")
    assert {"1"} == {it[1] for it in communicators(observed, rank.pid)}
    rank.run("lib.ncclCommAbort(b); d = init(2, 4, b'd'); reduce_all(d, 1)")
    assert {("2", "4")} == {it[1:3] for it in communicators(observed, rank.pid)}


def test_not_blocking(observed: NcclNode, rank: Rank) -> None:
    """A communicator that is still being made is no error, and is shown as soon as it can be read."""
    rank.run(
        "c = c_void_p(); k = Config(24, 0, 0, 0); out = lib.ncclCommInitRankConfig(byref(c), 4, Id(b'n'), 1, byref(k))"
    )
    assert set() == communicators(observed, rank.pid)
    rank.run("e = c_int(); lib.ncclCommGetAsyncError(c, byref(e)); reduce_all(c, 1)")
    assert {("1", "4")} == {it[1:3] for it in communicators(observed, rank.pid)}
    assert {} == observed.values(ERRORS, rank.pid)


def test_late_attach() -> None:
    """Communicators that were made before the exporter came are shown from their first call on."""
    build_standins()
    with Rank() as rank:
        rank.run("c = init(6, 8, b'old')\nfor i in range(9): reduce_all(c, 1)")
        with observe() as observed:
            started(observed, rank)
            rank.run("for i in range(23): reduce_all(c, 1)")
            assert 23 == observed.value(CALLS, rank.pid, collective="AllReduce")
            assert {("6", "8")} == {it[1:3] for it in communicators(observed, rank.pid)}
            until(lambda: len(observed.spans_of(rank.pid)) == 23, "spans")
            sequences = [span.attributes["nccl.sequence"] for span in observed.spans_of(rank.pid)]
            assert list(range(9, 32)) == sequences


def test_errors(observed: NcclNode, rank: Rank) -> None:
    """A call that fails counts by its code; an asynchronous error counts once for each communicator that has it."""
    rank.run(
        "c = init(0, 2, b'a'); d = init(0, 2, b'd'); lib.standin_fail(b'ncclAllReduce', 3)\n"
        "for i in range(3): reduce_all(c, 1)\n"
        "lib.standin_fail(None, 0); lib.standin_async_error(c, 6); e = c_int()\n"
        "for i in range(5): lib.ncclCommGetAsyncError(c, byref(e)); lib.ncclCommGetAsyncError(d, byref(e))"
    )
    expected = {
        ("ncclAllReduce", "3", "ncclInternalError"): 3,
        ("ncclCommGetAsyncError", "6", "ncclRemoteError"): 1,
    }
    names = ("api", "code", "error")
    found = observed.values(ERRORS, rank.pid)
    assert expected == {tuple(dict(labels)[name] for name in names): value for labels, value in found.items()}
    assert 3 == observed.value(CALLS, rank.pid, collective="AllReduce")


def test_groups(observed: NcclNode, rank: Rank) -> None:
    """Calls in nested groups count each, the outermost group once, and its host time is its own."""
    rank.run(
        "c = init(0, 2, b'a')\n"
        "for i in range(4):\n"
        "    lib.ncclGroupStart(); lib.ncclGroupStart(); reduce_all(c, 1); lib.ncclGroupEnd()\n"
        "    lib.ncclSend(None, size(1), 7, 1, c, None)\n"
        "    lib.standin_stall(c_uint64(20 * 10**6)); lib.ncclGroupEnd()\n"
        "    lib.ncclGroupStart(); lib.ncclGroupSimulateEnd(byref(c_int()))"
    )
    assert 4 == observed.value("nccl_groups_total", rank.pid)
    assert {"AllReduce": 4, "Send": 4} == by_collective(observed, CALLS, rank.pid)
    took = observed.value("nccl_enqueue_seconds", rank.pid, collective="GroupEnd")
    assert 4 == sum(took.counts) and took.sum >= 0.08


def test_in_flight(observed: NcclNode, rank: Rank) -> None:
    """A call that does not return is in flight, and is none any more when it has."""
    rank.run("c = init(0, 2, b'a')" + ENDS_STALL)
    rank.begin("lib.standin_stall(c_uint64(600 * 10**9)); reduce_all(c, 1)")
    until(lambda: observed.value("nccl_calls_in_flight", rank.pid) == 1, "in flight")
    assert ["ncclAllReduce"] == [it.what for it in observed.collector.standing() if it.pid == rank.pid]
    end_stall(rank)
    assert [] == [it for it in observed.collector.standing() if it.pid == rank.pid]
    assert 0 == observed.value("nccl_calls_in_flight", rank.pid)


def test_a_thread_that_is_cancelled_in_a_call(observed: NcclNode, rank: Rank) -> None:
    """A thread that never returns from a call is in none when it has ended, and what it kept is given back."""
    rank.run("libc = ctypes.CDLL(None); c = init(0, 2, b'a')")
    rank.run(
        "def work():\n"
        "    lib.standin_stall(c_uint64(600 * 10**9)); reduce_all(c, 1)\n"
        "thread = threading.Thread(target=work, daemon=True); thread.start()"
    )
    until(lambda: observed.value("nccl_calls_in_flight", rank.pid) == 1, "in flight")
    [held] = observed.kernel("held", rank.pid)
    assert held.callers == len(observed.kernel("callers", rank.pid)) == 2
    rank.run("assert 0 == libc.pthread_cancel(c_uint64(thread.ident))")
    until(lambda: observed.value("nccl_calls_in_flight", rank.pid) == 0, "its end noticed")
    [held] = observed.kernel("held", rank.pid)
    assert held.callers == len(observed.kernel("callers", rank.pid)) == 1


def test_two_libraries_in_one_process(observed: NcclNode, rank: Rank) -> None:
    """Communicators of two releases of NCCL in one process are read each by its own layout."""
    other = BUILD / "nccl-2.27" / "libnccl.so.2"
    rank.run(f"two = ctypes.CDLL({str(other)!r})")
    rank.libraries.add(str(other))
    started(observed, rank)
    rank.run(
        "a, b = init(1, 3, b'a'), init(4, 7, b'b', two)\n"
        "for i in range(5): reduce_all(a, 10); reduce_all(b, 10, library=two)"
    )
    assert 10 == observed.value(CALLS, rank.pid, collective="AllReduce")
    assert {("1", "3"), ("4", "7")} == {it[1:3] for it in communicators(observed, rank.pid)}
    assert 5 * (2 * 40 * 2 // 3) + 5 * (2 * 40 * 6 // 7) == observed.value(BUS, rank.pid, collective="AllReduce")


EVERY_OF_RCCL = """
c = init(1, 4, b'r'); counts = (c_size_t * 4)(10, 20, 30, 40)
other = c_void_p(); assert 0 == lib.ncclCommInitRankMulti(byref(other), 4, Id(b'r'), 2, 5)
for i in range(3): lib.ncclAllToAll(None, None, size(100), 7, c, None)
for i in range(5): lib.ncclAllToAllv(None, counts, counts, None, counts, counts, 6, c, None)
for i in range(23): lib.ncclAllReduceWithBias(None, None, size(1000), 6, 0, other, None, None)
"""


def test_all_functions_are_called() -> None:
    """A collective that is added to the table is to be called in one of these two tests."""
    called = set(re.findall(r"lib\.(nccl\w+)", EVERY + EVERY_OF_RCCL))
    assert set() == {it.name for it in FUNCTIONS if it.effect in ("collective", "vector", "signal")} - called


def test_rccl(observed: NcclNode) -> None:
    """RCCL's functions that are made of others count once, as themselves, with the bytes of all counts."""
    with started(observed, Rank("librccl.so.1", BUILD / "rccl")) as rank:
        rank.run(EVERY_OF_RCCL)
        assert {"AllReduce": 23, "AlltoAll": 3, "AlltoAllv": 5} == by_collective(observed, CALLS, rank.pid)
        sizes = {"AllReduce": 23 * 2000, "AlltoAll": 1200, "AlltoAllv": 1000}
        assert sizes == by_collective(observed, BYTES, rank.pid)
        bus = {"AllReduce": 23 * 2000 * 2 * 3 / 4, "AlltoAll": 3600, "AlltoAllv": 800}
        assert bus == by_collective(observed, BUS, rank.pid)
        assert {("1", "4"), ("2", "4")} == {it[1:3] for it in communicators(observed, rank.pid)}
        made = observed.value("nccl_communicator_operation_seconds", rank.pid, operation="Init")
        assert made and 2 == sum(made.counts)
        assert {} == observed.values("nccl_groups_total", rank.pid)


def test_static_nccl(observed: NcclNode) -> None:
    """A library that has NCCL inside and exports none of it is found by its symbols."""
    with started(observed, Rank("libtorch_cuda.so", BUILD / "static")) as rank:
        rank.run("lib.torch_all_reduce(23, size(1000))")
        assert 23 == observed.value(CALLS, rank.pid, collective="AllReduce")
        assert 46000 == observed.value(BYTES, rank.pid, collective="AllReduce")
        assert {("5", "8")} == {it[1:3] for it in communicators(observed, rank.pid)}


PASSES_ON = """
int pncclAllReduce(void *, void *, unsigned long, int, int, void *, void *);
int ncclAllReduce(void *send, void *recv, unsigned long count, int type, int op, void *comm, void *stream)
{ return pncclAllReduce(send, recv, count, type, op, comm, stream); }
"""


def test_a_library_before_nccl(observed: NcclNode, compile_library: Callable[[str, str], Path]) -> None:
    """Calls that a library of the same names passes on to NCCL count once, for the communicator they are on."""
    tracer = compile_library("libtracer.so", PASSES_ON)
    with started(observed, Rank()) as rank:
        rank.run(f"ctypes.CDLL('libnccl.so.2', ctypes.RTLD_GLOBAL); tracer = ctypes.CDLL({str(tracer)!r})")
        until(lambda: str(tracer) in {path for path, _ in observed.targets.status.libraries}, "the tracer found")
        rank.run("c = init(1, 4, b'p')\nfor i in range(23): reduce_all(c, 1, library=tracer)")
        assert 23 == observed.value(CALLS, rank.pid, collective="AllReduce")
        assert 23 * 6 == observed.value(BUS, rank.pid, collective="AllReduce")
        assert {("1", "4")} == {it[1:3] for it in communicators(observed, rank.pid)}


HOSTILE = """
import mmap
def call(address): return lib.ncclAllReduce(None, None, size(1), 7, 0, c_void_p(address), None)
page = mmap.mmap(-1, 1 << 20); at = ctypes.addressof(c_char.from_buffer(page))
lib.standin_ignore = None
for address in (0, 1, 0xffffffffffffffff, 0x7fffffffffff, 0xffff888000000000):
    pid = os.fork()
    if not pid:
        call(address); os._exit(0)
    os.waitpid(pid, 0)
def forge(hash, rank, nranks, magic=0x0280028002800280):
    ctypes.memset(at, 0, 1 << 20)
    c_uint64.from_address(at).value = magic; c_uint64.from_address(at + 246944).value = hash
    c_int.from_address(at + 246952).value = rank; c_int.from_address(at + 246956).value = nranks
    call(at)
for who in ((0, 0, 2), (1, -1, 2), (1, 2, 2), (1, 0, 0), (1, 0, 1 << 30), (1, 0, -5), (1, 0, 2, 7)): forge(*who)
"""


def test_hostile_communicators(observed: NcclNode, rank: Rank) -> None:
    """Pointers to nothing, and memory that cannot be a communicator, do no harm, and their calls count as anonymous."""
    rank.run(HOSTILE)
    assert 7 == observed.value(CALLS, rank.pid, collective="AllReduce")
    assert 7 == observed.value("nccl_collective_anonymous_calls_total", rank.pid, collective="AllReduce")
    assert 28 == observed.value(BYTES, rank.pid, collective="AllReduce")
    assert {} == observed.values(BUS, rank.pid)
    assert set() == communicators(observed, rank.pid)


def test_counts_that_nothing_can_have(observed: NcclNode, rank: Rank) -> None:
    """A negative count, or more than there can be in memory, counts as unsized: no counter of bytes goes back."""
    rank.run("c = init(0, 4, b'h'); reduce_all(c, (1 << 64) - 1); reduce_all(c, 1 << 62)")
    until(lambda: len(observed.spans_of(rank.pid)) == 3, "the spans")
    assert not [it for it in observed.spans_of(rank.pid) if "nccl.bytes" in it.attributes]
    rank.run("for _ in range(23): reduce_all(c, 1)")
    rank.run("send = lambda n: lib.ncclSend(None, size(n), 7, 1, c, None)\nsend(2); send((1 << 64) - 1)")
    assert 25 == observed.value(CALLS, rank.pid, collective="AllReduce")
    for collective, unsized, moved, bus in (("AllReduce", 2, 23 * 4, 23 * 6), ("Send", 1, 8, 8)):
        assert unsized == observed.value("nccl_collective_unsized_calls_total", rank.pid, collective=collective)
        assert moved == observed.value(BYTES, rank.pid, collective=collective)
        assert bus == observed.value(BUS, rank.pid, collective=collective)


def test_the_end_of_a_process(observed: NcclNode) -> None:
    """After the end of a job its counters stay, and its communicators disappear."""
    with started(observed, Rank()) as rank:
        rank.run("c = init(0, 2, b'a')\nfor i in range(3): reduce_all(c, 1)")
        rank.process.kill()
        rank.process.wait()
        until(lambda: not observed.kernel("calls", rank.pid), "the end noticed")
        assert 3 == observed.value(CALLS, rank.pid, collective="AllReduce")
        assert set() == communicators(observed, rank.pid)
        for table in ("callers", "communicators", "durations", "covered", "held"):
            assert [] == observed.kernel(table, rank.pid)


def test_ended_processes_that_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three that ended two are folded where one is kept: sums over all series are those of three."""
    monkeypatch.setattr("exporter.ledger.MOST_ENDED", 1)
    with observe() as observed:
        for _ in range(3):
            with started(observed, Rank()) as rank:
                rank.run("c = init(0, 2, b'a')\nfor i in range(7): reduce_all(c, 1)")
            until(lambda rank=rank: rank.pid not in observed.collector.ledger, "its end")  # type: ignore[misc]
        found = observed.sums(CALLS, BYTES, "nccl_enqueue_seconds")
        assert found == {CALLS: {False: 7, True: 14}, BYTES: {False: 28, True: 56}} | {
            "nccl_enqueue_seconds": {False: 7, True: 14}
        }


def test_threads_and_a_forked_child(observed: NcclNode, rank: Rank) -> None:
    """Calls of eight threads are counted exactly, and a forked child's are its own."""
    child = rank.run(
        "cs = [init(i, 8, b't') for i in range(8)]\n"
        "def work(c):\n"
        "    for i in range(500): reduce_all(c, 1)\n"
        "ts = [threading.Thread(target=work, args=(c,)) for c in cs]\n"
        "for t in ts: t.start()\n"
        "for t in ts: t.join()\n"
        "out = os.fork()\n"
        "if not out:\n"
        "    for i in range(5): reduce_all(cs[0], 1)\n"
        "    os._exit(0)\n"
        "os.waitpid(out, 0)"
    )
    assert 4000 == observed.value(CALLS, rank.pid, collective="AllReduce")
    assert {(str(i), "8") for i in range(8)} == {it[1:3] for it in communicators(observed, rank.pid)}
    assert 5 == observed.value(CALLS, child, collective="AllReduce")


PROGRAMS = ("on_group", "on_message", "on_collective", "on_return")


def runs(observed: NcclNode, rank: Rank, lines: str) -> dict[str, int]:
    """Return the number of runs of each program for these lines."""
    programs = observed.collector.object.programs
    with closing(run_time_statistics()):
        before = {name: programs[name].stats()[1] for name in PROGRAMS}
        rank.run(lines)
        return {name: programs[name].stats()[1] - before[name] for name in PROGRAMS}


def test_one_program_an_entry(observed: NcclNode, rank: Rank) -> None:
    """A collective takes one program where it begins and one where it returns, a Send or Recv a small one alone.

    In a uprobe session the one for the return runs at the beginning too.
    """
    each = 2 if sessions.places() else 1
    rank.run("c = init(0, 2, b'a')")
    assert {"on_group": 0, "on_message": 0, "on_collective": 9, "on_return": 9 * each} == runs(
        observed, rank, "for i in range(9): reduce_all(c, 1)"
    )
    group = "lib.ncclGroupStart()\nfor i in range(64): lib.ncclSend(None, size(1), 7, 1, c, None)\nlib.ncclGroupEnd()"
    assert {"on_group": 1, "on_message": 64, "on_collective": 1, "on_return": each} == runs(observed, rank, group)
    assert 64 == observed.value(CALLS, rank.pid, collective="Send")
    assert 1 == observed.value("nccl_groups_total", rank.pid)
    assert [] == observed.kernel("peers", rank.pid)
    enqueued = {dict(labels)["collective"] for labels in observed.values("nccl_enqueue_seconds", rank.pid)}
    assert {"AllReduce", "GroupEnd"} == enqueued


def test_the_time_of_a_group(observed: NcclNode, rank: Rank) -> None:
    """The newest call is known of a process that only sends, in groups and without."""
    for lines in ("lib.ncclGroupStart(); {0}; lib.ncclGroupEnd()", "{0}"):
        began = time.time()
        rank.run("c = init(0, 2, b'a'); " + lines.format("lib.ncclSend(None, size(1), 7, 1, c, None)"))
        assert began - 1 <= observed.value("nccl_last_call_timestamp_seconds", rank.pid) <= time.time() + 1


CHANGES = 40
LOOP = """
made, over = 0, False
def loop():
    global made
    while not over:
        reduce_all(c, 1)
        made += 1
looping = threading.Thread(target=loop); looping.start()
"""


def test_return_probes_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls count once, though a process that forbids return probes begins and ends to use the library."""
    build_standins()
    with observe() as observed, started(observed, Rank()) as rank:
        rank.run("c = init(0, 2, b'a'); reduce_all(c, 1)")
        path = str(BUILD / "libnccl.so.2")
        [probed] = [it for it in observed.collector.probes.present() if it.hooked.library.path == path]
        rank.run(LOOP)
        states = set()
        for change in range(CHANGES):
            probed.hooked.review(bool(change % 2), "this is a test")
            states.add(probed.hooked.refused)
        made = rank.run("over = True; looping.join(); out = made")
        assert {False, True} == states
        assert made + 1 == observed.value(CALLS, rank.pid, collective="AllReduce")


def test_a_call_whose_return_is_not_seen() -> None:
    """A call under way when return probes are withdrawn is not in flight for ever, and hides none of those inside."""
    build_standins()
    with observe() as observed, started(observed, Rank()) as rank:
        path = str(BUILD / "libnccl.so.2")
        [probed] = [it for it in observed.collector.probes.present() if it.hooked.library.path == path]
        rank.run("c = init(0, 2, b'a')" + ENDS_STALL)
        rank.begin("lib.standin_stall(c_uint64(600 * 10**9)); reduce_all(c, 1)")
        until(lambda: observed.value("nccl_calls_in_flight", rank.pid) == 1, "in flight")
        for allowed in (False, True):
            probed.hooked.review(allowed, "this is a test")
        assert 0 == observed.value("nccl_calls_in_flight", rank.pid)
        end_stall(rank)
        assert 0 == observed.value("nccl_calls_in_flight", rank.pid)
        rank.run("for i in range(22): reduce_all(c, 1)")
        assert 23 == observed.value(CALLS, rank.pid, collective="AllReduce")
