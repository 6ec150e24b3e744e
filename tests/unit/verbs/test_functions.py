"""Names and places of the calls of queue pairs and completion queues: the header's, and the BPF program's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exporter.verbs.functions import CQ_CALLS, HITS, POLLED, POSTING, PROVIDED, QP_CALLS, extended_hooks, names

HEADER = Path("/usr/include/infiniband/verbs.h")
BPF = Path(__file__).parents[3] / "bpf"


def pointers(struct: str) -> list[str]:
    """The function pointers of a struct of the header, in their order."""
    if not HEADER.exists():
        pytest.skip("libibverbs-dev (Debian package) is not installed")
    body = re.search(rf"^struct {struct} {{\n(.*?)^}};", HEADER.read_text(), re.DOTALL | re.MULTILINE)
    assert body
    return re.findall(r"\(\*(\w+)\)\(struct ibv_", body[1])


def test_calls_are_those_of_the_header() -> None:
    """In their order; the header of this machine may have fewer or more at the end."""
    for calls, struct in ((QP_CALLS, "ibv_qp_ex"), (CQ_CALLS, "ibv_cq_ex")):
        theirs = pointers(struct)
        assert len(theirs) >= 8
        assert calls[: len(theirs)] == tuple(theirs[: len(calls)])


def test_places_are_those_of_the_program() -> None:
    """Numbers in bpf/verbs/learn.bpf.h and bpf/verbs/verbs.h equal the positions in the tables here."""
    text = (BPF / "verbs/learn.bpf.h").read_text()
    placed = {name: int(place) for name, place in re.findall(r"\bcall_(\w+) = (\d+)", text)}
    named = {call.removeprefix("wr_"): place for place, call in enumerate(QP_CALLS)}
    assert len(placed) >= 10
    for name, place in placed.items():
        assert place == (CQ_CALLS.index(name) if name in CQ_CALLS else named[name])
    for calls, most in ((QP_CALLS, "qp_calls"), (CQ_CALLS, "cq_calls")):
        assert f"{most} = {len(calls)}," in text
    hits = (BPF / "verbs/hits.h").read_text()
    assert f"hit_extended_poll = {HITS.index(CQ_CALLS[0])}, hits_most = {len(HITS)} " in hits
    assert HITS[3] == QP_CALLS[0]


def test_what_posts_and_what_polls() -> None:
    """Every builder and setter of bytes is probed; what polls is not probed with the rest."""
    unprobed = set(QP_CALLS) - extended_hooks().keys()
    assert {"wr_set_ud_addr", "wr_set_xrc_srqn"} == unprobed
    assert not POLLED.keys() & extended_hooks().keys()
    assert POLLED.keys() | extended_hooks().keys() | {"post_send", "post_recv", "create_qp_ex"} == PROVIDED
    assert {"post_send#8", "wr_rdma_write", "wr_complete#2"} <= POSTING
    assert not POSTING & {name for op in POLLED for name in names(op)}
