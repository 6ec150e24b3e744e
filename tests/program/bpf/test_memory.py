"""The allocator's settings, on this machine's C library."""

from __future__ import annotations

import platform
import subprocess
import sys

from exporter.bpf.memory import give_back

KEPT = """
import re
from exporter.bpf.memory import give_back
if {settings}: give_back()
blocks = [bytes(5 << 20) for _ in range(4)]; del blocks  # the allocator learns that blocks of this size are freed
small = []
for _ in range(8):
    block = bytearray(4 << 20); small.append(bytearray(2000)); del block
    small += [bytearray(2000) for _ in range(10)]
print(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


def test_the_c_library_takes_the_settings() -> None:
    """glibc, which every supported distribution has, accepts them."""
    assert give_back() == (platform.libc_ver()[0] == "glibc")


def test_large_blocks_go_back() -> None:
    """With them a process that used large blocks between small ones does not end up larger than without."""
    without, with_settings = (
        int(subprocess.run([sys.executable, "-c", KEPT.format(settings=it)], capture_output=True, check=True).stdout)
        for it in (False, True)
    )
    assert with_settings <= without + 256


def test_what_has_started_is_looked_through_no_more() -> None:
    """After a start the collector of cycles knows the program's objects as permanent, and still finds new cycles."""
    check = """
import gc, weakref
from exporter.bpf.memory import settle
known = len(gc.get_objects())
settle()
assert gc.get_freeze_count() > 0.9 * known and len(gc.get_objects()) < 0.1 * known
class Cycle: pass
one = Cycle(); one.itself = one; seen = weakref.ref(one); del one
kept = [[] for _ in range(30_000)]
assert seen() is None
"""
    subprocess.run([sys.executable, "-c", check], check=True)
