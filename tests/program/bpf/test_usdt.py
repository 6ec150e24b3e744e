"""Notes of USDT probes are read from real files, and lies in them do no harm."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.bpf import usdt
from exporter.bpf.elf import Elf

# What sys/sdt.h makes of DTRACE_PROBE1(site, hit, n), less the base that only prelink needs.
SOURCE = """
unsigned short counter __attribute__((section(".probes"), used));
int hit(int n) {
    __asm__ volatile("990: %s\\n"
        ".pushsection .note.stapsdt,\\"\\",\\"note\\"\\n"
        ".balign 4\\n.4byte 992f-991f, 994f-993f, 3\\n"
        "991: .asciz \\"stapsdt\\"\\n992: .balign 4\\n"
        "993: .8byte %s, 0, %s\\n"
        ".asciz \\"site\\"\\n.asciz \\"hit\\"\\n.asciz \\"-4@%%%%edi\\"\\n"
        "994: .balign 4\\n.popsection\\n" :: "i"(n ? 1 : 2));
    return n;
}
"""


@pytest.fixture
def find(compile_library: Callable[[str, str], Path]) -> Callable[..., dict[str, tuple[usdt.Site, ...]]]:
    def build(code: str = "nop", address: str = "990b", counter: str = "0") -> dict[str, tuple[usdt.Site, ...]]:
        source = (SOURCE % (code, address, counter)).replace(' :: "i"(n ? 1 : 2)', " ::")
        with Elf.open(compile_library("libprobe.so", source)) as elf:
            return usdt.find(elf, {"site:hit", "site:other"})

    return build


def test_a_site_is_found(find: Callable[..., dict[str, tuple[usdt.Site, ...]]]) -> None:
    """A marker's place, arguments and cost are found."""
    [site] = find()["site:hit"]
    assert ("-4@%edi", True, 0) == (site.arguments, site.emulated, site.semaphore)


def test_a_long_nop_costs_more(find: Callable[..., dict[str, tuple[usdt.Site, ...]]]) -> None:
    """A five-byte nop is single-stepped on kernels that do not emulate it."""
    [site] = find(".byte 0x0f,0x1f,0x44,0,0")["site:hit"]
    assert not site.emulated


@pytest.mark.parametrize("code", ["mov $1, %%eax", "ret", ".byte 0x48, 0x90"])
def test_what_is_no_nop_is_not_probed(find: Callable[..., dict[str, tuple[usdt.Site, ...]]], code: str) -> None:
    """A note that points at another instruction is passed over: a probe there could break the program."""
    assert {} == find(code)


@pytest.mark.parametrize(
    ("address", "counter"), [("0", "0"), ("0xffffffffffffffff", "0"), ("counter", "0"), ("990b", "0x7fffffffffff")]
)
def test_lies_are_passed_over(
    find: Callable[..., dict[str, tuple[usdt.Site, ...]]], address: str, counter: str
) -> None:
    """Addresses that the file has not, or where it has no code, make no site."""
    try:
        assert {} == find("nop", address, counter)
    except subprocess.CalledProcessError:
        pytest.skip("the assembler takes no such address")


def test_damaged_notes(compile_library: Callable[[str, str], Path], tmp_path: Path) -> None:
    """Whatever byte of the notes is changed, there is an answer or an ElfError."""
    whole = compile_library("libprobe.so", (SOURCE % ("nop", "990b", "0")).replace(' :: "i"(n ? 1 : 2)', " ::"))
    content = whole.read_bytes()
    at = content.index(b"stapsdt\0") - 12
    for place in range(at, at + 60):
        for value in (0, 0x7F, 0xFF):
            damaged = tmp_path / "damaged.so"
            damaged.write_bytes(content[:place] + bytes([value]) + content[place + 1 :])
            with Elf.open(damaged) as elf:
                assert usdt.find(elf, {"site:hit"}).keys() <= {"site:hit"}
