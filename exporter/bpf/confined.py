"""Limits of a process that reads hostile files: bounded memory, no exec, no sockets, no writing to files."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys

from exporter import rlimits

MEMORY = 1 << 30
"""Bytes of address space: tables of the largest file that is read take a quarter."""
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _FILTER, _PR_SET_NO_NEW_PRIVS = 1, 22, 2, 38
_X86_64 = 0xC000003E
_ALLOW, _DENY = 0x7FFF0000, 0x00050000 | 1  # EPERM
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _MACHINE, _FLAGS = 0, 4, 32  # of struct seccomp_data: nr, arch, the lower half of the third argument
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_OPENAT = 257
_NEEDED = {
    "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8, "mmap": 9,
    "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "ioctl": 16,
    "pread64": 17, "access": 21, "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32, "getpid": 39, "sendto": 44,
    "recvfrom": 45, "sendmsg": 46, "recvmsg": 47, "exit": 60, "uname": 63, "fcntl": 72, "getcwd": 79, "readlink": 89,
    "getuid": 102, "sysinfo": 99, "gettid": 186, "futex": 202, "getdents64": 217, "clock_gettime": 228,
    "restart_syscall": 219, "clock_nanosleep": 230, "exit_group": 231, "newfstatat": 262, "readlinkat": 267,
    "getrandom": 318, "statx": 332, "rseq": 334,
}  # fmt: skip
"""System calls of a Python that reads files and answers; by the numbers of x86-64. A poll or sleep that a stop and its
continuation interrupt goes on by restart_syscall.
"""


def die_with_parent() -> None:
    """Has the kernel kill this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def limit(memory: int = MEMORY) -> None:
    """Bounds memory, files and processes, and on x86-64 the system calls. Capabilities have to be dropped before."""
    rlimits.lower(resource.RLIMIT_AS, memory)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # root's processes are not counted: there the filter decides
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.uname().machine == "x86_64" and sys.maxsize > 1 << 32:
        _filter(_instructions())


def _instructions() -> list[tuple[int, int, int, int]]:
    """Allows what is needed, and opening for reading; all else fails with EPERM."""
    calls = sorted(_NEEDED.values())
    allowed = [(_EQUAL, len(calls) - at, 0, number) for at, number in enumerate(calls)]
    return [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, _X86_64),
        (_RETURN, 0, 0, _DENY),
        (_LOAD, 0, 0, _NUMBER),
        (_EQUAL, len(calls) + 2, 0, _OPENAT),
        *allowed,
        (_RETURN, 0, 0, _DENY),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _FLAGS),
        (_ANY_BIT, 0, 1, _WRITING),
        (_RETURN, 0, 0, _DENY),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _filter(instructions: list[tuple[int, int, int, int]]) -> None:
    """OSError where the kernel takes no filter."""
    text = b"".join(struct.pack("=HBBI", *it) for it in instructions)
    held = ctypes.create_string_buffer(text, len(text))
    program = struct.pack("=HxxxxxxQ", len(instructions), ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # without CAP_SYS_ADMIN the kernel takes no filter before this
    if libc.prctl(_PR_SET_SECCOMP, _FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot set a seccomp filter")
