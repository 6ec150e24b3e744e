"""Trial of return probes on a small program, to find out if return probes could harm observed processes.

On x86-64 a return probe replaces the caller's return address. Since Linux 6.11 the replacement makes a system call
(uretprobe, 335), which seccomp filters without a rule for 335 deny or punish by killing the process; 6.14 and its
backports bypass seccomp for uretprobe (commit cf6cb56ef244). With shadow stacks, Linux 6.6 to 6.10 does not put the new
address on the shadow stack. On other architectures the replacement is a breakpoint, which no filter sees.

On every kernel a call on a higher stack drops the calls below that wait for their return probes (bpf/returns.bpf.h),
unless the programs prevent that, which takes uprobe sessions.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from exporter.bpf import object_path, sessions
from exporter.bpf.elf import X86_64
from exporter.bpf.libbpf import BpfError, Object, Program
from exporter.bpf.trial_program import BASE, CODE, MACHINES, TrialProgram, assemble, executable
from exporter.bpf.uprobe import Point, attach
from exporter.model import Unavailable
from exporter.process_memory import living

FUNCTION_AT, STEPS_AT, FILTERS_AT = 0x40, 0x80, 0x200
"""Offsets in the code, in bytes: the probed function, the steps of each confinement, and the seccomp filters."""
RETURN = 1
"""Key of the count of returns (enum hit of bpf/calibrate.bpf.c)."""
RETURNED, REFUSED = 42, 77
"""Exit status: what the probed function returned, and that the confinement is not to be had here."""
_STATUS_BYTES = 1 << 14

# Makes the system calls of the confinement that the number of arguments chooses, as long as they return 0, then calls
# the function and exits with what it returned. Nothing but exit is called then, which even the strict mode allows.
LISTING = """
8b 1c 24  mov ebx, dword ptr [rsp]
c1 e3 06  shl ebx, 6
81 c3 c0 00 40 00  add ebx, 0x4000c0
8b 03  mov eax, dword ptr [rbx]
85 c0  test eax, eax
74 19  je 0x2b
8b 7b 04  mov edi, dword ptr [rbx + 4]
8b 73 08  mov esi, dword ptr [rbx + 8]
8b 53 0c  mov edx, dword ptr [rbx + 0xc]
0f 05  syscall
83 c3 10  add ebx, 0x10
85 c0  test eax, eax
74 e8  je 0xc
bf 4d 00 00 00  mov edi, 0x4d
eb 07  jmp 0x32
e8 10 00 00 00  call 0x40
89 c7  mov edi, eax
b8 3c 00 00 00  mov eax, 0x3c
0f 05  syscall
"""
FUNCTION = """
55  push rbp
b8 2a 00 00 00  mov eax, 0x2a
5d  pop rbp
c3  ret
"""
# Calls a function that, like a signal handler on its own stack, calls one on a stack above its own.
STACKS_LISTING = """
48 81 ec 00 10 00 00  sub rsp, 4096
e8 34 00 00 00  call 0x40
89 c7  mov edi, eax
b8 3c 00 00 00  mov eax, 0x3c
0f 05  syscall
"""
STACKS_FUNCTION = """
55  push rbp
48 89 e5  mov rbp, rsp
48 81 c4 00 08 00 00  add rsp, 2048
e8 10 00 00 00  call 0x60
48 89 ec  mov rsp, rbp
5d  pop rbp
c3  ret
"""
ABOVE_AT = 0x60

_EXIT, _PRCTL, _ARCH_PRCTL = 60, 157, 158
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38
_ARCH_SHSTK_ENABLE, _ARCH_SHSTK_SHSTK = 0x5001, 1
_FILTER_SIZE = 16 + 4 * 8
_ALLOW, _ERRNO_EPERM, _KILL_PROCESS = 0x7FFF0000, 0x00050001, 0x80000000


class Confinement(IntEnum):
    """Confinements of the trial; the value is the number of arguments of the trial program."""

    NONE = 0
    STRICT = 1
    FILTER_DENIES = 2
    FILTER_KILLS = 3
    SHADOW_STACK = 4


@dataclass(frozen=True, slots=True)
class Survival:
    """Survival of threads with return probes: under a seccomp filter, with a shadow stack, and with signal stacks.

    `doubt` is the reason for a trial that was not possible. Survival without proof counts as false.
    """

    seccomp: bool
    shadow_stack: bool
    doubt: str = ""
    signal_stacks: bool = True
    """True if a call may be made inside another on a higher stack, as by a handler on its sigaltstack."""


@dataclass(frozen=True, slots=True)
class Protection:
    """Protections in force for a process: seccomp, and a user shadow stack."""

    seccomp: bool
    shadow_stack: bool


def try_return_probes() -> Survival:
    """Runs a return-probed program under each confinement, in about 60 ms, most of them waiting for the kernel."""
    if MACHINES.get(os.uname().machine) != X86_64:
        return Survival(seccomp=True, shadow_stack=True, signal_stacks=bool(sessions.places()))
    try:
        with Object(object_path("calibrate")) as loaded, TrialProgram(image()) as program:
            point = Point(CODE + FUNCTION_AT)
            link = attach(loaded.programs["on_return"], program.path, [point], returns=True)
            try:
                ends = {confinement: program.run(confinement)[0] for confinement in Confinement}
            finally:
                link.close()
            found = judge(ends, loaded.maps["hits"].get(RETURN) or 0)
            return replace(found, signal_stacks=_try_stacks(loaded.programs["on_return"]))
    except (BpfError, Unavailable) as error:
        return Survival(seccomp=False, shadow_stack=False, doubt=f"return probes could not be tried: {error}")


def _try_stacks(on_return: Program) -> bool:
    """Return whether a call on another stack leaves the one alive that it was made in; without sessions it does not."""
    if not on_return.session:
        return False
    with TrialProgram(stacks_image()) as program:
        link = attach(on_return, program.path, [Point(CODE + at) for at in (FUNCTION_AT, ABOVE_AT)], returns=True)
        try:
            return program.run()[0] == RETURNED
        finally:
            link.close()


def judge(ends: Mapping[Confinement, int], hits: int) -> Survival:
    """Judges by the exit statuses of the trial and the number of returns that the probe saw."""
    if hits < sum(end == RETURNED for end in ends.values()):
        return Survival(seccomp=False, shadow_stack=False, doubt="return probes attach but do not fire on this kernel")
    survived = {confinement for confinement, end in ends.items() if end == RETURNED}
    filters = {Confinement.NONE, Confinement.STRICT, Confinement.FILTER_DENIES, Confinement.FILTER_KILLS}
    none_here = ends[Confinement.SHADOW_STACK] == REFUSED
    shadow_stack = Confinement.NONE in survived and (none_here or Confinement.SHADOW_STACK in survived)
    return Survival(seccomp=filters <= survived, shadow_stack=shadow_stack)


def protection(proc: Path, pid: int) -> Protection | None:
    """Return what a process runs under, by its /proc/PID/status; None when it has ended."""
    try:
        file = os.open(living(proc, pid) / "status", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = b"".join(iter(lambda: os.read(file, _STATUS_BYTES), b""))
    except OSError:
        return None
    finally:
        os.close(file)
    seccomp, features = (_value(status, name) for name in (b"Seccomp", b"x86_Thread_features"))
    return Protection(seccomp not in (b"0", b""), b"shstk" in features.split())


def _value(status: bytes, name: bytes) -> bytes:
    """Value of a line of /proc/PID/status, empty where there is none; the process's name holds no line break there."""
    return (b"\n" + status).partition(b"\n" + name + b":")[2].partition(b"\n")[0].strip()


