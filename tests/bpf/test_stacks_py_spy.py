"""Stacks of allocations against those that py-spy reads of the same process at the same point."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from exporter.stack_profiles.published import StackProfiles
from tests import py_spy
from tests.bpf.cuda_node import BUILD, build_standins, observe
from tests.bpf.observed import Observed
from tests.bpf.test_stacks import FOUND, SOURCES, is_known
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(1800),
    pytest.mark.evidence(feature="profiles of stacks", on="real program on a stand-in"),
]
READ = {version: program for version, program in FOUND.items() if not version.startswith("3.14")}
"""The interpreters that this release of py-spy was tried with."""
SAMPLES = 200
SAME = 0.99
STARTS = {"", "__libc_start_main", "__libc_start_call_main", "_start", "thread_run"}
"""First functions of a program or thread: py-spy ends there, or shows a function of the interpreter's own. For a
library without symbols py-spy shows an address."""
OF_DEBUG_FILES = {"msort_with_tmp", "0", "start_thread", "__clone3"}
"""Functions that only the debug file of the C library names, unread by py-spy; "0" is msort_with_tmp.part.0."""
Function = tuple[str, int]
"""A name, and the line in Python; 0 of native functions."""


class Ways:
    """An interpreter that runs ways.py."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self.pid = process, process.pid

    def stop(self, number: int) -> None:
        """Have it allocate by the way of a number and stop there."""
        self._write(f"{number}\n")
        assert self._read() == "stopped"

    def go_on(self) -> None:
        self._write("\n")
        assert self._read() == "done"

    def _write(self, text: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def _read(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()


@contextmanager
def ways(python: Path, module: Path) -> Iterator[Ways]:
    command = [python, "-E", "-s", SOURCES / "ways.py", module]
    environment = os.environ | {"LD_LIBRARY_PATH": str(BUILD)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Ways(process)
        finally:
            process.kill()


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """The folder of the C module that stops where it has allocated."""
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        pytest.skip("this interpreter has no Python.h to compile a module with")
    build_standins()
    command = ["gcc", "-O2", "-fPIC", "-DSTOPS", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-shared"]
    command += [f"-I{headers}", SOURCES / "sites.c", "-o", tmp_path / "sites.so", BUILD / "libcuda.so.1"]
    subprocess.run([*map(str, command)], check=True)
    return tmp_path


def outer(functions: list[Function]) -> list[Function]:
    """From the function of sites.c outwards, what has a name."""
    names = [name for name, _ in functions]
    at = next((n for n, name in enumerate(names) if name.startswith("site_")), len(names))
    return [it for it in functions[at:] if it[0] not in STARTS | OF_DEBUG_FILES and not it[0].startswith("0x")]


def theirs(pid: int) -> list[Function]:
    """Return the functions that py-spy finds in the thread that is in sites.c."""
    command = [str(py_spy.program()), "dump", "--native", "--json", f"--pid={pid}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = [
        outer([(it["name"].rpartition(".")[2], it["line"] * it["filename"].endswith(".py")) for it in thread["frames"]])
        for thread in json.loads(done.stdout)
    ]
    return next(filter(None, found))


def ours(observed: Observed, pid: int) -> dict[int, list[Function]]:
    """The stacks of a process's allocations by their bytes."""
    samples = observed.collector.node.stack_profiles.source.alloc().samples
    return {
        it.values[0]: outer(
            [(frame.function.rpartition(".")[2], frame.line * (frame.kind == "python")) for frame in it.stack]
        )
        for it in samples
        if it.labels.get("pid") == str(pid)
    }


def test_the_same_functions_as_py_spy(module: Path) -> None:
    """In as many of SAMPLES allocations as the share SAME, all interpreters together, each by its own way and site."""
    build_standins()
    different = []
    each = -(-SAMPLES // len(READ))
    with observe(layers="driver", stack_profiles=StackProfiles(wanted=True), profile_cpu_ratio=1.0) as observed:
        for version, python in READ.items():
            with ways(python, module) as job:
                until(lambda pid=job.pid: is_known(observed, pid), "its interpreter is known")
                expected = {}
                for number in range(each):
                    job.stop(number)
                    expected[4099 + number] = theirs(job.pid)
                    job.go_on()
                found = ours(observed, job.pid)
            assert found.keys() == expected.keys()
            different += [(version, found[it], expected[it]) for it in expected if found[it] != expected[it]]
    share = 1 - len(different) / (each * len(READ))
    assert share >= SAME, f"{share:.1%} are the same; different are {different[:3]}"
