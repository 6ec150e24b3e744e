"""NCCL as PyTorch 1.13's wheel has it, in several processes on soft GPUs: the exporter shows what they called."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.e2e.test_otlp import attributes
from tests.gpu.machine import Exporter
from tests.real.comparison import LAUNCHES, counted, seen
from tests.real.conftest import EXACT, Keeper, Ran, followed
from tests.real.job import Job
from tests.real.releases import NCCL, Release
from tests.standins.otlp_sink import HttpSink
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="NCCL calls and bytes", on="real program on a stand-in"),
    pytest.mark.evidence(feature="NCCL errors", on="real program on a stand-in"),
    pytest.mark.evidence(feature="NCCL communicators in memory", on="real program on a stand-in"),
    pytest.mark.evidence(feature="traces of collectives", on="real program on a stand-in"),
]

SOFTWARE = (NCCL,)
CALLS, BYTES, BUS = (f"nccl_collective_{it}_total" for it in ("calls", "bytes", "bus_bytes"))
ANONYMOUS, GROUPS, INFO = "nccl_collective_anonymous_calls_total", "nccl_groups_total", "nccl_communicator_info"
ERRORS, IN_FLIGHT = "nccl_errors_total", "nccl_calls_in_flight"
ROUNDS, ELEMENTS = 23, 1 << 16
COLLECTIVES = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce")
RANK = f"""
import ctypes as C
from pathlib import Path
nccl = C.CDLL(str(Path(torch.__file__).parent / 'lib' / 'libtorch_cuda_cpp.so'))
cudart = C.CDLL('libcudart-e409450e.so.11.0')
class Id(C.Structure): _fields_ = [('bytes', C.c_char * 128)]
nccl.ncclCommInitRank.argtypes = [C.c_void_p, C.c_int, Id, C.c_int]
def ok(result): assert not result, result
def new_id():
    made = Id(); ok(nccl.ncclGetUniqueId(C.byref(made))); return bytes(made).hex()
comm, stream, data, n = C.c_void_p(), C.c_void_p(), C.c_void_p(), C.c_size_t({ELEMENTS})
def prepare(rank, ranks):
    global me, of
    me, of = rank, ranks
    ok(cudart.cudaSetDevice(rank)); ok(cudart.cudaStreamCreate(C.byref(stream)))
    ok(cudart.cudaMalloc(C.byref(data), C.c_size_t(4 * {ELEMENTS} * ranks)))
def begin(id, grouped=True):  # PyTorch does it in a group
    if grouped: ok(nccl.ncclGroupStart())
    ok(nccl.ncclCommInitRank(C.byref(comm), of, Id.from_buffer_copy(bytes.fromhex(id)), me))
    if grouped: ok(nccl.ncclGroupEnd())
def all_reduce(): ok(nccl.ncclAllReduce(data, data, n, 7, 0, comm, stream))
def exchange():
    ok(nccl.ncclGroupStart())
    ok(nccl.ncclSend(data, n, 7, (me + 1) % of, comm, stream))
    ok(nccl.ncclRecv(data, n, 7, (me - 1) % of, comm, stream))
    ok(nccl.ncclGroupEnd())
def each():
    all_reduce(); ok(nccl.ncclAllGather(data, data, n, 7, comm, stream))
    ok(nccl.ncclReduceScatter(data, data, n, 7, 0, comm, stream))
    ok(nccl.ncclBroadcast(data, data, n, 7, 0, comm, stream))
    ok(nccl.ncclReduce(data, data, n, 7, 0, 0, comm, stream)); exchange()
def wait(): ok(cudart.cudaStreamSynchronize(stream))
error, failed = C.c_int(), 0
def fail():
    global failed
    failed += 1
    assert nccl.ncclCommGetAsyncError(None, C.byref(error)) == 4
