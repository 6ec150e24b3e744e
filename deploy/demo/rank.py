"""One rank of the demo's NCCL job, on a stand-in: python -m deploy.demo.rank LIBRARY RANK RANKS LATE_SECONDS.

All ranks call AllReduce at the same moments of the clock, ten times a second; a late one so much later each time.
"""

from __future__ import annotations

import ctypes
import sys
import time

PERIOD = 0.1
COUNT, FLOAT, SUM = 25 << 18, 7, 0
"""A bucket of 25 MiB of gradients, as PyTorch's DDP makes them."""


class Id(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


def main() -> None:
    library, rank, ranks, late = sys.argv[1:]
    nccl, comm = ctypes.CDLL(library), ctypes.c_void_p()
    nccl.ncclCommInitRank(ctypes.byref(comm), int(ranks), Id(b"demo"), int(rank))
    while True:
        time.sleep(PERIOD - time.time() % PERIOD + float(late))
        nccl.ncclAllReduce(None, None, ctypes.c_size_t(COUNT), FLOAT, SUM, comm, None)


if __name__ == "__main__":
    main()
