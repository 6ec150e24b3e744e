"""On the kernels of Debian's releases, in virtual machines: the verifier takes every program, and probes count."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernels import systems
from tests.kernels.objects import LOAD
from tests.kernels.systems import TOOLS, Guest
from tests.packages import NotAvailable
from tests.rdma import rig
from tests.rdma.rig import REPOSITORY

pytestmark = [
    pytest.mark.timeout(2400),
    pytest.mark.evidence(feature="older kernels", on="real kernel, emulated hardware"),
    pytest.mark.evidence(feature="arm64", on="real kernel, emulated hardware"),
]

MOST_SECONDS = 900.0
SUITES = {"bookworm": "6.1", "bookworm-backports": "6.12", "trixie-backports": "7", "sid": "7"}
"""Debian suite and the version of its kernel; README.md names them."""
MACHINES = [(suite, architecture) for architecture in TOOLS for suite in SUITES]
EVERYWHERE = (
    "test_cuda_copies.py::test_batches",
    "test_cuda_counts.py::test_each_call_counts_once",
    "test_cuda_counts.py::test_four_processes_at_once",
    "test_cuda_devices.py::test_two_gpus",
    "test_cuda_memory.py::test_allocations_of_the_driver",
    "test_cuda_memory.py::test_segments_that_expand",
    "test_cufile.py::test_23_requests",
    "test_exits.py::test_ends",
    "test_hip.py::test_23_of_each",
    "test_kernel_stacks.py::test_programs_of_uprobes_have_no_private_stack",
    "test_nccl_counts.py::test_23_calls",
    "test_nccl_counts.py::test_every_collective",
    "test_nccl_counts.py::test_threads_and_a_forked_child",
    "test_nccl_groups.py::test_a_rank_arrives_when_its_group_ends",
    "test_nixl.py::test_23_transfers",
    "test_ucx.py::test_23_calls",
    "test_verbs_data.py::test_23_requests_are_23",
    "test_verbs_extended.py::test_23_built_requests_are_23",
    "test_verbs_extended.py::test_extended_polls",
    "test_verbs_queues.py::test_packets",
    "test_verbs_queues.py::test_threads_that_poll_one_queue",
)
"""Tests of tests/bpf that count calls one by one, of every collector."""
AMD64 = (
    "test_bridge.py::test_23_calls_are_23",
    "test_bridge.py::test_errors_of_insertions",
    "test_cuda_contexts.py::test_contexts_of_any_number",
    "test_cuda_copies.py::test_linear_copies",
    "test_cuda_counts.py::test_threads_launch_and_allocate",
    "test_custom.py::test_23_calls_are_23",
    "test_verbs_control.py::test_a_queue_pair_from_creation_to_its_end",
    "test_verbs_control.py::test_memory_regions_by_kind",
)
"""Not on arm64: its machine has no compiler, and probes single-step there: a million calls take ten minutes."""
SINCE_6_3 = (
    "test_serving.py::test_whole_answers",
    "test_serving_bytes.py::test_forms",
    "test_serving_calls.py",
    "test_serving_frames.py::test_forms",
    "test_serving_rings.py",
)
"""Requests are followed on Linux 6.3 and newer; arm64's machine has no servers."""
SINCE_6_4 = ("test_map_memory.py::test_the_kernel_agrees",)
"""The kernel knows the memory of its maps."""
MULTI = "this kernel has no multi-uprobe links (Linux 6.6)"


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
    """Probes attach, and calls, bytes, requests and ends of processes are counted as tests/bpf expects them.

    Each test passes, on several processors; only multi-uprobe links are left out where the kernel has none.
    """
    old = machine.host.run("uname -r").startswith("6.1.")
    amd64 = machine.architecture == "amd64"
    tests = EVERYWHERE + AMD64 * amd64 + SINCE_6_3 * (amd64 and not old) + SINCE_6_4 * (not old)
    expected = collected(tests)
    without = {it for it in expected if "multi" in it.partition("[")[2]} if old else set()
    passed, reasons = outcomes(machine, tests)

    assert expected - without == passed
    assert ({MULTI} if without else set()) == reasons


def test_tls_in_the_kernel(machine: Guest) -> None:
    """Requests of a server with TLS in the kernel are one each: Debian's kernels have its module."""
    if machine.architecture != "amd64" or machine.host.run("uname -r").startswith("6.1."):
        pytest.skip("requests are followed on Linux 6.3 and newer, and arm64's machine has no gunicorn")
    tests = ("test_serving_ktls.py",)

    assert (collected(tests), set()) == outcomes(machine, tests)


def collected(tests: Sequence[str]) -> set[str]:
    """Return the names of tests with their parameters, which are the same in every machine."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "--collect-only", "-p", "no:cacheprovider", *_paths(tests)]
    printed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    names = {it for it in printed.splitlines() if it.startswith("tests/bpf/")}
    assert all(any(it.startswith(path) for it in names) for path in _paths(tests))
    return names


def outcomes(machine: Guest, tests: Sequence[str]) -> tuple[set[str], set[str]]:
    """Run tests in the machine, and return which have passed and the reasons of those that were skipped."""
    printed = machine.run(f"-m pytest -q -rps -p no:cacheprovider --timeout=0 {' '.join(_paths(tests))}", MOST_SECONDS)
    passed = re.findall(r"^PASSED (.*)$", printed, re.MULTILINE)
    return set(passed), set(re.findall(r"^SKIPPED \[\d+\] \S+: (.*)$", printed, re.MULTILINE))


def _paths(tests: Sequence[str]) -> list[str]:
    return [f"tests/bpf/{it}" for it in tests]
