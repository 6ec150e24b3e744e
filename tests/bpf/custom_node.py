"""The collector of custom probes on real processes, compiled by Debian's bcc, for tests."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from exporter.bpf.libbpf import run_time_statistics
from exporter.bpf.targets import Targets
from exporter.collectors import custom
from exporter.custom.collector import Custom
from exporter.model import Sample, Span
from exporter.resolve.process import ProcessTable
from exporter.views.prometheus import name
from tests.nodes import make_node
from tests.support import until

WITHIN = 120.0
DEFAULTS = {option.name: option.default for option in custom.OPTIONS}


def bcc_missing() -> str:
    """Why there is no bcc here; empty if there is."""
    python = str(DEFAULTS[custom.PYTHON])
    found = subprocess.run([python, "-I", "-c", "from bcc import BPF"], capture_output=True, text=True)
    return found.stderr.strip().splitlines()[-1] if found.returncode else ""


def kernel_headers(folder: Path) -> str:
    """The setting for the running kernel's headers; for a kernel without any, those of Debian's cloud kernel.

    Debian has them in two trees, which only links under /lib/modules join: here they are joined in `folder`.
    """
    if (Path("/lib/modules") / platform.release() / "build").is_dir():
        return ""
    for own in sorted(Path("/usr/src").glob("linux-headers-*-cloud-*")):
        shared = own.with_name(own.name.rpartition("-cloud-")[0] + "-common")
        if shared.is_dir():
            joined = folder / "headers"
            joined.mkdir()
            for tree in (shared, own):
                subprocess.run(["cp", "-rsf", tree / "include", tree / "arch", joined], check=True)
            return str(joined)
    return pytest.skip("no kernel headers: apt-get install linux-headers-cloud-$(dpkg --print-architecture)")


class Observed:
    """A running collector and its output."""

    def __init__(self, collector: Custom, targets: Targets, spans: list[Span]) -> None:
        self.collector, self.targets, self.spans = collector, targets, spans

    def samples(self) -> list[Sample]:
        return list(self.collector.collect())

    def values(self, metric: str, **labels: str) -> list[Sample]:
        wanted = labels.items()
        return [
            sample for sample in self.samples() if name(sample.metric) == metric and wanted <= sample.labels.items()
        ]

    def value(self, metric: str, **labels: str) -> Any:
        """The one value of a metric with these labels; None if there is none."""
        found = self.values(metric, **labels)
        assert len(found) <= 1, f"{metric} {labels}: {found}"
        return found[0].value if found else None

    def problems(self) -> list[str]:
        return list(self.collector.problems())


@contextmanager
def observe(folder: Path, headers: str, **settings: Any) -> Iterator[Observed]:
    """The collector on this folder, attached and settled."""
    spans: list[Span] = []
    targets = Targets(grace=0.5)
    chosen = DEFAULTS | {custom.DIR: str(folder), custom.HEADERS: headers, custom.INTERVAL: 0.1} | settings
    statistics = run_time_statistics()
    collector = Custom(make_node(chosen, ProcessTable(), targets, spans.append))
    collector.start()
    try:
        targets.start()
        try:
            assert targets.scanned.wait(WITHIN)
            assert collector.settle(WITHIN)
            yield Observed(collector, targets, spans)
        finally:
            targets.close()
    finally:
        collector.close()
        statistics.close()


def attached(observed: Observed, library: Path, symbols: int = 1) -> None:
    """Wait until a file of that path has its probes; a container on this machine may have another one there."""

    def all_are() -> bool:
        values = [it.value for it in observed.values("accel_exporter_probe_attached", library=str(library))]
        return len(values) >= symbols and set(values) == {1}

    until(all_are, "attached")


def put(folder: Path, stem: str, code: str, meaning: str) -> None:
    """A probe in the folder, as root would leave it there."""
    for suffix, text in ((".c", code), (".yaml", meaning)):
        path = folder / f"{stem}{suffix}"
        path.write_text(text)
        path.chmod(0o644)


class Caller:
    """A process that calls functions of a library on request: `call("name", n)`."""

    LOOP = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    name, count, *arguments = line.split()
    for _ in range(int(count)):
        getattr(lib, name)(*map(int, arguments))
    print("done", flush=True)
"""

    def __init__(self, library: Path) -> None:
        self.process = subprocess.Popen(
            [str(shutil.which("python3")), "-c", self.LOOP, library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        self._answer()

    def call(self, name: str, count: int, *arguments: int) -> None:
        assert self.process.stdin
        print(name, count, *arguments, file=self.process.stdin, flush=True)
        self._answer()

    def _answer(self) -> None:
        assert self.process.stdout and self.process.stdout.readline()

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            stream.close()
