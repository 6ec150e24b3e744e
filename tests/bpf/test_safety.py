"""Return probes tried on a program of our own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from exporter.bpf import object_path
from exporter.bpf.libbpf import Object
from exporter.bpf.safety import FUNCTION_AT, RETURN, Confinement, image, protection, try_return_probes
from exporter.bpf.trial_program import CODE, TrialProgram
from exporter.bpf.uprobe import Point, attach

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.evidence(feature="return probes", on="real software"),
]

tried = pytest.mark.skipif(os.uname().machine != "x86_64", reason="return probes are tried on x86-64 only")


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@tried
def test_trial() -> None:
    """The answer is that of this kernel: the same trial, counted and judged by hand, has the same result."""
    with Object(object_path("calibrate")) as loaded, TrialProgram(image()) as program:
        link = attach(loaded.programs["on_return"], program.path, [Point(CODE + FUNCTION_AT)], returns=True)
        ends = [program.run(confinement)[0] for confinement in Confinement]
        link.close()
        hits = loaded.maps["hits"].get(RETURN)
    assert hits == sum(end == 42 for end in ends)
    assert (ends[:4] == [42] * 4) == try_return_probes().seccomp


def test_among_threads() -> None:
    """The trial can be run beside busy threads, and harms none."""
    stop, rounds = threading.Event(), []

    def work() -> None:
        count = 0
        while not stop.is_set():
            count += 1
        rounds.append(count)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    survival = try_return_probes()
    stop.set()
    for worker in workers:
        worker.join()
    assert survival == try_return_probes()
    assert len(workers) == len([count for count in rounds if count])


def test_nothing_left() -> None:
    """Nothing stays open after the trial."""
    try_return_probes()
    before = open_descriptors()
    try_return_probes()
    assert before == open_descriptors()


def test_protection_of_real_processes() -> None:
    """A process that put itself under a filter is seen to have one, its parent not."""
    script = (
        "import ctypes,sys; c=ctypes.CDLL(None); c.prctl(38,1,0,0,0); f=(ctypes.c_uint64*1)(0x7fff000000000006);"
        "p=(ctypes.c_uint64*2)(1,ctypes.addressof(f)); print(c.prctl(22,2,p),flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert "0\n" == child.stdout.readline()
        filtered, ours = protection(Path("/proc"), child.pid), protection(Path("/proc"), os.getpid())
        assert child.stdin is not None
        child.stdin.close()
    assert filtered is not None and ours is not None
    assert (True, "\nSeccomp:\t0\n" not in Path("/proc/self/status").read_text()) == (filtered.seccomp, ours.seccomp)


@tried
def test_object_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that is not possible does not count as safe, and has a reason."""
    monkeypatch.setattr("exporter.bpf.safety.object_path", lambda stem: object_path(f"no-{stem}"))
    survival = try_return_probes()
    assert (False, False) == (survival.seccomp, survival.shadow_stack)
    assert "could not be tried: open " in survival.doubt
