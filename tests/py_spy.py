"""py-spy, a sampling profiler that stops the process, out of its wheel: what our stacks are compared with."""

from __future__ import annotations

from pathlib import Path

from tests.wheels import fetch, library

RELEASE = "py-spy==0.4.2", "py-spy"


def program() -> Path:
    """The program, for tests: as tests.wheels.library."""
    return _executable(library(*RELEASE))


def fetched() -> Path:
    """The program. Raises tests.wheels.NotFetched."""
    return _executable(fetch(*RELEASE))


def _executable(path: Path) -> Path:
    path.chmod(0o755)
    return path