"""


@pytest.fixture(scope="module")
def sink() -> Iterator[HttpSink]:
    with closing(HttpSink()) as sink:
        yield sink


@pytest.fixture(scope="module")
def exporter(keeper: Keeper, sink: HttpSink) -> Iterator[Exporter]:
    push = (f"--otlp.endpoint={sink.endpoint}", "--otlp.spans-per-second=0", "--collector.nccl.spans-per-second=100000")
    with Exporter((EXACT, *push), dict(os.environ)) as exporter:
        exporter.until(lambda: keeper.observed(exporter), "the soft driver was not probed")
        yield exporter


@contextmanager
def ranks(exporter: Exporter, release: Release, folder: Path, count: int) -> Iterator[list[Job]]:
    """Processes with NCCL that is probed at calls and returns, none of them in a communicator yet."""
    environment = {"NCCL_SOCKET_IFNAME": "lo", "SOFTGPU_DEVICES": count}
    with ExitStack() as stack:
        jobs = [stack.enter_context(Job(release, folder, **environment)) for _ in range(count)]
        for rank, job in enumerate(jobs):
            job.run(f"{RANK}\nprepare({rank}, {count})")
            followed(exporter, job)

            def returns(job: Job = job) -> bool:
                job.run("fail()")
                return bool(exporter.scrape().total(ERRORS, pid=str(job.pid)))

            exporter.until(returns, "NCCL was not probed")
        yield jobs


def together(jobs: list[Job], lines: str) -> None:
    """Executes lines in all ranks at once."""
    for job in jobs:
        job.begin(lines)
    for job in jobs:
        job.answer()


def connect(jobs: list[Job]) -> None:
    """All ranks are in one communicator."""
    together(jobs, f"begin('{jobs[0].run('out = new_id()')}')")


def shown(exporter: Exporter, metric: str, job: Job) -> dict[str, float]:
    """Return the values of a rank's metric by collective, without zeros."""
    found = exporter.scrape().by("collective", metric, pid=str(job.pid))
    return {collective: value for collective, value in found.items() if value}


@pytest.mark.parametrize("count", [2, 4])
def test_collectives(release: Release, exporter: Exporter, folder: Path, sink: HttpSink, ran: Ran, count: int) -> None:
    """23 rounds of five collectives and a ring of Send and Recv, on 2 and 4 ranks: each call is one trace of all."""
    size = 4 * ELEMENTS
    with ranks(exporter, release, folder, count) as jobs:
        connect(jobs)
        together(jobs, f"for _ in range({ROUNDS}): each()\nwait()")
        bus = {"AllReduce": 2 * size * (count - 1) / count, "AllGather": size * (count - 1)}
        bus |= {"ReduceScatter": bus["AllGather"]}
        every, hashes = (*COLLECTIVES, "Send", "Recv"), set()
        for rank, job in enumerate(jobs):
            assert dict.fromkeys(every, ROUNDS) == shown(exporter, CALLS, job)
            assert dict.fromkeys(every, ROUNDS * size) == shown(exporter, BYTES, job)
            assert {it: ROUNDS * int(bus.get(it, size)) for it in every} == shown(exporter, BUS, job)
            assert {} == shown(exporter, ANONYMOUS, job)
            page, of = exporter.scrape(), {"pid": str(job.pid)}
            assert ROUNDS + 1 == page.total(GROUPS, **of)
            ((labels, _),) = page.rows(INFO, **of)
            assert (str(rank), str(count), str(rank)) == (labels["rank"], labels["nranks"], labels["cuda_device"])
            assert ROUNDS * 6 == page.total(LAUNCHES, **of)  # of NCCL's kernels, one for each group
            equal_to_driver(exporter, job)
            hashes.add(labels["comm_hash"])
        assert 1 == len(hashes)
        moved = ROUNDS * size * len(every)
        ran.note(
            f"{count} ranks, of each {ROUNDS * len(every)} calls of {len(every)} collectives, {moved:,} bytes, "
            f"{ROUNDS * 6} launches"
        )
        one_trace_of_all_ranks(sink, jobs)


def equal_to_driver(exporter: Exporter, job: Job) -> None:
    """Numbers of CUDA are those of the soft driver, but that it knows more of other ranks' memory and of host memory.

    Memory that is another process's is no usage. A copy that names no direction, from host memory that nobody
    allocated, is of an unknown way: the address may be another process's memory.
    """
    expected, found = counted(job.counts), seen(exporter.scrape(), job.pid)
    assert expected["memory"].pop("imported", 0)
    assert sum(expected.pop("copies").values()) == sum(found.pop("copies").values())
    assert expected == found


def one_trace_of_all_ranks(sink: HttpSink, jobs: list[Job]) -> None:
    """Of each call of a collective there is a span from each rank, all of one trace."""
    spans: dict[tuple[str, int], dict[int, bytes]] = {}

    def arrived() -> bool:
        spans.clear()
        for request in list(sink.traces):
            for resource in request.resource_spans:
                for span in (span for scope in resource.scope_spans for span in scope.spans):
                    of = attributes(span)
                    if str(of.get("process.pid")) in {str(job.pid) for job in jobs} and span.name in COLLECTIVES:
                        spans.setdefault((span.name, of["nccl.sequence"]), {})[of["nccl.rank"]] = span.trace_id
        return sum(len(it) for it in spans.values()) == ROUNDS * len(COLLECTIVES) * len(jobs)

    until(arrived, lambda: f"{sum(len(it) for it in spans.values())} spans")
    assert {(name, n) for name in COLLECTIVES for n in range(ROUNDS)} == spans.keys()
    assert all(len(jobs) == len(it) and 1 == len(set(it.values())) for it in spans.values())


