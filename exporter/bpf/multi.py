"""Multi-uprobe links (Linux 6.6) by the bpf() system call: many points of a file in one link, gone at once when closed.

libbpf has them since 1.3; Debian 12 and Ubuntu 22.04 ship older ones. The layouts are include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import struct
from collections.abc import Sequence

ATTACH_TYPE, SESSION = 48, 57  # BPF_TRACE_UPROBE_MULTI, BPF_TRACE_UPROBE_SESSION
_SYSCALL = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, LINK_CREATE = 5, 28
_KPROBE, _RETURN = 2, 1  # BPF_PROG_TYPE_KPROBE, BPF_F_UPROBE_MULTI_RETURN
_PASSING = (errno.EAGAIN, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Of a shortage, or of a signal that came while the kernel verified a program."""


def link(
    program: int,
    path: bytes,
    offsets: Sequence[int],
    cookies: Sequence[int],
    returns: bool,
    semaphores: Sequence[int] = (),
    pid: int = 0,
    kind: int = ATTACH_TYPE,
) -> int:
    """The descriptor of a new link from a program's descriptor to file offsets. OSError; then nothing is attached.

    `semaphores` are the places in the file of counters that the kernel raises while a point is probed; 0: none. `pid`
    is the one process that is probed; 0: every one. A SESSION runs at calls and at their returns; `returns` is false.
    """
    count = len(offsets)
    counters = (ctypes.c_uint64 * count)(*semaphores) if any(semaphores) else None
    name = ctypes.create_string_buffer(path)
    points, tags = (ctypes.c_uint64 * count)(*offsets), (ctypes.c_uint64 * count)(*cookies)
    counted = ctypes.addressof(counters) if counters else 0
    addresses = [ctypes.addressof(name), ctypes.addressof(points), counted, ctypes.addressof(tags)]
    flags = _RETURN if returns else 0
    return bpf(LINK_CREATE, struct.pack("=4I4Q4I", program, 0, kind, 0, *addresses, count, flags, pid, 0))


def supported() -> bool:
    """Return whether this kernel has multi-uprobe links, and permits them."""
    return refusal() == 0


def refusal(kind: int = ATTACH_TYPE) -> int:
    """The errno with which the kernel refuses multi-uprobe links of a kind, 0 where it permits them.

    One that may pass is tried again at the next call.
    """
    try:
        return lasting_refusal(kind)
    except OSError as error:
        return error.errno or errno.EINVAL


@functools.cache
def lasting_refusal(kind: int) -> int:
    """The refusal that does not pass; OSError for one that may. Tries a link on a directory, which only a kernel that
    has such links objects to.
    """
    exit_zero = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0), 16)
    name = ctypes.create_string_buffer(b"GPL")
    head = struct.pack("=2I2Q", _KPROBE, 2, ctypes.addressof(exit_zero), ctypes.addressof(name))
    try:
        program = bpf(_PROG_LOAD, head + struct.pack("=2IQ2I16s2I", 0, 0, 0, 0, 0, b"", 0, kind))
    except OSError as error:
        return _lasting(error)
    try:
        os.close(link(program, b"/", [0], [0], returns=False, kind=kind))
    except OSError as error:
        return 0 if error.errno == errno.EBADF else _lasting(error)
    finally:
        os.close(program)
    return errno.EINVAL


def _lasting(error: OSError) -> int:
    if error.errno in _PASSING:
        raise error
    return error.errno or errno.EINVAL


def bpf(command: int, attributes: bytes) -> int:
    """The bpf() system call: what it returned. OSError."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    size = len(attributes)
    copy = ctypes.create_string_buffer(attributes, size)
    result: int = call(ctypes.c_long(_SYSCALL[platform.machine()]), ctypes.c_long(command), copy, ctypes.c_long(size))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
