"""Hooks at functions of libibverbs and of providers, and those that are attached in windows.

A provider's functions have the names of the members of struct verbs_context_ops, ibv_qp_ex and ibv_cq_ex; further
versions in one file are numbered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.bpf.btf import Btf
from exporter.bpf.hook import Hook
from exporter.verbs import control

CREATE, ALLOC_PD, MODIFY = "create_qp_ex", "ibv_alloc_pd", "ibv_modify_qp"
"""ALLOC_PD is the first call that a program makes on a context; without MODIFY no queue pair can post."""

QP_CALLS = (
    *("wr_atomic_cmp_swp", "wr_atomic_fetch_add", "wr_bind_mw", "wr_local_inv", "wr_rdma_read", "wr_rdma_write"),
    *("wr_rdma_write_imm", "wr_send", "wr_send_imm", "wr_send_inv", "wr_send_tso", "wr_set_ud_addr"),
    *("wr_set_xrc_srqn", "wr_set_inline_data", "wr_set_inline_data_list", "wr_set_sge", "wr_set_sge_list"),
    *("wr_start", "wr_complete", "wr_abort", "wr_atomic_write", "wr_flush"),
)
"""The pointers of struct ibv_qp_ex (infiniband/verbs.h), in their order."""
CQ_CALLS = (
    *("start_poll", "next_poll", "end_poll", "read_opcode", "read_vendor_err", "read_byte_len", "read_imm_data"),
    "read_qp_num",
)
"""The first pointers of struct ibv_cq_ex, in their order."""
HITS = ("post_send", "post_recv", "poll_cq", *QP_CALLS, *CQ_CALLS)
"""By enum hit of bpf/verbs/verbs.h."""

_VERSIONS = 8
"""Versions of one function in a file that are probed at most."""
VERSIONS_OF_A_USER = _VERSIONS // 2
"""Versions of a function that are probed at most because the processes of one user call them."""
_PLACE = 16
"""Bits of a cookie below the place of a call (bpf/verbs/extended.h)."""
_SETTERS = ("wr_set_inline_data", "wr_set_inline_data_list", "wr_set_sge", "wr_set_sge_list")
_NOT_PROBED = ("wr_set_ud_addr", "wr_set_xrc_srqn")
_OWN = {"wr_start": "extended_start", "wr_abort": "extended_abort"} | dict.fromkeys(_SETTERS, "extended_set")


@dataclass(frozen=True, slots=True)
class PollHook:
    """Programs that run at a function that polls. `cookie` is added to the cookie of the probe's placement."""

    returns: str
    """The program at the function's return; empty for none."""
    enters: str
    cookie: int = 0


def _polled(call: str) -> PollHook:
    returns = "" if call == "end_poll" else "extended_poll_return"
    return PollHook(returns, "extended_poll_enter", CQ_CALLS.index(call) << _PLACE)


POLLED: Mapping[str, PollHook] = {"poll_cq": PollHook("poll_cq_return", "poll_cq_enter")} | {
    call: _polled(call) for call in CQ_CALLS if call not in ("read_vendor_err", "read_imm_data")
}
"""Functions of completion queues that are probed, at times that poll_sampling.py decides."""


def names(op: str) -> list[str]:
    """Return the names of the versions of a provider's function."""
    return [op, *(f"{op}#{number}" for number in range(2, _VERSIONS + 1))]


def operation(name: str) -> str:
    """Return the function of a version's name."""
    return name.partition("#")[0]


def extended_hooks() -> dict[str, list[Hook]]:
    """Return what runs at the calls of queue pairs, by their names without numbers of versions."""
    found = {}
    for place, call in enumerate(QP_CALLS):
        if call not in (*_NOT_PROBED, "wr_complete"):
            found[call] = [Hook(_OWN.get(call, "extended_build"), place << _PLACE, placed=True)]
    complete = Hook("extended_complete", QP_CALLS.index("wr_complete") << _PLACE, numbered=True, placed=True)
    return found | {"wr_complete": [complete, Hook("extended_complete_return", returns=True)]}


PROVIDED = frozenset({"post_send", "post_recv", CREATE, *extended_hooks(), *POLLED})
"""Functions of providers that are probed."""
POSTING = frozenset(name for op in ("post_send", *extended_hooks()) for name in names(op))
"""The functions that post: where those that a job uses are all probed, all its posts are seen."""


def _in_windows(op: str) -> list[Hook]:
    """Return what runs at a function that may be probed in windows. A return without a seen entry does not count: the
    same program serves a process on its own."""
    entry, returned = f"{op}_enter", f"{op}_return"
    return [
        Hook(entry, numbered=True, sampled="posts", of_one=f"{entry}_of_one"),
        Hook(returned, returns=True, sampled="posts", of_one=returned),
    ]


def table(types: Btf) -> dict[str, list[Hook]]:
    """Return what runs at which function: libibverbs' own, and every version of a provider's. Not those that poll.

    ibv_create_qp_ex is inline, so a provider's create_qp_ex is hooked in its place.
    """
    own = {symbol: [*hooks, Hook("live_enter")] for symbol, hooks in control.hooks(types).items()}
    own[ALLOC_PD] = [Hook("live_enter", cookie=1)]
    own[MODIFY].append(Hook("extended_learn"))
    per_op = {
        "post_send": _in_windows("post_send"),
        "post_recv": _in_windows("post_recv"),
        CREATE: control.hooks_of(types, "create_qp"),
    }
    per_op |= extended_hooks()
    return own | {name: hooks for op, hooks in per_op.items() for name in names(op)}
