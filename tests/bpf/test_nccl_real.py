"""The NCCL that NVIDIA ships, on a machine without a GPU: it fails, and that is counted as it is.

The newest wheel; with NCCL_WHEELS=all (`make test-nccl-wheels`) one of each minor version from 2.18 on, and 2.14.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.bpf.elf import Elf
from exporter.nccl.functions import FUNCTIONS
from tests.bpf.nccl_node import NcclNode, Rank, observe, started
from tests.bpf.test_cuda_real_runtime import has_driver
from tests.wheels import NCCL_VERSIONS, nccl

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="NCCL errors", on="real software")]

NOWHERE = Path("/nonexistent")


@pytest.fixture(scope="module")
def observed() -> Iterator[NcclNode]:
    with observe() as observed:
        yield observed


@pytest.fixture(scope="module", params=NCCL_VERSIONS)
def library(request: pytest.FixtureRequest) -> Path:
    return nccl(request.param)


@pytest.mark.skipif(has_driver(), reason="there is a driver here: calls succeed")
def test_without_a_driver_the_real_error_is_counted(observed: NcclNode, library: Path) -> None:
    """Every call fails with the code the application got, no communicator is shown, and the process lives on."""
    with started(observed, Rank(library, libraries=NOWHERE)) as rank:
        codes = rank.run(
            "c = c_void_p()\n"
            "out = [lib.ncclCommInitRank(byref(c), 1, Id(), 0) for _ in range(3)]\n"
            "out += [reduce_all(None, 1) for _ in range(23)]\n"
            "for _ in range(5): lib.ncclGroupStart(); lib.ncclGroupEnd()"
        )
        assert 0 not in codes and 1 == len(set(codes[:3])) and {4} == set(codes[3:])
        errors = observed.values("nccl_errors_total", rank.pid)
        assert {("ncclCommInitRank", str(codes[0])): 3, ("ncclAllReduce", "4"): 23} == {
            (dict(labels)["api"], dict(labels)["code"]): count for labels, count in errors.items()
        }
        assert 23 == observed.value("nccl_collective_anonymous_calls_total", rank.pid, collective="AllReduce")
        assert 5 == observed.value("nccl_groups_total", rank.pid)
        assert {} == observed.values("nccl_communicator_info", rank.pid)
        assert "alive" == rank.run("out = 'alive'")


def test_nothing_of_it_is_left_out(observed: NcclNode, library: Path) -> None:
    """Every function that moves data or changes communicators is hooked, and attached where a hit is cheap."""
    with started(observed, Rank(library, libraries=NOWHERE)):
        assert 0 == observed.value("accel_exporter_probe_symbols_uncovered", library=str(library))
        attached = observed.values("accel_exporter_probe_attached", library=str(library))
        with Elf.open(library) as elf:
            there = elf.functions([function.name for function in FUNCTIONS])
        assert len(there) >= 16 and dict.fromkeys(there, 1) == {
            dict(labels)["symbol"]: value for labels, value in attached.items()
        }
