"""Programs of uprobes stay on the thread's kernel stack: a "private" one is overwritten when a thread is preempted."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import pytest

from exporter.bpf.libbpf import Object, Program

pytestmark = pytest.mark.needs_bpf

OBJECTS = sorted(Path("exporter/bpf/objects", platform.machine()).glob("*.bpf.o"))
TAIL_CALL = b"\x85\x00\x00\x00\x0c\x00\x00\x00"
"""A call of helper 12 (BPF_FUNC_tail_call of linux/bpf.h): the verifier gives no private stack to its program."""


def instructions(program: Program) -> bytes:
    """Return the instructions of a program as compiled."""
    libbpf = ctypes.CDLL("libbpf.so.1")
    libbpf.bpf_program__insns.restype = ctypes.c_void_p
    libbpf.bpf_program__insn_cnt.restype = ctypes.c_size_t
    handle = ctypes.c_void_p(program.handle)
    return ctypes.string_at(libbpf.bpf_program__insns(handle), 8 * libbpf.bpf_program__insn_cnt(handle))


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_programs_of_uprobes_have_no_private_stack(path: Path) -> None:
    """Every program that a uprobe runs has the tail call that is never reached."""
    with Object(path) as loaded:
        probes = {it.name: it for it in loaded.programs.values() if it.section.startswith(("uprobe", "uretprobe"))}
        missing = {name for name, program in probes.items() if TAIL_CALL not in instructions(program)}
    assert set() == missing
