"""Transfers KV cache with NIXL until it is ended: python -m tests.standins.nixl_job LIBRARY.

Ten times a second: reads from two peers, a write to a file, and a transfer that fails.
"""

from __future__ import annotations

import ctypes
import sys
import time
from ctypes import c_size_t, c_void_p

AGENT = c_void_p(8)
UCX, GDS = 0, 2


def main() -> None:
    nixl = ctypes.CDLL(sys.argv[1])
    post = nixl["_ZNK9nixlAgent11postXferReqEP12nixlXferReqHPK21nixlAgentOptionalArgs"]
    poll = nixl["_ZNK9nixlAgent13getXferStatusEP12nixlXferReqH"]
    nixl.standin_request.restype = c_void_p

    def request(operation: int, backend: int, peer: str, end: int) -> c_void_p:
        made = c_void_p(nixl.standin_request(operation, backend, c_size_t(64), c_size_t(1 << 16), peer.encode()))
        nixl.standin_returns(made, 1, end)
        return made

    requests = [
        request(0, UCX, "prefill-0", 0),
        request(0, UCX, "prefill-1", 0),
        request(1, GDS, "cache", 0),
        request(0, UCX, "prefill-1", -10),
    ]
    post(AGENT, request(0, UCX, "prefill-0", 1), None)  # which stays in flight
    while True:
        for each in requests:
            post(AGENT, each, None)
        time.sleep(0.1)
        for each in requests:
            poll(AGENT, each)


if __name__ == "__main__":
    main()
