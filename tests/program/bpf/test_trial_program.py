"""The machine code that probes are tried on does what its listings have."""

from __future__ import annotations

import platform
import struct
import subprocess
from pathlib import Path

import capstone
import pytest

from exporter.bpf import calibrate, rehearsal, safety
from exporter.bpf.elf import AARCH64, X86_64
from exporter.bpf.safety import Confinement
from exporter.bpf.trial_program import BASE, CODE, TrialProgram, assemble

X86 = (capstone.CS_ARCH_X86, capstone.CS_MODE_64)
ARM = (capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)

on_x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the program is for x86-64")


@pytest.mark.parametrize(
    ("decoder", "listing"),
    [
        pytest.param(X86, calibrate.X86_64_LISTING, id="calibrate x86-64"),
        pytest.param(X86, calibrate.X86_64_FUNCTIONS["emulated"], id="emulated x86-64"),
        pytest.param(X86, calibrate.X86_64_FUNCTIONS["stepped"], id="stepped x86-64"),
        pytest.param(ARM, calibrate.AARCH64_LISTING, id="calibrate arm64"),
        pytest.param(ARM, calibrate.AARCH64_FUNCTIONS["emulated"], id="emulated arm64"),
        pytest.param(ARM, calibrate.AARCH64_FUNCTIONS["stepped"], id="stepped arm64"),
        pytest.param(X86, safety.LISTING, id="safety"),
        pytest.param(X86, safety.FUNCTION, id="safety's function"),
    ],
)
def test_listing(decoder: tuple[int, int], listing: str) -> None:
    """The bytes of each line are the instruction that stands beside them."""
    listed = [line.partition("  ")[2] for line in listing.strip().splitlines()]
    decoded = capstone.Cs(*decoder).disasm_lite(assemble(listing), 0)
    assert listed == [f"{name} {operands}".strip() for _, _, name, operands in decoded]


def test_sizes() -> None:
    """The numbers in the listings are those of the tables around them."""
    stamps = 16 * (calibrate.ROUNDS * 5 + 1)
    assert f"mov edx, {stamps:#x}" in calibrate.X86_64_LISTING
    assert f"mov x2, #{stamps:#x}" in calibrate.AARCH64_LISTING
    assert f"mov r13d, {calibrate.ROUNDS:#x}" in calibrate.X86_64_LISTING
    assert f"mov w21, #{calibrate.ROUNDS:#x}" in calibrate.AARCH64_LISTING
    assert f"mov ebp, {calibrate.CALLS:#x}" in calibrate.X86_64_LISTING
    assert f"mov w20, #{calibrate.CALLS:#x}" in calibrate.AARCH64_LISTING
    assert f"add ebx, {BASE + CODE + safety.STEPS_AT - 64:#x}" in safety.LISTING
    assert f"call {safety.FUNCTION_AT:#x}" in safety.LISTING
    assert f"mov eax, {safety.RETURNED:#x}" in safety.FUNCTION
    assert f"mov edi, {safety.REFUSED:#x}" in safety.LISTING


@on_x86_64
def test_calibrated_program() -> None:
    """The program writes one time before every function of every round and one at the end, in order."""
    with TrialProgram(calibrate.image(X86_64)) as program:
        status, written = program.run()
    stamps = list(struct.iter_unpack("=qq", written))
    assert (0, calibrate.ROUNDS * 5 + 1, sorted(stamps)) == (status, len(stamps), stamps)


@on_x86_64
def test_rehearsed_program() -> None:
    """So does the one that programs are rehearsed on, which reads the request that its functions get first."""
    with TrialProgram(rehearsal.image(X86_64)) as program:
        status, written = program.run()
    stamps = list(struct.iter_unpack("=qq", written))
    assert (0, rehearsal.ROUNDS * rehearsal.SLOTS + 1, sorted(stamps)) == (status, len(stamps), stamps)


def test_the_rehearsed_request_is_in_the_program() -> None:
    """The one segment is behind it, in the same page."""
    page = rehearsal.image(X86_64)[-4096:]
    assert page == rehearsal.REQUEST.ljust(4096, b"\0")
    _, following, segment, segments, *_ = struct.unpack("<QQQIII", rehearsal.REQUEST)
    assert (0, 1) == (following, segments) and 0 < segment - rehearsal.REQUEST_AT < 4096


def test_calibrated_program_arm64(tmp_path: Path) -> None:
    """The arm64 program does the same, run by an emulator."""
    emulator = Path("/usr/bin/qemu-aarch64")
    if not emulator.exists():
        pytest.skip("qemu-aarch64 (package qemu-user) is not installed")
    file = tmp_path / "program"
    file.write_bytes(calibrate.image(AARCH64))
    file.chmod(0o755)
    done = subprocess.run([emulator, file], capture_output=True, timeout=30, check=True)
    stamps = list(struct.iter_unpack("=qq", done.stdout))
    assert (calibrate.ROUNDS * 5 + 1, sorted(stamps)) == (len(stamps), stamps)


@on_x86_64
def test_trial_without_probe() -> None:
    """Unprobed, the function returns its value under every confinement that this machine has."""
    with TrialProgram(safety.image()) as program:
        ends = [program.run(confinement)[0] for confinement in Confinement]
    assert [safety.RETURNED] * 4 == ends[:4]
    assert ends[4] in (safety.RETURNED, safety.REFUSED)


@on_x86_64
def test_confinements() -> None:
    """The confinements are in force: a function that makes a system call is killed, or denied it."""
    calls_getpid = assemble("b8 27 00 00 00  mov eax, 39\n0f 05  syscall\nc3  ret")
    at = CODE + safety.FUNCTION_AT
    image = safety.image()
    with TrialProgram(image[:at] + calls_getpid + image[at + len(calls_getpid) :]) as program:
        ends = {confinement: program.run(confinement)[0] for confinement in Confinement}
    killed, bad_system_call, minus_eperm = -9, -31, 255
    assert (killed, minus_eperm, bad_system_call) == (
        ends[Confinement.STRICT],
        ends[Confinement.FILTER_DENIES],
        ends[Confinement.FILTER_KILLS],
    )


@on_x86_64
def test_no_descriptor_left() -> None:
    """A program leaves no descriptor open."""
    before = set(Path("/proc/self/fd").iterdir())
    with TrialProgram(safety.image()) as program:
        status, _ = program.run()
    assert (safety.RETURNED, before) == (status, set(Path("/proc/self/fd").iterdir()))
