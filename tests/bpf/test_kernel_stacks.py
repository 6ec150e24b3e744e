"""Programs of uprobes stay on the thread's kernel stack: a "private" one is overwritten when a thread is preempted."""

from __future__ import annotations

import ctypes
import platform
import struct
from pathlib import Path

import pytest

from exporter.bpf.libbpf import Object, Program

pytestmark = pytest.mark.needs_bpf

OBJECTS = sorted(Path("exporter/bpf/objects", platform.machine()).glob("*.bpf.o"))
TAIL_CALL = b"\x85\x00\x00\x00\x0c\x00\x00\x00"
"""A call of helper 12 (BPF_FUNC_tail_call of linux/bpf.h): the verifier gives no private stack to its program."""


R9_OF_THE_PROCESSOR = b"\x65\x4c\x03\x0c\x25"
"""add %gs:this_cpu_off, %r9 (emit_priv_frame_ptr of arch/x86/net/bpf_jit_comp.c)."""
LENGTH_AT, CODE_AT, INFO_SIZE = 16, 24, 232
"""Places of jited_prog_len and jited_prog_insns in struct bpf_prog_info (linux/bpf.h), and its size."""


def machine_code(program: Program) -> bytes:
    """Return the machine code of a loaded program."""
    code, info = ctypes.create_string_buffer(1 << 20), ctypes.create_string_buffer(INFO_SIZE)
    struct.pack_into("=I", info, LENGTH_AT, len(code))
    struct.pack_into("=Q", info, CODE_AT, ctypes.addressof(code))
    size = ctypes.c_uint32(INFO_SIZE)
    assert 0 == ctypes.CDLL("libbpf.so.1").bpf_obj_get_info_by_fd(program.fd, info, ctypes.byref(size))
    (length,) = struct.unpack_from("=I", info, LENGTH_AT)
    return code.raw[:length]


def instructions(program: Program) -> bytes:
    """Return the instructions of a program as compiled."""
    libbpf = ctypes.CDLL("libbpf.so.1")
    libbpf.bpf_program__insns.restype = ctypes.c_void_p
    libbpf.bpf_program__insn_cnt.restype = ctypes.c_size_t
    handle = ctypes.c_void_p(program.handle)
    return ctypes.string_at(libbpf.bpf_program__insns(handle), 8 * libbpf.bpf_program__insn_cnt(handle))


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_programs_of_uprobes_have_no_private_stack(path: Path) -> None:
    """Every program that a uprobe runs has the tail call that is never reached, and on x86-64 no private stack."""
    old = path.name == "serving.bpf.o" and platform.release().startswith("6.1.")
    with Object(path, without=("on_data",) if old else ()) as loaded:  # its tracepoint is new in Linux 6.3
        probes = {it.name: it for it in loaded.programs.values() if it.section.startswith(("uprobe", "uretprobe"))}
        private = {name for name, it in probes.items() if R9_OF_THE_PROCESSOR in machine_code(it)}
        missing = {name for name, program in probes.items() if TAIL_CALL not in instructions(program)}
    assert (set(), set()) == (missing, private)
