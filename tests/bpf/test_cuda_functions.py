"""Every function of the table of CUDA functions: its calls have exactly their effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from exporter.cuda.functions import FUNCTIONS
from tests.bpf import cuda_calls as declared
from tests.bpf.cuda_calls import SIZES
from tests.bpf.cuda_effects import EFFECTS, Counts, Tried
from tests.bpf.cuda_gpus import Node
from tests.bpf.cuda_node import Script, observe, started
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="CUDA functions and structures", on="stand-in")]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def libraries(compile_library: Callable[[str, str], Path]) -> tuple[Path, Path]:
    driver = compile_library("libcuda.so.1", declared.source("driver"))
    return driver, compile_library("libcudart.so.12", declared.source("runtime"))


def process(libraries: tuple[Path, Path]) -> Script:
    script = Script(libraries[0])
    script.libraries = set(map(str, libraries))
    script.run(f"sys.path.insert(0, {str(ROOT)!r})")
    script.run("from tests.bpf.cuda_caller import *; from tests.bpf.cuda_device_caller import *")
    script.run(f"load(*{tuple(map(str, libraries))!r})")
    return script


@pytest.fixture(params=[False, True], ids=["some errors", "all errors"])
def processes(request: pytest.FixtureRequest, libraries: tuple[Path, Path]) -> Iterator[Iterator[Tried]]:
    """Two processes that use one GPU, and one that uses two; all are seen from their first call on.

    Each begins when it is taken: some numbers are of the whole node.
    """
    node = Node()
    with ExitStack() as stack:
        observed = stack.enter_context(observe(gpus=node.gpus, all_errors=request.param))
        started(observed, stack.enter_context(process(libraries)))
        scripts = [started(observed, stack.enter_context(process(libraries))) for _ in EFFECTS]
        node.listed.update({it.pid: {0: 0} for it in scripts} | {scripts[-1].pid: {0: 0, 1: 0}})
        for script in scripts:
            until(partial(observed.kernel, "covered", script.pid), "seen from the first call on")
            script.run("use_two_devices()" if script is scripts[-1] else "use_one_device()")
        yield (Tried(observed, it, request.param) for it in scripts)


def test_every_function(processes: Iterator[Tried]) -> None:
    """23 calls of each function change what they should and nothing else, and three that fail are errors.

    In all the exporter counts as many as the libraries do themselves. A function that is added to the table needs a
    declaration in tests/bpf/cuda_calls.py, and an effect in tests/bpf/cuda_effects.py.
    """
    made = Counts()
    for it, effects in zip(processes, EFFECTS, strict=True):
        for effect in effects:
            effect(it)
            it.settle()
        for of in ("driver", "runtime"):
            own = it.script.run(f"out = own_counts({of!r})")
            made.update(own)
            assert {name: count for name, count in own.items() if name not in declared.CHANGES} == it.counted(of)
        assert {} == it.observed.lost
    assert {it.name for it in FUNCTIONS} == {name for name, count in made.items() if count >= len(SIZES)}
