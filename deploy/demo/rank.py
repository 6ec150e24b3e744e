"""One rank of the demo's NCCL job, on a stand-in: python -m deploy.demo.rank LIBRARY RANK RANKS START LATE_SECONDS.

From START on, Unix time in seconds, all ranks call AllReduce at the same moments, ten times a second; a late one is so
much later each time.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import time

PERIOD = 0.1
COUNT, FLOAT, SUM = 25 << 18, 7, 0
"""A bucket of 25 MiB of gradients, as PyTorch's DDP makes them."""


class Id(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


def main() -> None:
    library, rank, ranks, start, late = sys.argv[1:]
    nccl, comm = ctypes.CDLL(library), ctypes.c_void_p()
    nccl.ncclCommInitRank(ctypes.byref(comm), int(ranks), Id(b"demo"), int(rank))
    for call in itertools.count():
        time.sleep(max(0.0, float(start) + call * PERIOD + float(late) - time.time()))
        nccl.ncclAllReduce(None, None, ctypes.c_size_t(COUNT), FLOAT, SUM, comm, None)


if __name__ == "__main__":
    main()
