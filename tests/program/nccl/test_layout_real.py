"""Places of communicators' identity in NVIDIA's own builds of NCCL, as found in their code.

The newest wheel by default; with NCCL_WHEELS=all (`make test-nccl-wheels`, 3 GB of downloads) all that are listed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.bpf.elf import Elf
from exporter.bpf.placement import place
from exporter.nccl.functions import COVERABLE, FUNCTIONS
from exporter.nccl.layout import CommunicatorLayout, find_layout
from tests import wheels

pytestmark = pytest.mark.evidence(feature="NCCL communicators in memory", on="real software")

LAYOUTS = {  # from the wheels' debug information: gdb -ex 'print (long)&((struct ncclComm*)0)->commHash'
    "2.14.3": CommunicatorLayout(6056, hashless=True),
    "2.18.1": CommunicatorLayout(9168, 0, guarded=False),
    "2.21.5": CommunicatorLayout(13528, 0, guarded=True),
    "2.22.3": CommunicatorLayout(213576, 0, guarded=True),
    "2.23.4": CommunicatorLayout(246944, 252568, guarded=True),
    "2.24.3": CommunicatorLayout(246944, 252536, guarded=True),
    "2.25.1": CommunicatorLayout(492704, 500984, guarded=True),
    "2.26.5": CommunicatorLayout(492720, 501008, guarded=True),
    "2.27.3": CommunicatorLayout(1066160, 1074512, guarded=True),
    "2.28.9": CommunicatorLayout(1066184, 1075728, guarded=True),
    "2.29.7": CommunicatorLayout(1181392, 1191544, guarded=True),
    "2.30.7": CommunicatorLayout(1181416, 1191576, guarded=True),
    "2.31.2": CommunicatorLayout(1181408, 1193776, guarded=True),
    "2.32.3": CommunicatorLayout(1181408, 1193800, guarded=True),
}


@pytest.fixture(scope="module", params=wheels.NCCL_VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def library(version: str) -> Path:
    return wheels.nccl(version)


def test_layout(version: str, library: Path) -> None:
    """The layout found in code is that of the debug information; of a release newer than this test, there is one."""
    with Elf.open(library) as elf:
        found = find_layout(elf)
    if version == wheels.NEWEST:
        assert found.identity and found.guarded
    else:
        assert LAYOUTS[version] == found


def test_every_function_is_covered(library: Path) -> None:
    """Every function that moves data or changes communicators is hooked or knowingly not; pncclX is the same code."""
    hooked = {function.name for function in FUNCTIONS}
    with Elf.open(library) as elf:
        found = elf.functions(None)
    assert set() == {name for name in found if name not in hooked and COVERABLE.fullmatch(name)}
    assert len(hooked & found.keys()) >= 16
    for name in hooked & found.keys():
        assert found[name].offset == found[f"p{name}"].offset


def test_collectives_are_cheap_to_probe(library: Path) -> None:
    """Each function that is called often has a place that the kernel emulates."""
    often = [it.name for it in FUNCTIONS if it.effect in ("collective", "signal", "group_start", "group_end")]
    with Elf.open(library) as elf:
        found = elf.functions(often)
        assert dict.fromkeys(found, "emulated") == {name: place(elf, it).kind for name, it in found.items()}
