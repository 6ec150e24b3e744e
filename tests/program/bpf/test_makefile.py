"""Two builds of the objects at once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

BPF = Path(__file__).parents[3] / "bpf"
MEETING = """#!/bin/sh
echo >> "{folder}/$PPID.here"
until [ "$(ls "{folder}" | grep -c here)" -ge {builds} ]; do sleep 0.05; done
{then}
"""


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("then", "code"), [("exit 0", 0), ("exit 1", 2)])
def test_two_builds_at_once(tmp_path: Path, then: str, code: int) -> None:
    """Each has temporary files of its own, and leaves none: the object is whole, or is not there."""
    out, builds = tmp_path / "out", 2
    compiler = script(tmp_path / "cc", '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho object > "$2"\n')
    strip = script(tmp_path / "strip", MEETING.format(folder=tmp_path, builds=builds, then=then))
    made = f"{out}/x86_64/exits.bpf.o"
    command = ["make", "-s", "-C", str(BPF), f"OUT={out}", f"CLANG={compiler}", f"STRIP={strip}", made]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(builds)]

    ended = [(it.communicate(timeout=60)[1], it.returncode) for it in running]

    assert [code] * builds == [it for _, it in ended], ended
    assert ([] if code else ["exits.bpf.o"]) == [it.name for it in (out / "x86_64").iterdir()]