def returns_allowed(survival: Survival, users: Collection[Protection]) -> tuple[bool, str]:
    """Return whether a library may get return probes, given the processes that use it; if not, why and what to do.

    Filters are common and a process can start under one at any time, so where one makes return probes deadly no
    library gets them. Shadow stacks are enabled by the user of a program, so they only count where they are:
    call again whenever a process begins to use the library, and detach when the answer has changed.
    """
    if survival.doubt:
        return False, f"{survival.doubt}; they might kill the process"
    if not survival.seccomp:
        filtered = sum(user.seccomp for user in users)
        return False, (
            "on this kernel a return probe kills processes that run under a seccomp filter "
            f"({filtered} of the {len(users)} that use this library do): update to Linux 6.14 or 6.12.14"
        )
    if not survival.shadow_stack and any(user.shadow_stack for user in users):
        return False, (
            "a process that uses this library has a shadow stack, and on this kernel a return probe would kill it: "
            "update to Linux 6.11 or later"
        )
    return True, ""


def image() -> bytes:
    """The program of the trial, for x86-64."""
    code = assemble(LISTING).ljust(FUNCTION_AT, b"\0") + assemble(FUNCTION)
    steps = b"".join(_steps(confinement).ljust(64, b"\0") for confinement in Confinement)
    code = code.ljust(STEPS_AT, b"\0") + steps
    return executable(X86_64, code.ljust(FILTERS_AT, b"\0") + _filter(0, _ERRNO_EPERM) + _filter(1, _KILL_PROCESS))


def stacks_image() -> bytes:
    """The program of the trial of stacks, for x86-64."""
    code = assemble(STACKS_LISTING).ljust(FUNCTION_AT, b"\0") + assemble(STACKS_FUNCTION)
    return executable(X86_64, code.ljust(ABOVE_AT, b"\0") + assemble(FUNCTION))


def _steps(confinement: Confinement) -> bytes:
    """System calls, each a number and three arguments; zeroes end them."""
    quietly = [(_PRCTL, _PR_SET_DUMPABLE, 0, 0), (_PRCTL, _PR_SET_NO_NEW_PRIVS, 1, 0)]
    calls = {
        Confinement.NONE: [],
        Confinement.STRICT: [(_PRCTL, _PR_SET_SECCOMP, 1, 0)],
        Confinement.FILTER_DENIES: [*quietly, (_PRCTL, _PR_SET_SECCOMP, 2, _filter_address(0))],
        Confinement.FILTER_KILLS: [*quietly, (_PRCTL, _PR_SET_SECCOMP, 2, _filter_address(1))],
        Confinement.SHADOW_STACK: [(_ARCH_PRCTL, _ARCH_SHSTK_ENABLE, _ARCH_SHSTK_SHSTK, 0)],
    }
    return b"".join(struct.pack("<4I", *call) for call in calls[confinement])


def _filter_address(index: int) -> int:
    return BASE + CODE + FILTERS_AT + _FILTER_SIZE * index


def _filter(index: int, otherwise: int) -> bytes:
    """struct sock_fprog and its instructions: allow exit, else do `otherwise`."""
    instructions = [(0x20, 0, 0, 0), (0x15, 0, 1, _EXIT), (0x06, 0, 0, _ALLOW), (0x06, 0, 0, otherwise)]
    header = struct.pack("<HxxxxxxQ", len(instructions), _filter_address(index) + 16)
    return header + b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)
