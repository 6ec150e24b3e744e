"""Meetings of the ranks of a node: unused rows are removed, a call without a row has no lag, lags cannot be forged."""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from exporter.bpf.libbpf import BpfError
from exporter.bpf.maps import Map
from tests.bpf.nccl_node import NcclNode, Rank, build_standins, observe, started
from tests.support import until

pytestmark = pytest.mark.needs_bpf

LAG, BEHIND = "nccl_rank_arrival_lag_seconds", "nccl_rank_calls_behind"
FULL = "accel_exporter_map_full_total"
ALL_TO_ALL = "lib.ncclAlltoAll(None, None, size(1), 7, c, None)"


@pytest.fixture
def observed() -> Iterator[NcclNode]:
    build_standins()
    with observe(message_spans=True) as observed:
        yield observed


@contextmanager
def ranks(observed: NcclNode, count: int, name: str) -> Iterator[list[Rank]]:
    with ExitStack() as stack:
        made = [started(observed, stack.enter_context(Rank())) for _ in range(count)]
        for number, rank in enumerate(made):
            rank.run(f"c = init({number}, {count}, b'{name}')")
        yield made


def meetings(observed: NcclNode) -> Map:
    return observed.collector.object.maps["meetings"]


def hashes(observed: NcclNode, *job: Rank) -> set[int]:
    return {it.who.hash for rank in job for it in observed.kernel("communicators", rank.pid)}


def rows(observed: NcclNode, of: set[int]) -> int:
    """The rows of these communicators: there may be other jobs on the machine."""
    return sum(key.hash in of for key, _ in meetings(observed).items())


def lags(observed: NcclNode, job: list[Rank]) -> list[int]:
    """Return the number of compared calls of each rank; 0 for a rank without a series."""
    return [sum(lag.counts) if (lag := observed.value(LAG, rank.pid)) else 0 for rank in job]


def test_rows_are_removed(observed: NcclNode) -> None:
    """The last rank that destroys its communicator, or dies with it, takes its rows along."""
    with ranks(observed, 3, "removed") as job:
        for rank in job:
            rank.run("reduce_all(c, 1); " + ALL_TO_ALL)
        ours = hashes(observed, *job)
        assert 2 == rows(observed, ours)
        job[0].run("lib.ncclCommDestroy(c)")
        assert 2 == rows(observed, ours)
        job[1].process.kill()
        until(lambda: job[1].pid not in observed.collector.ledger, "the end noticed")
        assert 2 == rows(observed, ours)
        job[2].run("lib.ncclCommAbort(c)")
        assert 0 == rows(observed, ours)
        assert [0, 0] == [it.meetings for rank in (job[0], job[2]) for it in observed.kernel("held", rank.pid)]


def test_ranks_that_die_at_once(observed: NcclNode) -> None:
    """Nothing is left of a job that was killed."""
    with ranks(observed, 3, "killed") as job:
        for rank in job:
            rank.run("reduce_all(c, 1)")
        ours = hashes(observed, *job)
        assert 1 == rows(observed, ours)
        for rank in job:
            rank.process.kill()
        until(lambda: not any(rank.pid in observed.collector.ledger for rank in job), "the end noticed")
        assert 0 == rows(observed, ours)


def test_without_room_there_is_no_lag(observed: NcclNode) -> None:
    """Without room a lag is absent, not 0; and of the first calls with room too, which others may have made before."""
    table = meetings(observed)
    with suppress(BpfError):  # full
        for comm_hash in range(table.max_entries + 1):
            table.set(table.key(hash=comm_hash + 1, nranks=2), table.value())
    with ranks(observed, 2, "full") as job:
        for rank in job:
            rank.run("for i in range(20): reduce_all(c, 1)")
        assert [0, 0] == lags(observed, job)
        assert 40 <= observed.value(FULL, map="nccl_meetings")
        for comm_hash in range(table.max_entries):
            table.delete(table.key(hash=comm_hash + 1, nranks=2))
        time.sleep(0.3)  # a map that was full is tried again after a while
        for rank in reversed(job):
            rank.run("for i in range(128): reduce_all(c, 1)")
        assert [0, 0] == lags(observed, job)
        for rank in job:
            rank.run("for i in range(23): reduce_all(c, 1)")
        assert [23, 23] == lags(observed, job)


