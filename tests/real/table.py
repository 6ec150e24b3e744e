"""docs/real-software.md: what ran, with which release, when; written by each run of tests/real."""

from __future__ import annotations

import platform
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.real.releases import Release

PAGE = Path(__file__).parents[2] / "docs" / "real-software.md"
HEAD = """<!-- Written by `make test-real`; do not edit. -->

# Real software

Released programs, unmodified wheels from PyPI, run without a GPU and are observed by the real exporter. They run on a
simulated CUDA driver and, for PyTorch, JAX and NCCL, a simulated CUDA runtime ([tests/softgpu](../tests/softgpu)); the
other programs call only the driver. Device memory is host memory, and kernels do nothing. Driver and runtime count
their own calls, and **every number here is the exporter's number and equals theirs**: launches, calls and errors by
function, waits, bytes in use by kind of memory, bytes copied by direction and kind of host memory. For NCCL, calls
and bytes equal the ranks' own counts. The programs do little but call the driver, so the exporter runs without its
bound (`--overhead.max-ratio=0`): with the default it estimates such calls ([overhead](overhead.md)).

The table shows that each call of a real program is seen exactly once, and that bytes in use equal PyTorch's
`memory_reserved()` and the `pool_bytes` of JAX's `memory_stats()`. It shows nothing about NVIDIA's runtime and driver.
NVIDIA's runtime authenticates its driver and does not run on the simulated driver, and neither does a library with a
statically linked runtime (cuBLAS, cuDNN, newer NCCL, the wheels of CuPy 14). PyTorch has a simulated cuBLAS instead:
each product of matrices is the launch of one kernel, and nothing is multiplied. XLA, which compiles nothing without
cuDNN, has a stand-in that offers only a handle. PyTorch 2.15.0, which is newer, has not been run.

SGLang runs whole on the simulated GPU: its server, scheduler, CUDA graphs, kernels that Triton and nvcc compile, and a
model of random weights. Its tokens are what memory holds that no kernel has written. vLLM runs whole, on processors
instead of a GPU. Requests and tokens are those that the servers themselves and their clients count.

| software | program | equal on both sides | ran |
|---|---|---|---|
"""

_rows: dict[tuple[str, str], list[str]] = {}
"""Numbers of this run by software and program."""
_failed: set[tuple[str, str]] = set()


def note(item: pytest.Item, numbers: str) -> None:
    """A test has found these numbers equal."""
    _rows.setdefault(_key(item), []).append(numbers)


def fail(item: pytest.Item) -> None:
    """A test has failed: what it noted before counts for nothing, and nor does an earlier run."""
    _failed.add(_key(item))


def finish(session: pytest.Session) -> None:
    """Writes the page: rows of tests that ran are replaced, others are kept with their date, or after a run of all of
    tests/real removed.
    """
    config = session.config
    whole = not config.option.keyword and [Path(path).name for path in config.args] == ["real"]
    kept = {} if whole or not PAGE.exists() else _written(PAGE.read_text())
    ran = f"{datetime.now(UTC).date().isoformat()}, Linux {'.'.join(platform.release().split('.')[:2])}"
    rows = kept | {key: f"{'; '.join(numbers)} | {ran}" for key, numbers in _rows.items()}
    rows |= dict.fromkeys(_failed, "")
    if _rows or _failed:
        PAGE.write_text(HEAD + "".join(f"| {' | '.join(key)} | {rest} |\n" for key, rest in rows.items() if rest))


def _key(item: pytest.Item) -> tuple[str, str]:
    """The software, and what it does: the first line of the test's docstring."""
    release: Release = item.callspec.params["release"]  # type: ignore[attr-defined]
    title = (item.obj.__doc__ or item.name).strip().splitlines()[0].rstrip(".")  # type: ignore[attr-defined]
    return release.title, title


def _written(page: str) -> dict[tuple[str, str], str]:
    """The rows of a page, but for the table's head."""
    found = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (.+ \| \d{4}-.+) \|$", page, re.MULTILINE)
    return {(software, program): rest for software, program, rest in found}
