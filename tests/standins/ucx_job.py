"""Sends, writes and reads with UCX until it is ended: python -m tests.standins.ucx_job LIBRARY.

Ten times a second: a send that is done at once, a write and a read that are not, and a send that fails.
"""

from __future__ import annotations

import ctypes
import sys
import time
from ctypes import c_size_t, c_uint64, c_void_p

PENDING, UNREACHABLE = 1 << 40, (1 << 64) - 6


def main() -> None:
    ucp, param = ctypes.CDLL(sys.argv[1]), (c_uint64 * 16)()
    one = c_uint64(1)
    while True:
        for result in (0, UNREACHABLE):
            ucp.standin_returns(c_void_p(result))
            ucp.ucp_tag_send_nbx(None, None, c_size_t(1000), one, param)
        for function in (ucp.ucp_put_nbx, ucp.ucp_get_nbx):
            ucp.standin_returns(c_void_p(PENDING))
            function(None, None, c_size_t(1 << 20), one, one, param)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
