"""On sixteen processors, with a kernel of years ago: LRU maps keep their rows, and late ranks are late."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.bpf.cuda_node import BUILD, build_standins
from tests.kernels.late_ranks import COMMUNICATORS, RANKS, WITHIN
from tests.kernels.lru_rows import ROWS
from tests.kernels.systems import PROCESSORS
from tests.rdma import rig
from tests.rdma.rig import REPOSITORY, Host

pytestmark = pytest.mark.timeout(1200)

ROUNDS = 20


@pytest.fixture(scope="module")
def program() -> Path:
    """The job, built here and run there."""
    build_standins()
    program = rig.BUILD / "late_ranks"
    source = Path(__file__).with_name("late_ranks.c")
    flags = ["-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", program, source, f"-L{BUILD}", "-l:libnccl.so.2"], check=True)
    return program


def test_late_ranks_are_late(machine: Host, program: Path) -> None:
    """Each rank's calls on each of its communicators are compared, and only those of the first one have no lag."""
    command = f"cd {REPOSITORY}; exec .venv/bin/python -m tests.kernels.late_ranks {program} {ROUNDS}"
    *found, losses = json.loads(machine.run(command, 3 * WITHIN).splitlines()[0])

    assert RANKS * COMMUNICATORS == len(found)
    assert {ROUNDS} == {sum(it["counts"]) for it in found}
    for it in found:
        at_once = it["counts"][0]
        assert at_once == (ROUNDS if it["rank"] == 0 else 0), it
    assert {0} == set(losses["full"].values())


def test_lru_maps_keep_their_rows(machine: Host) -> None:
    """Each processor inserts a hundred rows into each LRU map of each object, and the kernel evicts none.

    With the rows that objects declare some would be lost here, as before Linux 6.16 processors keep free rows for
    themselves.
    """
    command = f"cd {REPOSITORY}; exec .venv/bin/python -m tests.kernels.lru_rows"
    sized, declared = (json.loads(line) for line in machine.run(command, WITHIN).splitlines())

    inserted = ROWS * PROCESSORS["amd64"]
    assert {"contexts", "live_sent", "poll_rates"} <= sized.keys() == declared.keys()
    assert {inserted} == set(sized.values())
    assert declared["live_sent"] < inserted
