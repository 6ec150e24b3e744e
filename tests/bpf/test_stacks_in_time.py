"""Stacks of allocations on a machine that has little time for them: none is lost, or missing without a comment."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from exporter.stack_profiles.model import StackSample
from exporter.stack_profiles.published import StackProfiles
from tests.bpf.cuda_node import BUILD, Script, observe
from tests.bpf.fixtures import once
from tests.bpf.observed import Observed
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(200),
    pytest.mark.evidence(feature="profiles of stacks", on="real program on a stand-in"),
]
ALLOCATE = "new(lib.cuMemAlloc_v2, size({}))"

observed = once(partial(observe, layers="driver", stack_profiles=StackProfiles(wanted=True), profile_cpu_ratio=1.0))


@contextmanager
def known(observed: Observed) -> Iterator[Script]:
    """A script of which the calls and the frames of its interpreter are seen."""
    profiling = observed.collector.profiling
    assert profiling
    interpreters = profiling.capture.object.maps["interpreters"]
    with Script() as script:
        until(lambda: interpreters.get(script.pid) and script.pid in observed.collector.ledger, "it is known")
        yield script


def test_libraries_that_are_loaded_one_after_the_other(observed: Observed, tmp_path: Path) -> None:
    """Each is known when memory is allocated through it for the first time."""
    source = tmp_path / "through.c"
    source.write_text(
        "extern int cuMemAlloc_v2(unsigned long long *address, unsigned long bytes);\n"
        "unsigned long long address;\n"
        "int THROUGH(unsigned long bytes) { return cuMemAlloc_v2(&address, bytes) + 1; }\n"
    )
    with known(observed) as script:
        for n in range(7):
            command = ["gcc", "-O2", "-fPIC", "-shared", f"-DTHROUGH=through_{n}", source, BUILD / "libcuda.so.1"]
            subprocess.run([*map(str, command), "-o", str(tmp_path / f"through_{n}.so")], check=True)
            script.run(f"ctypes.CDLL({str(tmp_path / f'through_{n}.so')!r}).through_{n}(size({4099 + n}))")
            samples: Sequence[StackSample] = observed.collector.node.stack_profiles.source.inuse().samples
            samples = [it for it in samples if it.labels.get("pid") == str(script.pid)]
            [stack] = [it.stack for it in samples if it.values[0] == 4099 + n]
            assert ["cuMemAlloc_v2", f"through_{n}"] == [it.function for it in stack[:2]]
            assert stack[-1].kind == "native" and stack[-1].function == "_start"