def test_a_rank_is_missing(release: Release, exporter: Exporter, folder: Path, ran: Ran) -> None:
    """A late rank: the other rank is in flight in Init, then in a group of Send and Recv, until it arrives."""
    with ranks(exporter, release, folder, 2) as (first, second):
        made, took = first.run("out = new_id()"), list[float]()
        for lines in (f"begin('{made}', grouped=False)", "exchange()"):
            first.begin(lines)
            exporter.until(lambda: in_flight(exporter, first) == 1, "nothing is in flight")
            time.sleep(2)
            assert (1, 0) == (in_flight(exporter, first), in_flight(exporter, second))
            took.append(second.run(f"begun = time.monotonic(); {lines}; out = time.monotonic() - begun"))
            first.answer()
            assert (0, 0) == (in_flight(exporter, first), in_flight(exporter, second))
        page = exporter.scrape()
        operations = ("nccl_communicator_operation_seconds", "nccl_enqueue_seconds")
        for operation, of_second in zip(operations, took, strict=True):
            assert 2 < (page.total(f"{operation}_sum", pid=str(first.pid)) or 0) < 30
            assert (page.total(f"{operation}_sum", pid=str(second.pid)) or 0) <= of_second
        assert {"Send": 1, "Recv": 1} == shown(exporter, CALLS, first) == shown(exporter, CALLS, second)
        ran.note("1 call in flight for 2 s, twice")


def in_flight(exporter: Exporter, job: Job) -> float | None:
    return exporter.scrape().total(IN_FLIGHT, pid=str(job.pid))


def test_killed(release: Release, exporter: Exporter, folder: Path, ran: Ran) -> None:
    """kill -9 of a rank in the middle: its counts stay, its communicator ends, the other rank's counts continue."""
    with ranks(exporter, release, folder, 2) as (first, second):
        connect([first, second])
        together([first, second], f"for _ in range({ROUNDS}): each()\nwait()")
        second.begin("while True: all_reduce(); time.sleep(0.001)")
        until(lambda: shown(exporter, CALLS, second)["AllReduce"] > 3 * ROUNDS, "rank 1 goes on")
        second.kill()
        launched = second.counts.calls("cuLaunchKernel")
        until(lambda: not exporter.scrape().total(INFO, pid=str(second.pid)), "its communicator is gone")
        calls = shown(exporter, CALLS, second)
        assert {it: ROUNDS for it in (*COLLECTIVES, "Send", "Recv") if it != "AllReduce"} == {
            it: count for it, count in calls.items() if it != "AllReduce"
        }
        # A call is counted where it begins, a launch by the driver inside it: the end may have come between them.
        assert 0 <= calls["AllReduce"] - (launched - 5 * ROUNDS) <= 1
        assert 1 == exporter.scrape().total(INFO, pid=str(first.pid))
        first.run(f"for _ in range({ROUNDS}): all_reduce()")
        assert 2 * ROUNDS == shown(exporter, CALLS, first)["AllReduce"]
        ran.note(f"{int(sum(calls.values()))} calls of the rank that was killed")


def test_refusals(release: Release, exporter: Exporter, folder: Path, ran: Ran) -> None:
    """Calls that NCCL refuses, 23 of each: a type that does not exist, no communicator, a rank beyond the last."""
    with ranks(exporter, release, folder, 2) as jobs:
        connect(jobs)
        first = jobs[0]
        before = first.run("out = failed")
        first.run(
            f"for _ in range({ROUNDS}):\n"
            "    assert nccl.ncclAllReduce(data, data, n, 99, 0, comm, stream) == 4\n"
            "    assert nccl.ncclBroadcast(data, data, n, 7, 0, None, stream) == 4\n"
            "    assert nccl.ncclCommInitRank(C.byref(C.c_void_p()), 2, Id(), 2) == 4\n"
        )
        errors = exporter.scrape().by("api", ERRORS, pid=str(first.pid), code="4")
        refused = {"ncclAllReduce": ROUNDS, "ncclBroadcast": ROUNDS, "ncclCommInitRank": ROUNDS}
        assert {**refused, "ncclCommGetAsyncError": before} == errors
        assert {"AllReduce": ROUNDS, "Broadcast": ROUNDS} == shown(exporter, CALLS, first)
        assert {"Broadcast": ROUNDS} == shown(exporter, ANONYMOUS, first)
        ran.note(f"{3 * ROUNDS} errors of 3 functions")
