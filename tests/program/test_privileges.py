"""Capabilities are given up for good."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.bpf import privileges

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to give up")

DROPPED = """
import subprocess
from exporter.bpf import privileges
print(sorted(privileges.drop(["CAP_BPF", "CAP_SYS_PTRACE"])))
print(sorted(privileges.effective()))
print(subprocess.run(["grep", "-hE", "^(CapPrm|CapEff|CapAmb|NoNewPrivs)", "/proc/self/status"],
                     capture_output=True, text=True).stdout)
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_root
def test_drop() -> None:
    """Kept capabilities are in effect, others are dropped, and a program started afterwards gets no more."""
    kept, effective, *child = run(DROPPED).splitlines()

    assert "['CAP_BPF', 'CAP_SYS_PTRACE']" == kept == effective
    mask = f"{1 << 39 | 1 << 19:016x}"
    assert [f"CapPrm:\t{mask}", f"CapEff:\t{mask}", f"CapAmb:\t{0:016x}", "NoNewPrivs:\t1"] == [
        line for line in child if line
    ]


@needs_root
def test_drop_twice() -> None:
    """Dropped capabilities do not come back."""
    code = "from exporter.bpf.privileges import drop; drop(['CAP_BPF']); print(sorted(drop(['CAP_BPF', 'CAP_SYSLOG'])))"
    assert "['CAP_BPF']\n" == run(code)


def test_drop_with_threads() -> None:
    """With a second thread running, which would keep its capabilities, dropping is refused."""
    code = (
        "import threading; from exporter.bpf.privileges import drop\n"
        "stop = threading.Event(); threading.Thread(target=stop.wait).start()\n"
        "try: drop([])\nexcept RuntimeError as error: print(error)\nfinally: stop.set()\n"
    )
    assert "capabilities have to be dropped before the first thread starts\n" == run(code)


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        ("0000000000000000", []),
        ("000001ffffffffff", sorted(privileges.CAPABILITIES)),
        ("000000c000000000", ["CAP_BPF", "CAP_PERFMON"]),
    ],
)
def test_effective(tmp_path: Path, mask: str, names: list[str]) -> None:
    """The kernel's mask read as names."""
    status = tmp_path / "status"
    status.write_bytes(b"Name:\t\xff\nCapPrm:\t000001ffffffffff\nCapEff:\t%s\n" % mask.encode())

    assert names == sorted(privileges.effective(status))
