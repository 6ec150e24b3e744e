"""Need for each capability on this kernel, as exporter/bpf/privileges.py lists them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.bpf import multi, privileges
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.skipif(
        not multi.supported(), reason="without multi-uprobe links CAP_SYS_ADMIN is needed for everything"
    ),
    pytest.mark.evidence(feature="privileges", on="real software"),
]

OBSERVE = """
import sys
from pathlib import Path
from exporter.bpf import multi, object_path, privileges
from exporter.bpf.elf import Elf
from exporter.bpf.libbpf import Object
from exporter.bpf.uprobe import Point, attach

process, keep = Path("/proc", sys.argv[1]), sys.argv[2:]
privileges.drop(keep)
doing = "load"
try:
    with Object(object_path("calibrate")) as loaded:
        doing = "read another user's process"
        (process / "environ").read_bytes()
        doing = "list mapped files"
        files = list((process / "map_files").iterdir())
        doing = "open a mapped file"
        [file] = [file for file in files if "libc.so" in str(file.readlink())][:1]
        with Elf.open(file) as elf:
            point = Point(elf.functions(["getppid"])["getppid"].offset)
        doing = "attach"
        attach(loaded.programs["on_entry"], file, [point]).close()
    doing = "nothing"
except OSError as error:
    pass
print(doing)
"""


@pytest.fixture(scope="module")
def another_user() -> Iterator[str]:
    """The pid of a process of another user."""
    process = subprocess.Popen(["setpriv", "--reuid=65534", "--clear-groups", "sleep", "300"])
    maps = Path(f"/proc/{process.pid}/maps")
    try:
        until(lambda: all(it in maps.read_text() for it in ("/sleep", "libc.so")), "it is another user's")
        yield str(process.pid)
    finally:
        process.kill()
        process.wait(20)


def fails_to(pid: str, keep: set[str]) -> str:
    done = subprocess.run([sys.executable, "-c", OBSERVE, pid, *keep], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_all_that_is_kept_suffices(another_user: str) -> None:
    """With the capabilities that a run keeps, another user's mapped library can be found, read and attached to."""
    assert "nothing" == fails_to(another_user, set(privileges.OBSERVING))


@pytest.mark.parametrize("capability", privileges.OBSERVING)
def test_each_that_is_kept_is_needed(another_user: str, capability: str) -> None:
    """Without any one of them a step fails."""
    assert "nothing" != fails_to(another_user, set(privileges.OBSERVING) - {capability})


def test_mapped_files_are_the_last_hurdle(another_user: str) -> None:
    """Without CAP_CHECKPOINT_RESTORE all else works, but mapped files cannot be opened."""
    assert "open a mapped file" == fails_to(another_user, set(privileges.OBSERVING) - {"CAP_CHECKPOINT_RESTORE"})
