"""NCCL before 2.18, which keeps no hash: a communicator is known by the id that its ranks were given, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from exporter.model import Span
from tests.bpf.fixtures import once
from tests.bpf.nccl_node import BUILD, NcclNode, Rank, build_standins, observe, started
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="NCCL calls and bytes", on="stand-in")]

NCCL = BUILD / "nccl-2.14" / "libnccl.so.2"
INFO, ANONYMOUS = "nccl_communicator_info", "nccl_collective_anonymous_calls_total"
RANK_AT = 6056 + 8
_IDS = [bytes(range(1, 129)), bytes(255 - n for n in range(128))]  # also bytes above 127, which are negative chars


def hash_of(name: bytes) -> str:
    """Return what NCCL's getHash computes of an id, in the form of the label."""
    value = 5381
    for byte in name.ljust(128, b"\0"):
        value = (value * 33 & (1 << 64) - 1) ^ (byte - 256 * (byte > 127)) & (1 << 64) - 1
    return f"{value:016x}"


observed = once(partial(observe, spans_per_second=100_000))


@contextmanager
def ranks(observed: NcclNode, count: int, init: str) -> Iterator[list[Rank]]:
    with ExitStack() as stack:
        made = [stack.enter_context(started(observed, Rank(NCCL))) for _ in range(count)]
        for number, rank in enumerate(made):
            rank.run(init.format(number, count))
        yield made


def members(observed: NcclNode, rank: Rank) -> list[tuple[str, str, str, str]]:
    """Return hash, rank, size and device of each communicator of a process."""
    labels = [dict(it) for it in observed.values(INFO, rank.pid)]
    return sorted((it["comm_hash"], it["rank"], it["nranks"], it.get("cuda_device", "")) for it in labels)


def spans(observed: NcclNode, rank: Rank, name: str = "AllReduce") -> list[Span]:
    return [it for it in observed.spans_of(rank.pid) if it.name == name]


@pytest.mark.parametrize("name", [b"job", *_IDS])
def test_all_ranks_share_hash_and_traces(observed: NcclNode, name: bytes) -> None:
    """Each rank has the hash of the id, its rank and size; the 23 collectives are 23 traces of all ranks."""
    with ranks(observed, 3, f"c = init({{0}}, {{1}}, bytes.fromhex('{name.hex()}'))") as job:
        for rank in job:
            rank.run("for i in range(23): reduce_all(c, 1)")
        for number, rank in enumerate(job):
            assert [(hash_of(name), str(number), "3", str(number))] == members(observed, rank)
            assert not observed.value(ANONYMOUS, rank.pid, collective="AllReduce")
            until(lambda rank=rank: len(spans(observed, rank)) == 23, "23 spans")
        traces = [[it.trace_id for it in spans(observed, rank)] for rank in job]
        assert traces[0] == traces[1] == traces[2] and 23 == len(set(traces[0]))


def test_in_a_group(observed: NcclNode) -> None:
    """PyTorch makes communicators in a group; until the first call the GPU is not known."""
    init = "lib.ncclGroupStart(); c = init({0}, {1}, b'group'); lib.ncclGroupEnd()"
    with ranks(observed, 2, init) as (_, rank):
        assert [(hash_of(b"group"), "1", "2", "")] == members(observed, rank)
        rank.run("reduce_all(c, 1)")
        assert [(hash_of(b"group"), "1", "2", "1")] == members(observed, rank)


def test_another_at_the_same_address(observed: NcclNode) -> None:
    """A communicator that was destroyed gives its name to no other, and one without an id has none."""
    with ranks(observed, 2, "c = init({0}, {1}, b'first'); reduce_all(c, 1); d = init({0}, {1}, b'beside')") as job:
        rank = job[1]
        rank.run("lib.ncclCommDestroy(c); c = init(1, 2, b'second'); reduce_all(c, 1)")
        found = {it for it, *_ in members(observed, rank)}
        assert {hash_of(b"second"), hash_of(b"beside")} == found
        rank.run(
            "lib.ncclCommDestroy(d); lib.ncclCommDestroy(c)\n"
            "comms = (c_void_p * 2)(); lib.ncclCommInitAll(comms, 2, None)\n"
            "for _ in range(23): reduce_all(c_void_p(comms[1]), 1)"
        )
        assert [] == members(observed, rank)
        assert 23 == observed.value(ANONYMOUS, rank.pid, collective="AllReduce")
        until(lambda: len(spans(observed, rank, "Destroy")) == 3, "3 spans")
        names = {hash_of(it) for it in (b"first", b"second", b"beside")}
        assert names == {it.attributes["nccl.comm"] for it in spans(observed, rank, "Destroy")}


def test_memory_that_contradicts(observed: NcclNode) -> None:
    """If rank and size in memory differ from those at the communicator's creation, the identity is not trusted."""
    with ranks(observed, 2, "c = init({0}, {1}, b'contradicted')") as (rank, _):
        rank.run(
            f"kept = c_int.from_address(c.value + {RANK_AT}); kept.value = 1\n"
            "for _ in range(23): reduce_all(c, 1)\nkept.value = 0; reduce_all(c, 1)"
        )
        assert 23 == observed.value(ANONYMOUS, rank.pid, collective="AllReduce")
        assert 24 == observed.value("nccl_collective_calls_total", rank.pid, collective="AllReduce")


def test_made_before_the_exporter() -> None:
    """Nobody saw the id: calls are counted, and the communicator has no name."""
    build_standins()
    with Rank(NCCL) as rank:
        rank.run("c = init(0, 2, b'before')")
        with observe() as late, started(late, rank):
            rank.run("for _ in range(23): reduce_all(c, 1)")
            assert 23 == late.value("nccl_collective_calls_total", rank.pid, collective="AllReduce")
            assert 23 == late.value(ANONYMOUS, rank.pid, collective="AllReduce")
            assert [] == members(late, rank)
