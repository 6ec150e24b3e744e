"""On the kernels of Debian's releases, in virtual machines: the verifier takes every program, and probes count."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bpf.cuda_node import build_standins
from tests.packages import NotAvailable, Release
from tests.rdma import rig
from tests.rdma.boot import Kernel
from tests.rdma.rig import REPOSITORY, Host

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.evidence(feature="older kernels", on="real kernel, emulated hardware"),
]

SUITES = {"bookworm": "6.1", "bookworm-backports": "6.12", "trixie-backports": "7", "sid": "7"}
"""Where Debian has which kernel; README.md names them."""
COUNTED = (
    "tests/bpf/test_cuda_counts.py::test_threads_launch_and_allocate",
    "tests/bpf/test_nccl_counts.py::test_every_collective",
)
LOAD = """
import os
from pathlib import Path
from exporter.bpf.libbpf import BpfError, Object
found = sorted(Path("exporter/bpf/objects", os.uname().machine).glob("*.o"))
for path in found:
    try:
        Object(path).close()
        print(path.name, "loaded")
    except BpfError as error:
        print(path.name, str(error)[-900:])
"""


@pytest.fixture(scope="module", params=SUITES)
def machine(request: pytest.FixtureRequest) -> Iterator[Host]:
    if missing := rig.missing(tools=("qemu-system-x86_64", "busybox")):
        if os.environ.get("REQUIRE_KERNELS") == "1":
            pytest.fail(f"REQUIRE_KERNELS=1, but {missing}")
        pytest.skip(f"{missing}; make test-kernels gets it")
    try:
        image = fetch(request.param)
    except NotAvailable as error:
        pytest.skip(f"no kernel of {request.param}: {error}")
    build_standins()
    with rig.machine("v", image=image) as host:
        assert host.run("uname -r").startswith(f"{SUITES[request.param]}.")
        yield host


def fetch(suite: str) -> Kernel:
    """The kernel of a release, kept for the next time. Raises NotAvailable."""
    kept = rig.BUILD / "kernels" / suite
    if not kept.exists():
        part = kept.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        release = Release(suite, "amd64", part)
        [image] = [it for it in release.needs("linux-image-amd64") if it.startswith("linux-image-")]
        version = image.removeprefix("linux-image-")
        root = release.unpack([image, *(it for it in release.needs(image) if it.endswith(version))])
        subprocess.run(["depmod", "--basedir", Kernel(root).modules.parents[2], version], check=True)
        root.rename(kept)
        shutil.rmtree(part)
    return Kernel(kept)


def test_every_object_loads(machine: Host) -> None:
    """The kernel's verifier takes every program of every object there is."""
    printed = machine.run(f"cd {REPOSITORY}; exec .venv/bin/python -c '{LOAD}'", 240)

    objects = [it.name for it in Path(REPOSITORY, "exporter/bpf/objects", os.uname().machine).glob("*.o")]
    assert sorted(f"{name} loaded" for name in objects) == sorted(printed.splitlines())


@pytest.mark.parametrize("test", COUNTED)
def test_calls_are_counted(machine: Host, test: str) -> None:
    """Probes attach, and every launch, allocation and collective of a stand-in is counted."""
    machine.run(f"cd {REPOSITORY}; exec .venv/bin/python -m pytest -q -p no:cacheprovider --timeout=0 {test}", 400)
