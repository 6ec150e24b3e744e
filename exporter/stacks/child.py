"""The child of exporter.stacks.worker, in two processes: one opens (opener.py), the other unwinds and names stacks.

Modules that only the other one needs are imported after the fork, so that the one that opens has no copy of them.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
from contextlib import suppress

from exporter.bpf import privileges
from exporter.stacks.opener import Opener

_ADDRESS_SPACE = 1 << 38
"""Bytes: files are mapped, and CUDA's libraries have gigabytes. Memory that is used is bounded by the exporter."""


def main(descriptor: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    exporter = socket.socket(fileno=int(descriptor))
    gc.freeze()  # a collection would write to the pages that both have
    reader = os.fork()
    if reader:
        theirs.close()
        Opener(exporter, ours).run()
        os._exit(0)
    ours.close()
    _unwind(theirs, exporter)


def _unwind(opener: socket.socket, exporter: socket.socket) -> None:
    """Import and open what is needed, then give up all rights: Python's files may be another user's."""
    from exporter.bpf import confined
    from exporter.stacks import demangle, libdw
    from exporter.stacks.naming import Naming

    confined.die_with_parent()
    demangle.prepare()
    missing = libdw.missing()
    with suppress(OSError):
        privileges.drop(())
    confined.limit(_ADDRESS_SPACE)
    with suppress(EOFError, ConnectionError):
        exporter.sendall(json.dumps({"reader": os.getpid(), "missing": missing}).encode())
        Naming(opener, exporter).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
