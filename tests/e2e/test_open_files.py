"""The real exporter with few descriptors: HTTP is answered, and the log names the limit to raise."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.test_cli import public_folder
from tests.program.process import Exporter, run

__all__ = ["public_folder", "run"]

REFUSED = 'accel_exporter_libraries_refused_total{reason="descriptors"}'
MAPPER = """if True:
    import mmap, sys, time
    library, folder, held = open(sys.argv[1], "rb").read(), sys.argv[2], []
    for number in range(int(sys.argv[3])):
        path = f"{folder}/{number}.so"
        with open(path, "wb") as file:
            file.write(library + bytes([number]))
        with open(path, "rb") as file:
            held.append(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))
    time.sleep(600)
"""


def limited(count: int) -> tuple[str, ...]:
    return ("prlimit", f"--nofile={count}")


@pytest.mark.parametrize("count", [128, 48, 32])
def test_few_descriptors(run: Callable[..., Exporter], count: int) -> None:
    """Probes without descriptors are left out; scrapes and health checks succeed, and the exporter ends in order."""
    exporter = run(prefix=limited(count)).await_ready()

    for _ in range(5):
        assert [200, 200] == [exporter.get(path)[0] for path in ("/metrics", "/-/healthy")]
    assert exporter.value("process_max_fds") == count
    exporter.await_(lambda: "raise the limit of open files (LimitNOFILE, ulimit -n)" in exporter.log)
    assert "Traceback" not in exporter.log
    assert 0 == exporter.end()


@pytest.mark.needs_bpf
def test_many_libraries(run: Callable[..., Exporter], public_folder: Path) -> None:
    """A job with more libraries than there are descriptors for: the rest is refused, and the reserve stays free."""
    exporter = run(prefix=limited(440)).await_ready()
    folder = public_folder / "copies"
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", MAPPER, public_folder / "libcuda.so.1", folder, "60"]) as job:
        try:

            def attached() -> int:
                page = exporter.get("/metrics")[1]
                found = re.findall(r'^accel_exporter_libraries_attached\{library="\d+\.so"\} (\d+)$', page, re.M)
                return sum(map(int, found))

            exporter.await_(lambda: (exporter.value(REFUSED) or 0) > 0 and attached() > 0)
            assert [200, 200] == [exporter.get(path)[0] for path in ("/metrics", "/-/healthy")]
            assert attached() < 60
            assert (
                0 < (exporter.value("process_open_fds") or 0) < 440 - 110 + 40
            )  # the reserve, less what HTTP has of it
        finally:
            job.kill()
    assert 0 == exporter.end()