def test_a_second_communicator_of_one_hash(observed: NcclNode) -> None:
    """Before NCCL 2.24 splits can have one: while there are two, and after there were, numbers are of no use."""
    with ranks(observed, 2, "reused") as job:
        for rank in job:
            rank.run("reduce_all(c, 1); reduce_all(c, 1)")
        for number, rank in enumerate(job):
            rank.run(f"d = init({number}, 2, b'reused'); reduce_all(c, 1); reduce_all(d, 1)")
        assert [2, 2] == lags(observed, job)
        assert {} == observed.values(BEHIND, job[0].pid)


def test_a_communicator_made_again(observed: NcclNode) -> None:
    """A communicator of the hash of one that was destroyed is not compared: others may still call on theirs."""
    with ranks(observed, 2, "again") as job:
        for rank in job:
            rank.run("reduce_all(c, 1)")
        job[0].run("lib.ncclCommDestroy(c); c = init(0, 2, b'again'); reduce_all(c, 1); reduce_all(c, 1)")
        assert [1, 1] == lags(observed, job)


def test_another_user_cannot_make_a_rank_late(observed: NcclNode) -> None:
    """A process of another user with the hash of a job's communicator is not compared with the job's."""
    with ranks(observed, 3, "job") as (first, second, stranger):
        stranger.run("os.setuid(65534); c = init(1, 3, b'job')\nfor i in range(9): reduce_all(c, 1)")
        assert {} == observed.values(LAG, first.pid)
        for rank in (first, second):
            rank.run("reduce_all(c, 1)")
        assert [1, 1, 0] == lags(observed, [first, second, stranger])
        assert 0 == observed.value(LAG, first.pid).sum
        assert 0 == observed.value(BEHIND, first.pid)


@contextmanager
def hierarchy(folder: Path) -> Iterator[Path]:
    """The hierarchy of cgroups, mounted once more."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "cgroup2", "none", folder], check=True)
    made = [folder / "test-nccl", *(folder / "test-nccl" / job for job in ("one", "two"))]
    made += [job / step for job in made[1:] for step in ("job", "job/step-a", "job/step-b")]
    try:
        for group in made:
            group.mkdir()
        yield made[0]
    finally:
        for group in reversed(made):
            group.rmdir()
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("across", [False, True])
def test_jobs_of_one_user(across: bool, tmp_path: Path) -> None:
    """Processes of one job are compared, whichever steps they are in; those of another only if that is set."""
    build_standins()
    with hierarchy(tmp_path / "cgroups") as groups, observe(compare_across_containers=across) as observed:
        with ranks(observed, 3, "jobs") as job:
            for rank, group in zip(job, ("one/job/step-a", "one/job/step-b", "two/job/step-a"), strict=True):
                (groups / group / "cgroup.procs").write_text(str(rank.pid))
            for number, rank in enumerate(job):
                rank.run(f"lib.ncclCommDestroy(c); c = init({number}, 3, b'moved'); reduce_all(c, 1)")
            assert [1, 1, int(across)] == lags(observed, job)
        until(lambda: not any(rank.pid in observed.collector.ledger for rank in job), "the end noticed")


def test_a_process_has_a_share_of_the_peers(observed: NcclNode) -> None:
    """One that makes up ranks to send to fills an eighth of the table, and not what others need."""
    with ranks(observed, 2, "peers") as (greedy, modest):
        greedy.run("for peer in range(9000): lib.ncclSend(None, size(1), 7, peer, c, None)")
        assert 65536 // 8 == len(observed.kernel("peers", greedy.pid))
        assert 9000 - 65536 // 8 <= observed.value(FULL, map="nccl_peers")
        modest.run("lib.ncclSend(None, size(1), 7, 0, c, None)")
        assert 1 == len(observed.kernel("peers", modest.pid))
        greedy.run("lib.ncclCommDestroy(c)")
        assert [0] == [it.peers for it in observed.kernel("held", greedy.pid)]


FORGE = """
import mmap
page = mmap.mmap(-1, 1 << 20); at = ctypes.addressof(c_char.from_buffer(page))
for i in range(1100):
    here = at + 64 * i
    ctypes.memset(here + 246944, 0, 24)
    c_uint64.from_address(here).value = 0x0280028002800280; c_uint64.from_address(here + 246944).value = i + 1
    c_int.from_address(here + 246956).value = 2
    lib.ncclAllReduce(None, None, size(1), 7, 0, c_void_p(here), None)
