"""BPF iterators (Linux 5.8): programs that run for each task, or for each of its mappings, when a file is read."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from exporter.bpf.native import BpfError, check, library

_TRACE_ITER = 28  # enum bpf_attach_type
_READ_BYTES = 1 << 15
"""As much as the kernel gives at once (bpf_seq_read)."""


def link(program: int, attempted: str, *, tid: int = 0, pid: int = 0) -> int:
    """Return the descriptor of a link to a program: for one thread or process (Linux 6.1), or for all of them.

    `attempted` is what the link serves, for errors. Raises BpfError: with ESRCH where there is no such task.
    """
    target = struct.pack("=III", tid, pid, 0)  # union bpf_iter_link_info: tid, pid, pid_fd
    copy = ctypes.create_string_buffer(target, len(target))
    options = struct.pack("=QIIQIIQ", 40, 0, 0, ctypes.addressof(copy), len(target), 0, 0)  # bpf_link_create_opts
    return check(library().bpf_link_create(program, 0, _TRACE_ITER, options if tid or pid else None), attempted)


def read(link: int, attempted: str) -> bytes:
    """Run the program, and return all that it has written. Raises BpfError."""
    reader = check(library().bpf_iter_create(link), attempted)
    try:
        return b"".join(iter(lambda: os.read(reader, _READ_BYTES), b""))
    except OSError as error:
        raise BpfError(error.errno or errno.EIO, f"{attempted}: {error.strerror}") from error
    finally:
        os.close(reader)
