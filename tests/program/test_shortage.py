"""A start without enough memory: one sentence with what to do."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from exporter import shortage

ROOT = Path(__file__).parents[2]
LIMITS = "Max cpu time unlimited unlimited seconds\nMax address space         {}           unlimited            bytes\n"
NO_THREAD = RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    ("error", "space", "expected"),
    [
        (MemoryError(), 600 << 20, "memory (MemoryError); raise the limit of address space from 600 to 1024 MiB"),
        (MemoryError(), "unlimited", "memory (MemoryError); raise the limit of memory (MemoryMax=,"),
        (OSError(errno.ENOMEM, "x"), "unlimited", "memory (OSError: [Errno 12] x); raise the limit of memory"),
        (ImportError("a.so: failed to map segment from shared object"), "unlimited", "memory (ImportError: a.so: "),
        (NO_THREAD, 600 << 20, "room for threads (RuntimeError: can't start new thread); raise the limit of address"),
        (NO_THREAD, "unlimited", "room for threads (RuntimeError: can't start new thread); raise the limit of tasks"),
        (SystemError("x"), 200 << 20, "memory (SystemError: x); raise the limit of address space from 200 to 1024 MiB"),
        (SystemError("x"), 600 << 20, ""),
        (ImportError("no module named x"), "unlimited", ""),
        (RuntimeError("x"), "unlimited", ""),
        (OSError(errno.EACCES, "x"), "unlimited", ""),
    ],
)
def test_sentences(tmp_path: Path, error: Exception, space: object, expected: str) -> None:
    """The sentence names the shortage and the limit to raise; errors of other causes are not explained."""
    limits = tmp_path / "limits"
    limits.write_text(LIMITS.format(space))
    sentence = shortage.explain(error, str(limits))
    assert sentence.startswith(f"there is not enough {expected}") if expected else not sentence


def test_without_procfs(tmp_path: Path) -> None:
    """If the limits cannot be read, a lack of memory is explained all the same."""
    absent = str(tmp_path / "limits")
    assert "MemoryMax=" in shortage.explain(MemoryError(), absent)
    assert ("", "") == (shortage.explain(KeyError(), absent), shortage.foreseen(absent))


def program(code: str) -> tuple[int, list[str]]:
    """Run a program. Return its exit code and the lines that it wrote."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    return done.returncode, (done.stdout + done.stderr).splitlines()


LIMITED = """if True:
    import re, resource, sys, threading
    from pathlib import Path
    {imports}
    from exporter.__main__ import main
    space = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
    threading.stack_size(8 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (space + {more},) * 2)
    sys.exit(main(["--collector.disable-defaults", "--privileges.keep", "--web.listen-address=127.0.0.1:0"]))
"""


@pytest.mark.parametrize(
    ("imports", "more"),
    [("pass", 1 << 20), ("import exporter.cli", 1 << 20), ("import exporter.cli", 12 << 20)],
    ids=["modules", "the first thread", "a later thread"],
)
def test_a_start_with_little_memory(imports: str, more: int) -> None:
    """The program ends with 1 and a sentence, and no traceback; a thread's stack takes 8 MiB."""
    code, lines = program(LIMITED.format(imports=imports, more=more))
    assert 1 == code
    assert lines[-1].startswith("accel-exporter: there is not enough ")
    assert lines[-1].endswith(" MiB (ulimit -v, LimitAS=)")
    assert all(line.startswith("ts=") for line in lines[:-1])
