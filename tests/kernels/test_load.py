"""On the kernels of Debian's releases, in virtual machines: the verifier takes every program, and probes count."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernels import systems
from tests.kernels.systems import TOOLS, Guest
from tests.packages import NotAvailable
from tests.rdma import rig
from tests.rdma.rig import REPOSITORY

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.evidence(feature="older kernels", on="real kernel, emulated hardware"),
    pytest.mark.evidence(feature="arm64", on="real kernel, emulated hardware"),
]

SUITES = {"bookworm": "6.1", "bookworm-backports": "6.12", "trixie-backports": "7", "sid": "7"}
"""Debian suite and the version of its kernel; README.md names them."""
MACHINES = [(suite, architecture) for architecture in TOOLS for suite in SUITES]
COUNTED = (
    "tests/bpf/test_cuda_counts.py::test_each_call_counts_once",
    "tests/bpf/test_cuda_memory.py::test_allocations_of_the_driver",
    "tests/bpf/test_exits.py::test_ends",
    "tests/bpf/test_hip.py::test_23_of_each",
    "tests/bpf/test_kernel_stacks.py",
    "tests/bpf/test_nccl_counts.py::test_every_collective",
    "tests/bpf/test_verbs_data.py::test_23_requests_are_23",
    "tests/bpf/test_verbs_extended.py::test_23_built_requests_are_23",
    "tests/bpf/test_verbs_extended.py::test_extended_polls",
)
MILLIONS = "tests/bpf/test_cuda_counts.py::test_threads_launch_and_allocate"
"""Not on arm64: probes single-step there, and emulated that many take ten minutes."""
LOAD = """
import os
from pathlib import Path
from exporter.bpf.libbpf import BpfError, Object
found = sorted(Path("exporter/bpf/objects", os.uname().machine).glob("*.o"))
for path in found:
    try:
        Object(path).close()
        if path.name == "serving.bpf.o":
            Object(path, constants={"tls": 1}).close()
        print(path.name, "loaded")
    except BpfError as error:
        print(path.name, str(error)[-900:])
"""


@pytest.fixture(scope="module", params=MACHINES, ids="-".join)
def machine(request: pytest.FixtureRequest) -> Iterator[Guest]:
    suite, architecture = request.param
    if missing := rig.missing(tools=TOOLS[architecture]):
        if os.environ.get("REQUIRE_KERNELS") == "1":
            pytest.fail(f"REQUIRE_KERNELS=1, but {missing}")
        pytest.skip(f"{missing}; make test-kernels gets it")
    with ExitStack() as stack:
        try:
            guest = stack.enter_context(systems.guest(suite, architecture))
        except NotAvailable as error:
            pytest.skip(f"no kernel of {suite} for {architecture}: {error}")
        assert guest.host.run("uname -r").startswith(f"{SUITES[suite]}.")
        yield guest


def test_every_object_loads(machine: Guest) -> None:
    """The kernel's verifier takes every program of every object there is."""
    printed = machine.run(f"-c '{LOAD}'", 240)

    objects = [it.name for it in Path(REPOSITORY, "bpf").rglob("*.bpf.c")]
    assert sorted(f"{Path(name).stem}.o loaded" for name in objects) == sorted(printed.splitlines())


def test_calls_are_counted(machine: Guest) -> None:
    """Probes attach, and calls, bytes, requests and ends of processes are counted as tests/bpf expects them."""
    tests = COUNTED if machine.architecture == "arm64" else (*COUNTED, MILLIONS)
    machine.run(f"-m pytest -q -p no:cacheprovider --timeout=0 {' '.join(tests)}", 600)


def test_tls_in_the_kernel(machine: Guest) -> None:
    """Requests of a server with TLS in the kernel are one each: Debian's kernels have its module."""
    if machine.architecture != "amd64" or machine.host.run("uname -r").startswith("6.1."):
        pytest.skip("requests are followed on Linux 6.3 and newer, and arm64's machine has no gunicorn")
    printed = machine.run("-m pytest -q -rs -p no:cacheprovider --timeout=0 tests/bpf/test_serving_ktls.py", 600)

    assert " passed" in printed
    assert "no TLS" not in printed and "does not use TLS in the kernel" not in printed
