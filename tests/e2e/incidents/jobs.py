"""Incidents of jobs by how they were started, by torchrun, MPI or ssh or as resources of Kubernetes: one page each."""

from __future__ import annotations

from collections.abc import Iterator

from tests.e2e.incidents.incident import STANDS, Incident, Notice, node_series, rank_series

NODES = 6
RANKS = 8
"""Ranks of a node."""


def _named(instance: str, workload: str, kind: str, rank: int, pid: str = "", pod: str = "") -> dict[str, str]:
    """Series of a rank with the job of its launcher's variables; no pid with the profile fleet."""
    process = f'instance="{instance}"' + (f',pid="{pid}",comm="python3"' if pid else "")
    process += f',namespace="ml",pod="{pod}"' if pod else ""
    job = f'workload="{workload}",workload_kind="{kind}",rank="{rank}",world_size="{NODES * RANKS}"'
    return {f"job_process_info{{{process},{job}}}": "1x60"}


def _communicators(number: int) -> dict[str, str]:
    """The communicators of a node's ranks: two of all ranks, one of the node, one of each local rank's replicas."""
    series = {}
    for local in range(RANKS):
        process = f'instance="n{number}",pid="{1000 + local}",comm="python3",gpu="{local}"'
        rank = number * RANKS + local
        of = {"a1": rank, "a2": rank, f"node{number}": local, f"replica{local}": number}
        for comm_hash, own in sorted(of.items(), reverse=bool(number % 2)):
            # The process with rank 0 ends a minute after the others wait for it.
            there = "1x11 stale" if rank == 0 else "1x60"
            series |= {f'nccl_communicator_info{{{process},comm_hash="{comm_hash}",rank="{own}"}}': there}
    return series


def jobs() -> Iterator[Incident]:
    """Yield all incidents."""
    yield from _plain_hosts()
    yield from _pods()


def _plain_hosts() -> Iterator[Incident]:
    """Yield incidents of jobs without Kubernetes and Slurm."""
    waiting = "0x10 1x50"
    torchrun: dict[str, str] = {}
    ssh: dict[str, str] = {}
    fleet: dict[str, str] = {}
    first: dict[str, str] = {}
    lost: dict[str, str] = {}
    for number in range(NODES):
        node = f"n{number}"
        hang = rank_series(node, "", STANDS, RANKS, waiting)
        torchrun |= hang
        ssh |= hang | _communicators(number)
        fleet |= rank_series(node, "", STANDS, RANKS, waiting, "fleet")
        lost |= hang | node_series(node, RANKS)
        for local in range(RANKS):
            rank = number * RANKS + local
            torchrun |= _named(node, "n0:29500", "pytorch", rank, str(1000 + local))
            lost |= _named(node, "llama-3", "torchrun", rank, str(1000 + local))
            fleet |= _named(node, "n0:29500", "pytorch", rank)
            first |= _named(node, "prterun-n0-4711@1", "mpi", rank, str(1000 + local))
            process = f'instance="{node}",pid="{1000 + local}",comm="python3"'
            first |= {f"nccl_calls_in_flight{{{process}}}": "_x5 1x55"}
    yield Incident("torchrun-job-hangs", torchrun, (Notice("NcclHang", "Workload n0:29500 ", 34),))
    yield Incident("job-by-ssh-hangs", ssh, (Notice("NcclHang", "Workload n0 ", 34),))
    yield Incident("job-of-profile-fleet-hangs", fleet, (Notice("NcclHang", "Workload n0:29500 ", 34),))
    yield Incident("mpi-job-hangs-in-init", first, (Notice("NcclInitHang", "Workload prterun-n0-4711@1 ", 34),))

    gpu = 'instance="n1",gpu="1",gpu_uuid="n1-1"'
    xid = f'{gpu},pci_bus_id="0000:3B:00.0",xid="79",action="RESTART_BM"'
    lost |= {
        f"gpu_xid_last_timestamp_seconds{{{xid}}}": "_x10 600x50",
        f'hw_status{{{gpu},hw_type="gpu",state="ok"}}': "1x10 0x50",
        'nccl_communicator_info{instance="n0",pid="1000",comm="python3",comm_hash="a1",rank="0"}': "1x60",
        'nccl_ras_communicator_ranks{instance="n0",comm_hash="a1"}': f"{NODES * RANKS}x60",
        'nccl_ras_ranks_missing{instance="n0",comm_hash="a1",state="dead"}': "0x12 1x48",
    }
    yield Incident(
        "torchrun-job-loses-a-gpu",
        lost,
        (Notice("GpuLost", "on n1.", 19), Notice("NcclRankMissing", "1 ranks missing", 35)),
    )


def _pods() -> Iterator[Incident]:
    """Yield incidents of jobs with several kinds of pods, and of a job with a rank that has started again."""
    waiting = "0x10 1x50"
    pytorch: dict[str, str] = {}
    sets: dict[str, str] = {}
    again: dict[str, str] = {}
    for number in range(NODES):
        node = f"n{number}"
        pytorch |= rank_series(node, f"llama-worker-{number - 1}" if number else "llama-master-0", STANDS, 2, waiting)
        pod = f"vision-trainers-0-{number}-x7k2p" if number else "vision-driver-0-0-b5c6d"
        sets |= rank_series(node, pod, STANDS, 2, waiting)
        for local in range(2):
            sets |= _named(node, "vision", "jobset", 2 * number + local, str(1000 + local), pod)
        if number:
            again |= rank_series(node, f"train-worker-{number}", STANDS, 2, waiting)
    again |= {
        'nccl_calls_in_flight{instance="n0",pid="7",comm="python3",namespace="ml",pod="train-worker-0"}': "_x12 1x48"
    }
    yield Incident("pytorchjob-hangs", pytorch, (Notice("NcclHang", "Workload llama ", 34),))
    yield Incident("jobset-hangs", sets, (Notice("NcclHang", "Workload vision ", 34),))
    yield Incident("rank-starts-again-during-a-hang", again, (Notice("NcclHang", "Workload train ", 34),))
