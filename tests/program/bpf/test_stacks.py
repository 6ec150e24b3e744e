"""Programs and the functions they call have stacks that every kernel allows.

Before Linux 6.13 the verifier adds the stacks of a chain of calls up (check_max_stack_depth of kernel/bpf/verifier.c),
where newer ones give each its own; the kernel of this machine may accept more.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.evidence(feature="arm64", on="not run")

OBJECTS = Path(__file__).parents[3] / "exporter/bpf/objects"
MOST, ROUNDED = 512, 32
_FUNCTION = re.compile(r"^[0-9a-f]+ <((?!LBB)\S+)>:$")
_ACCESS = re.compile(r"\(r10 - (0x[0-9a-f]+|\d+)\)")
_COPY, _BEHIND = re.compile(r"\b(r\d) = r10$"), re.compile(r"\b(r\d) \+= -(0x[0-9a-f]+|\d+)$")
_CALL = re.compile(r"R_BPF_64_32\s+(\S+)$")


def frames(path: Path) -> tuple[dict[str, int], dict[str, set[str]]]:
    """Return the bytes of stack that each function of an object takes, and the functions that it calls."""
    command = ["llvm-objdump", "--disassemble", "--reloc", "--no-show-raw-insn", path]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    sizes: dict[str, int] = defaultdict(int)
    calls: dict[str, set[str]] = defaultdict(set)
    name, copies = "", set[str]()
    for line in text.splitlines():
        if found := _FUNCTION.search(line):
            name, copies = found[1], set()
        elif found := _COPY.search(line):
            copies.add(found[1])
        elif (found := _ACCESS.search(line)) or (found := _BEHIND.search(line)) and found[1] in copies:
            sizes[name] = max(sizes[name], int(found[found.lastindex or 1], 0))
        elif found := _CALL.search(line):
            calls[name].add(found[1])
        sizes[name] += 0
    return sizes, calls


def deepest(path: Path) -> dict[str, int]:
    """Bytes of stack by function, with those of the deepest chain of calls from it."""
    sizes, calls = frames(path)

    @cache
    def depth(name: str) -> int:
        own = (max(sizes[name], 1) + ROUNDED - 1) // ROUNDED * ROUNDED
        return own + max((depth(called) for called in calls[name]), default=0)

    return {name: depth(name) for name in list(sizes) if name}


@pytest.mark.skipif(not shutil.which("llvm-objdump"), reason="llvm-objdump (Debian package llvm) is not installed")
@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_stacks_are_small_enough(architecture: str) -> None:
    """No chain of calls takes more than 512 bytes."""
    objects = sorted((OBJECTS / architecture).glob("*.bpf.o"))
    assert len(objects) > 3
    found = {f"{path.name} {name}": depth for path in objects for name, depth in deepest(path).items()}
    assert len(found) > 50
    assert {} == {name: depth for name, depth in found.items() if depth > MOST}
