"""The simulated fleet: what is of one node, of its rank in the job, or of one run of the job, has names of its own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from bench import fleet_nodes
from bench.fleet_nodes import Fleet
from exporter.profile import Profile
from tests.typical_node import RANKS

NODES = 20
TRAINING = 16
"""Of ten nodes eight train."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_nodes, "TURNS", 1)
        made = Fleet(tmp_path_factory.mktemp("sys"), NODES, 15.0, Profile.NODE)
        yield made
    made.server.shutdown()
    made.server.server_close()


def page(fleet: Fleet, node: int) -> list[str]:
    """Return the series of a node's page."""
    lines = (fleet.page(node) or b"").decode().splitlines()
    return [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]


def values(series: list[str], metric: str, label: str) -> set[str]:
    of_metric = (it for it in series if it.startswith(f"{metric}{{"))
    return {found[1] for it in of_metric if (found := re.search(rf'\b{label}="(.*?)"', it))}


def test_all_training_nodes_have_one_job(fleet: Fleet) -> None:
    """Each rank of the job is on one node, all in one communicator; pods, containers and GPUs are on one node each."""
    pages = {node: page(fleet, node) for node in range(NODES)}
    training = [it for node, it in pages.items() if fleet.kind(node) == "training"]
    world = str(RANKS * TRAINING)
    assert len(training) == TRAINING
    assert [{world}] * TRAINING == [values(it, "job_process_info", "world_size") for it in training]
    ranks = Counter(rank for it in training for rank in values(it, "job_process_info", "rank"))
    assert dict.fromkeys(map(str, range(RANKS * TRAINING)), 1) == ranks
    hashes = Counter(name for it in training for name in values(it, "nccl_communicator_info", "comm_hash"))
    assert [1] * 3 * TRAINING + [TRAINING] == sorted(hashes.values())
    for label, each in (("pod", 1), ("container_id", 1), ("gpu_uuid", 8)):
        found = Counter(name for it in training for name in values(it, "job_process_info", label))
        assert ({1}, each * TRAINING) == ({*found.values()}, len(found)), label
    assert all(len(it) == len(set(it)) for it in pages.values())


def test_a_restarted_job_has_other_names(fleet: Fleet) -> None:
    """After a restart both runs are on the page, apart; a lost node does not answer, and is back with a new run."""
    before = page(fleet, 0)
    fleet.restart([0])
    after = page(fleet, 0)
    assert len(after) == len(set(after)) > 1.4 * len(before)
    of = {label: values(after, "job_process_info", label) for label in ("pod", "container_id", "pid")}
    assert {"train-0-worker-0", "train-1-worker-0"} == of["pod"]
    assert [2, 2 * RANKS] == [len(of["container_id"]), len(of["pid"])]
    fleet.lose([0])
    assert fleet.page(0) is None
    fleet.restart([0])
    assert {"train-2-worker-0"} == values(page(fleet, 0), "job_process_info", "pod")
