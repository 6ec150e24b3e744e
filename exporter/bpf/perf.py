"""Uprobes as perf events and the links of programs to them, by system calls: for programs that libbpf did not load.

The layout is struct perf_event_attr of include/uapi/linux/perf_event.h; the meaning of its fields for uprobes is in
perf_uprobe_init() of kernel/trace/trace_event_perf.c. Links to perf events, which carry a cookie, are Linux 5.15.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from pathlib import Path

from exporter.bpf import multi

TYPE = Path("/sys/bus/event_source/devices/uprobe/type")
_SYSCALL = {"x86_64": 298, "aarch64": 241}
_ATTRIBUTES = struct.Struct("=IIQQQQQIIQQ")  # up to config2: PERF_ATTR_SIZE_VER1
_RETURN, _SEMAPHORE_SHIFT, _CLOSE_ON_EXEC = 1, 32, 1 << 3
_BPF_PERF_EVENT = 41


def uprobe(path: bytes, offset: int, semaphore: int, returns: bool) -> int:
    """The descriptor of an event that happens in every process that reaches a place of a file. OSError."""
    kind = int(TYPE.read_text())
    name = ctypes.create_string_buffer(path)
    config = semaphore << _SEMAPHORE_SHIFT | (_RETURN if returns else 0)
    attributes = _ATTRIBUTES.pack(kind, _ATTRIBUTES.size, config, 0, 0, 0, 0, 0, 0, ctypes.addressof(name), offset)
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    every_process, first_cpu, no_group = ctypes.c_long(-1), ctypes.c_long(0), ctypes.c_long(-1)
    number = ctypes.c_long(_SYSCALL[platform.machine()])
    event: int = call(number, attributes, every_process, first_cpu, no_group, ctypes.c_long(_CLOSE_ON_EXEC))
    if event < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return event


def link(program: int, event: int, cookie: int) -> int:
    """The descriptor of a link from a program's descriptor to an event; it keeps the event. OSError."""
    return multi.bpf(multi.LINK_CREATE, struct.pack("=4IQ", program, event, _BPF_PERF_EVENT, 0, cookie))
