"""A virtual machine with Debian's kernel, of years ago, and more processors than this machine may have."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.kernels.systems import PROCESSORS
from tests.rdma import rig
from tests.rdma.rig import Host


@pytest.fixture(scope="session")
def machine() -> Iterator[Host]:
    if missing := rig.missing(tools=("qemu-system-x86_64",)):
        if os.environ.get("REQUIRE_KERNELS") == "1":
            pytest.fail(f"REQUIRE_KERNELS=1, but {missing}")
        pytest.skip(f"{missing}; make test-kernels gets it")
    with rig.machine("k", processors=PROCESSORS["amd64"]) as host:
        yield host
