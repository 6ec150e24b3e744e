"""Workers of pytest that probe processes at the same time: none sees what runs on the files of another.

Probes are attached to files, so each worker has stand-ins of its own, and its exporters leave alone what runs on those
of others. Libraries of the system stay common to all.
`python -m tests.workers` is the exporter as such a worker runs it.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STANDINS = ROOT / "tests" / "standins"
VARIABLE = "ACCEL_TESTS_FOLDERS"
"""Variable with the folders of a worker's own libraries, separated by colons; not set without workers."""
_OF_TESTS = re.compile(r"/(popen-gw\d+|pytest-of-[^/]+|build/workers/gw\d+|tests/(standins|softgpu)/build)/")
"""In paths of files that a test made: folders of pytest, also without workers, and of stand-ins of each checkout."""
_AT_START = f"""
import sys
if sys.orig_argv[1:3] == ["-m", "exporter"]:
    sys.path.append({str(ROOT)!r})
    from tests import workers
    workers.see_own_files()
"""


def begin(worker: str, folder: Path) -> None:
    """Has this process, a worker of pytest with this folder for its tests, and what it starts see no other worker's."""
    os.environ[VARIABLE] = f"{folder}:{ROOT / 'build' / 'workers' / worker}"
    see_own_files()


def standins() -> Path:
    """Return the folder of the stand-ins that are this worker's."""
    own = os.environ.get(VARIABLE)
    return Path(own.rpartition(":")[2]) if own else STANDINS / "build"


def take_standins() -> None:
    """Copy the stand-ins into the worker's folder, as far as they have changed."""
    if (own := standins()) == STANDINS / "build":
        return
    for source in (STANDINS / "build").rglob("*"):
        copy = own / source.relative_to(STANDINS / "build")
        if source.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        elif not copy.exists() or copy.stat().st_mtime_ns != source.stat().st_mtime_ns:
            copy.parent.mkdir(parents=True, exist_ok=True)
            new = copy.with_name(f"{copy.name}.new")
            shutil.copy2(source, new)
            new.rename(copy)


def environment(folder: Path) -> dict[str, str]:
    """Return variables for a program that starts `python -m exporter` itself, on the stand-ins common to all workers.

    That exporter sees these and the worker's own files. `folder` gets a file that Python runs at each start.
    """
    if not (own := os.environ.get(VARIABLE)):
        return {}
    (folder / "sitecustomize.py").write_text(_AT_START)
    return {VARIABLE: f"{STANDINS / 'build'}:{own}", "PYTHONPATH": str(folder)}


def is_anothers(path: str) -> bool:
    """Return whether a file belongs to tests, but not to this worker."""
    own = os.environ.get(VARIABLE, "").split(":")
    return bool(_OF_TESTS.search(path)) and not path.startswith(tuple(f"{folder}/" for folder in own))


def see_own_files() -> None:
    """Have the search for libraries find nothing in files of other workers."""
    if VARIABLE not in os.environ:
        return
    from exporter.bpf import verdicts

    examine = verdicts.examine

    def of_own(proc: Path, mapping: Any, *rest: Any) -> Any:
        link = proc / str(mapping.pid) / "map_files" / f"{mapping.start:x}-{mapping.end:x}"
        try:
            path = str(link.readlink())
        except OSError:
            path = ""  # it is gone, which examine finds too
        return None if is_anothers(path) else examine(proc, mapping, *rest)

    verdicts.examine = of_own


if __name__ == "__main__":
    from exporter.__main__ import main

    see_own_files()
    raise SystemExit(main())
