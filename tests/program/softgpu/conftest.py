"""The soft GPU, compiled for this worker: other workers' exporters do not see processes on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.softgpu.process import Process, Start, build


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("softgpu"))


@pytest.fixture
def start(libraries: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts processes that count in one folder."""
    with ExitStack() as stack:
        yield lambda **variables: stack.enter_context(Process(libraries, tmp_path, **variables))
