"""A node of a training job without its hardware: 8 GPUs, 8 NICs, 8 ranks with 256 queue pairs each.

What probes and NVML would have counted is made up; the samples are those of the collectors' own code.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from exporter.ledger import Process
from exporter.model import Sample
from exporter.verbs import activity as verbs
from exporter.verbs import control_samples
from exporter.verbs.control import Control, Qp, Regions
from exporter.verbs.destroyed_qps import PostedRequests
from exporter.verbs.samples import PeerLabels
from exporter.verbs.samples import samples as verbs_samples

RANKS = GPUS = NICS = 8
LINKS = 18
HOSTS = 64
"""Other nodes that a rank sends to, by one NIC of each."""
QUEUE_PAIRS = 256
"""Of each rank: four to each host."""
START_S = 1_800_000_000.0
_OPCODES = (0, 2)
"""IBV_WR_RDMA_WRITE and IBV_WR_SEND."""
TIMED = {name: at for at, name in enumerate(("timed_post_send", "timed_poll_cq", "timed_request", "timed_ack"))}
PEERS: Any = SimpleNamespace(
    kernel=lambda device, number: None,
    of=lambda pid: [],
    want=lambda: None,
    gid=lambda device, port, index: _gid(0, port),
)


def _gid(host: int, nic: int) -> str:
    return f"0000:0000:0000:0000:0000:ffff:0a{nic:02x}:{host:04x}"


def labels(run: int, rank: int) -> dict[str, str]:
    """The labels of a rank's process; each run of the job has pids and a container of its own."""
    return {
        "pid": str(pid(run, rank)),
        "comm": "python3",
        "container_id": f"{run + 1:064x}",
        "pod": f"train-{run}-worker-0",
        "namespace": "ml",
        "container": "train",
        "gpu": str(rank),
        "gpu_uuid": _uuid(rank),
    }


def pid(run: int, rank: int) -> int:
    return 100_000 + 1000 * run + rank


def _uuid(gpu: int) -> str:
    return f"GPU-5e0a1c2b-0000-4000-8000-{gpu:012x}"


def verbs_activity(run: int, rank: int, turn: int) -> verbs.Activity:
    """What a rank's queue pairs did until so many seconds after its start."""
    device, control, activity = f"mlx5_{rank}", Control(), verbs.Activity()
    for queue in range(QUEUE_PAIRS):
        number = 0x1000 + (run * RANKS + rank) * QUEUE_PAIRS + queue
        qp = Qp(
            device,
            number,
            type=2,
            state=3,
            created_ns=1,
            peer=queue,
            port=1,
            gid_index=3,
            mtu=4096,
            timeout=18,
            retries=7,
        )
        qp = Qp(**{**{name: getattr(qp, name) for name in Qp.__slots__}, "peer_gid": _gid(1 + queue % HOSTS, rank)})
        control.qps[queue] = qp
        life = verbs.QpId(device, number, 1)
        activity.calls[life] = turn
        for opcode in _OPCODES:
            activity.posted[life, opcode] = PostedRequests(turn, turn * 4096, turn)
    control.states.update({(device, state): QUEUE_PAIRS for state in (1, 2, 3)})
    control.regions = {(device, memory): Regions(1 << 30, registrations=64) for memory in ("host", "dmabuf")}
    activity.control = control
    activity.completions[device, 0] = turn
    times = verbs.Times(turn * 1000, tuple([turn] * 28))
    activity.times = {
        (what, device, opcode): times for what in TIMED.values() for opcode in (_OPCODES if what == 2 else (0,))
    }
    return activity


def verbs_of(processes: list[Process[verbs.Activity]], peer_labels: PeerLabels) -> Iterator[Sample]:
    """The samples of the verbs collector."""
    peer_labels.turn()
    for process in processes:
        yield from verbs_samples(process, TIMED, peer_labels)
    yield from control_samples.samples([(it, it.activity.control) for it in processes], PEERS)


def rdma(turn: int = 1) -> Iterator[Sample]:
    """RDMA of the whole job."""
    ranks = [Process(pid(0, it), labels(0, it), verbs_activity(0, it, turn), START_S) for it in range(RANKS)]
    yield from verbs_of(ranks, PeerLabels(PEERS))
