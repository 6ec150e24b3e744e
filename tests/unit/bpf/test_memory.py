"""The allocator's setting, on this machine's C library."""

from __future__ import annotations

import platform

from exporter.bpf.memory import share_one_arena


def test_the_c_library_takes_the_setting() -> None:
    """glibc, which every supported distribution has, accepts one arena."""
    assert share_one_arena() == (platform.libc_ver()[0] == "glibc")