"""


def test_a_process_has_a_share_of_the_communicators(observed: NcclNode) -> None:
    """One that forges them fills an eighth of the table, and no more of the meetings."""
    with ranks(observed, 2, "share") as (greedy, modest):
        greedy.run(FORGE)
        assert 8192 // 8 == len(observed.kernel("communicators", greedy.pid))
        assert observed.value(FULL, map="nccl_communicators") >= 70
        assert 1 == len(observed.kernel("communicators", modest.pid))


def test_a_process_has_a_share_of_the_meetings(observed: NcclNode) -> None:
    """One with many communicators takes an eighth of the rows; when it ends they are all free again."""
    with ranks(observed, 1, "meetings") as (greedy,):
        greedy.run("for i in range(300): reduce_all(init(0, 2, b'%d' % i), 1)")
        ours = hashes(observed, greedy)
        assert (301, 2048 // 8) == (len(ours), rows(observed, ours))
        assert 300 - 2048 // 8 <= observed.value(FULL, map="nccl_meetings")
    until(lambda: rows(observed, ours) == 0, "the end noticed")


def test_a_process_has_a_share_of_the_lags(observed: NcclNode) -> None:
    """One that makes communicator after communicator fills an eighth of the table."""
    with ranks(observed, 2, "lags") as (greedy, modest):
        greedy.run("for i in range(600): d = init(0, 2, b'%d' % i); reduce_all(d, 1); lib.ncclCommDestroy(d)")
        assert 4096 // 8 == len(observed.kernel("lags", greedy.pid))
        assert 600 - 4096 // 8 <= observed.value(FULL, map="nccl_lags")
        modest.run("for i in range(129): reduce_all(c, 1)")  # the first 128 may have none: there was no room before
        assert 1 == len(observed.kernel("lags", modest.pid))


def test_a_process_has_a_share_of_the_errors(observed: NcclNode) -> None:
    """One that makes up codes of errors fills an eighth of the table, and not what others need."""
    with ranks(observed, 2, "errors") as (greedy, modest):
        fail = "lib.standin_fail(b'ncclAllReduce', {}); reduce_all(c, 1)"
        greedy.run(f"for code in range(100, 5100): {fail.format('code')}")
        assert 4096 // 8 == len(observed.kernel("errors", greedy.pid))
        assert 5000 - 4096 // 8 <= observed.value(FULL, map="nccl_errors")
        modest.run(fail.format(3))
        assert [1] == [it.calls for it in observed.kernel("errors", modest.pid)]


def test_a_refused_call_is_no_arrival(observed: NcclNode) -> None:
    """The rank that calls after another was refused is the first one; the refused one is as late as its second call."""
    with ranks(observed, 2, "refused") as (refused, steady):
        for rank in (refused, steady):
            rank.run("reduce_all(c, 1)")
        before = observed.value(LAG, steady.pid).sum
        refused.run("lib.standin_fail(b'ncclAllReduce', 3); reduce_all(c, 1); lib.standin_fail(None, 0)")
        time.sleep(0.3)
        steady.run("reduce_all(c, 1)")
        assert before == observed.value(LAG, steady.pid).sum
        time.sleep(0.3)
        refused.run("reduce_all(c, 1)")
        assert observed.value(LAG, refused.pid).sum >= 0.3


def test_the_table_is_small() -> None:
    """A row is no more than an eighth of what it was when the table was full with 512."""
    build_standins()
    with observe() as observed:
        table = meetings(observed)
        assert table.max_entries >= 2048 and table.max_entries * ctypes.sizeof(table.value) <= 3 << 20
