"""Where the objects of the extended verbs API keep the functions that its inline calls jump to (infiniband/verbs.h).

A queue pair from create_qp_ex has them only if its attributes asked for them: bit ASKS_FOR_CALLS of comp_mask, at
ATTRIBUTES_COMP_MASK of struct ibv_qp_init_attr_ex. A completion queue from create_cq_ex always has those of polling.
They are set once, before the object is handed out, and differ with its type; each is in the provider.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

ATTRIBUTES_COMP_MASK, ASKS_FOR_CALLS = 60, 1 << 6

QP_EX: Mapping[str, int] = {
    "wr_atomic_cmp_swp": 184,
    "wr_atomic_fetch_add": 192,
    "wr_bind_mw": 200,
    "wr_local_inv": 208,
    "wr_rdma_read": 216,
    "wr_rdma_write": 224,
    "wr_rdma_write_imm": 232,
    "wr_send": 240,
    "wr_send_imm": 248,
    "wr_send_inv": 256,
    "wr_send_tso": 264,
    "wr_set_ud_addr": 272,
    "wr_set_xrc_srqn": 280,
    "wr_set_inline_data": 288,
    "wr_set_inline_data_list": 296,
    "wr_set_sge": 304,
    "wr_set_sge_list": 312,
    "wr_start": 320,
    "wr_complete": 328,
    "wr_abort": 336,
}
"""struct ibv_qp_ex of rdma-core 28 to 65, in bytes; what later ones appended is left out."""
QP_EX_WR_ID, QP_EX_WR_FLAGS = 168, 176

CQ_EX: Mapping[str, int] = {
    "start_poll": 144,
    "next_poll": 152,
    "end_poll": 160,
    "read_opcode": 168,
    "read_vendor_err": 176,
    "read_byte_len": 184,
    "read_imm_data": 192,
    "read_qp_num": 200,
    "read_src_qp": 208,
    "read_wc_flags": 216,
}
"""struct ibv_cq_ex of rdma-core 28 to 65, in bytes."""
CQ_EX_STATUS, CQ_EX_WR_ID = 132, 136


def pointers(block: bytes, offsets: Mapping[str, int], start: int = 0) -> dict[str, int]:
    """The functions that a piece of a process's memory points to, by name; those that are not set are left out.

    `start` is the offset of the block's first byte, of the kind that `offsets` has; what it does not hold is left out.
    """
    words = {name: block[at - start : at - start + 8] for name, at in offsets.items() if at >= start}
    found = {name: struct.unpack("<Q", word)[0] for name, word in words.items() if len(word) == 8}
    return {name: address for name, address in found.items() if address}
