"""A node of a training job without its hardware: 8 GPUs, 8 NICs, 8 ranks with 256 queue pairs each.

What probes and NVML would have counted is made up; the samples are those of the collectors' own code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from exporter import discover, self_metrics
from exporter import page as pages
from exporter.app import RELOAD_SUCCESSFUL, RELOAD_TIME
from exporter.bpf import probe_metrics
from exporter.bpf.events import EVENTS_LOST
from exporter.bpf.maps import MAP_FULL
from exporter.bpf.status import SOURCE_AGE, SearchStatus
from exporter.collector_state import CollectorState, Health, about
from exporter.collectors import allocation
from exporter.cuda import activity as cuda
from exporter.cuda import samples as cuda_samples
from exporter.cuda.functions import FUNCTIONS
from exporter.cuda.names import Names
from exporter.faults import metrics as faults
from exporter.faults.pci import TYPES
from exporter.faults.xid import metrics as xid
from exporter.ledger import Process
from exporter.log.losses import dropped
from exporter.model import Sample
from exporter.nccl import activity as nccl
from exporter.nccl import samples as nccl_samples
from exporter.nccl.stragglers import stragglers
from exporter.nvml.readings import GPU, LINK
from exporter.nvml.samples import samples as nvml_samples
from exporter.nvml.snapshot import DriverVersions, Gpu, GpuIdentity, GpuProcess, GpuSnapshot, Readings
from exporter.options import Flag
from exporter.push import SPANS_DROPPED
from exporter.resolve import workload
from exporter.scrape import DROPPED as SAMPLES_DROPPED
from exporter.series import FOLDED, LIMIT
from exporter.verbs import activity as verbs
from exporter.verbs import control_samples
from exporter.verbs.busiest import Busiest
from exporter.verbs.control import Control, Qp, Regions
from exporter.verbs.destroyed_qps import PostedRequests
from exporter.verbs.samples import PeerLabels
from exporter.verbs.samples import samples as verbs_samples
from exporter.version import Build
from tests.unit.infiniband.conftest import Made
from tests.unit.infiniband.trees import Tree

RANKS = GPUS = NICS = 8
WORLD, FIRST = 64, 24
"""The ranks of the job, and the first one of this node."""
LINKS = 18
HOSTS = 64
"""Other nodes that a rank sends to, by one NIC of each."""
QUEUE_PAIRS = 256
"""Of each rank: four to each host."""
PCI_DEVICES = 56
"""8 GPUs, 8 NICs and 8 drives, and the ports above them."""
START_S = 1_800_000_000.0
_OPCODES = (0, 2)
"""IBV_WR_RDMA_WRITE and IBV_WR_SEND."""
TIMED = {name: at for at, name in enumerate(("timed_post_send", "timed_poll_cq", "timed_request", "timed_ack"))}
PEERS: Any = SimpleNamespace(
    kernel=lambda device, number: None,
    of=lambda pid: [],
    want=lambda: None,
    gid=lambda device, port, index: _gid(0, int(device[-1])),
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
    """Return the activity of a rank's queue pairs until `turn` seconds after the start of the rank."""
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
    controls = [(it, it.activity.control) for it in processes]
    yield from control_samples.samples(controls, PEERS)
    yield from control_samples.gids(controls, PEERS)


def rdma(turn: int = 1) -> Iterator[Sample]:
    """RDMA of the whole job, and of all queue pairs those that posted most in the last ten seconds."""
    turns = (
        [Process(pid(0, it), labels(0, it), verbs_activity(0, it, of), START_S) for it in range(RANKS)]
        for of in (turn - 1, turn)
    )
    clock = iter((0.0, 10.0))
    peer_labels, busiest = PeerLabels(PEERS), Busiest(lambda: next(clock))
    for ranks in turns:
        found = list(busiest.samples(ranks, peer_labels))
    yield from found
    yield from verbs_of(ranks, peer_labels)


_WAITS = ("cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize", "cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2")
_LAUNCHED = ("cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch")
_CALLED = (
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoDAsync_v2",
)
NAMES = Names(
    {0: "driver"},
    {0: "device", 1: "pinned_host"},
    {0: "htod", 1: "dtoh", 2: "dtod"},
    {0: "", 1: "pinned", 2: "pageable"},
)
_APIS = {function.name: number for number, function in enumerate(FUNCTIONS, 1)}
KINDS = nccl_samples.Kinds(
    {
        0: "AllReduce",
        1: "AllGather",
        2: "ReduceScatter",
        3: "Broadcast",
        4: "SendRecv",
        5: "GroupEnd",
        6: "InitRank",
        7: "none",
    },
    5,
    7,
)


def cuda_job(turn: int = 1) -> Iterator[Sample]:
    """The samples of the CUDA collector: a rank on each GPU, an error on the first."""
    for rank in range(RANKS):
        counts = cuda.Counts(
            launches={_APIS[name]: cuda.Launches(1000 * turn, turn) for name in _LAUNCHED},
            calls={_APIS[name]: 10 * turn for name in (*_CALLED, *_WAITS)},
            waits={_APIS[name]: cuda.Waits(turn, tuple([turn] * 28)) for name in _WAITS},
            memory={(0, kind): cuda.MemoryTotals(turn << 20, 0, 0, 0, 0) for kind in (0, 1)},
            copies={(way, host): turn for way in (0, 1) for host in (1, 2)} | {(2, 0): turn},
            errors={} if rank else {(_APIS["cuMemAlloc_v2"], 2): cuda.Errors(turn, turn)},
        )
        gpu = {"gpu": str(rank), "gpu_uuid": _uuid(rank)}
        activity = cuda.Activity({0: counts}, gpus={0: gpu})
        process = Process(pid(0, rank), labels(0, rank), activity, START_S)
        yield from cuda_samples.samples(process, NAMES, lambda ns: ns, lambda _: {})


def nccl_job(turn: int = 1) -> Iterator[Sample]:
    """The samples of the NCCL collector: a rank on each GPU, in the job's communicator and three of this node."""
    processes = []
    for rank in range(RANKS):
        slow = nccl.Durations(turn, tuple([turn] * 30))
        in_world = nccl.Membership(0xABC0, WORLD, FIRST + rank)
        members = [in_world, nccl.Membership(0xABC1, RANKS, rank)]
        activity = nccl.Activity(
            calls={kind: nccl.Calls(turn, turn, turn, 0, 0, turn) for kind in range(6)},
            durations={kind: slow for kind in (*range(5), 6)},
            communicators={nccl.Communicator(0xABC0, FIRST + rank, WORLD, rank)}
            | {nccl.Communicator(0xABC0 + number, rank, RANKS, rank) for number in range(1, 4)},
            lags={member: nccl.Durations(turn, tuple([turn] * 12)) for member in members},
            numbers={member: turn for member in members},
        )
        processes.append(Process(pid(0, rank), labels(0, rank), activity, START_S))
    for process in processes:
        yield from nccl_samples.samples(process, KINDS, lambda ns: ns, True)
    yield from stragglers(processes)


_LINK_READINGS = [it.key for readings in LINK.values() for it in readings][:11]
"""The readings of NVLink 4: bytes, state, speed and five kinds of errors; the others are of NVLink 5."""


_NOT_HOPPER = ("retired_pages", "vgpu")
"""Readings that an H100 that is no vGPU does not have."""


def gpus(turn: int = 1) -> Iterator[Sample]:
    """The samples of the NVML collector: H100s with every reading that Hopper has, and a process on each."""
    links = {link: {key: turn for key in _LINK_READINGS} for link in range(LINKS)}
    found = []
    for index in range(GPUS):
        identity = GpuIdentity(
            _uuid(index), index, "NVIDIA H100 80GB HBM3", f"00000000:{index:02X}:00.0", "16", index, links=LINKS
        )
        sets = {
            name: Readings(0.0, {it.key: turn for it in readings if not it.key.startswith(_NOT_HOPPER)}, links)
            for name, readings in GPU.items()
        }
        process = GpuProcess(pid(0, index), "compute", 70 << 30, utilization={"sm": 90, "memory": 40})
        sets["processes"] = Readings(0.0, processes=(process,))
        found.append(Gpu(identity, sets=sets))
    snapshot = GpuSnapshot("running", driver=DriverVersions("580.95", "13.580.95", 13000), gpus=tuple(found))
    return nvml_samples(snapshot, lambda number: labels(0, number % 1000))


PROBED = {"cuda": "libcuda.so.1", "nccl": "libnccl.so.2", "verbs": "libmlx5.so.1"}
MAPS = {"cuda": 20, "nccl": 13, "verbs": 30, "exits": 2}
"""Maps that may be full, by object (bpf/)."""
RINGS = ("cuda_spans", "nccl_spans", "verbs_spans", "process_ends", "kmsg", "nvml_xids", "faults_kmsg")


def probes(turn: int = 1) -> Iterator[Sample]:
    """Yield the exporter's samples of its probes: each of the CUDA driver's functions in one library, and NCCL and
    the provider of the NICs.
    """
    symbols = [("cuda", it.name) for it in FUNCTIONS if it.layer == "driver"]
    symbols += [(probe, f"{probe}{number}") for probe in ("nccl", "verbs") for number in range(20)]
    for probe, symbol in symbols:
        of = {"probe": probe, "symbol": symbol}
        yield probe_metrics.ATTACHED.sample(1, {**of, "library": PROBED[probe], "placement": "emulated"})
        yield probe_metrics.HITS.sample(turn, of)
    for probe, library in PROBED.items():
        yield probe_metrics.OVERHEAD.sample(0.01 * turn, {"probe": probe})
        yield probe_metrics.RETURNS_SKIPPED.sample(0, {"probe": probe})
        for metric in (probe_metrics.MISSING, probe_metrics.UNCOVERED):
            yield metric.sample(0, {"probe": probe, "library": library})
    for probe, count in MAPS.items():
        yield from (MAP_FULL.sample(0, {"map": f"{probe}_map{number}"}) for number in range(count))
    yield from SearchStatus("iterator", tuple((library, RANKS) for library in PROBED.values())).samples()
    yield from (EVENTS_LOST.sample(0, {"stream": stream}) for stream in RINGS)


def ports(sys: Path) -> list[Sample]:
    """The samples of the InfiniBand collector: ConnectX-7 on RoCE in a /sys made below a folder."""
    tree = Tree(sys)
    for nic in range(NICS):
        tree.mlx5(f"mlx5_{nic}")
    made = Made(sys)
    try:
        return list(made().collect())
    finally:
        made.close()


def jobs() -> Iterator[Sample]:
    """Yield the launchers' names of each rank."""
    for rank in range(RANKS):
        place = {"rank": str(FIRST + rank), "world_size": str(WORLD)}
        of = {"workload": "pretrain", "workload_kind": "torchrun", **place}
        yield workload.INFO.sample(1, {**labels(0, rank), **of})


def pci(turn: int = 1) -> Iterator[Sample]:
    """PCIe of the faults collector: GPUs, NICs, drives and the ports above them."""
    for number in range(PCI_DEVICES):
        kind = ("gpu", "nic", "nvme", "port")[min(number // 8, 3)]
        of = {"pci_bus_id": f"0000:{number:02x}:00.0", "kind": kind, "root_port": f"0000:{number % 4:02x}:01.0"}
        for kind in TYPES:
            yield faults.AER.sample(turn, {**of, "type": kind})
        for metric in (faults.LINK_WIDTH, faults.LINK_WIDTH_MOST, faults.LINK_SPEED):
            yield metric.sample(16, of)


SOCKETS, MODULES, CORES, DRIVES = 2, 8, 28, 8
"""Counts of the machine; memory modules and cores are per socket."""


def machine(turn: int = 1) -> Iterator[Sample]:
    """The samples of the faults collector besides PCIe: memory modules, sensors, drives, and what can be read."""
    for socket in range(SOCKETS):
        for module in range(MODULES):
            of = {"controller": f"mc{socket}", "dimm": f"CPU{socket}_DIMM_{module}"}
            yield from (faults.EDAC.sample(turn, {**of, "type": it}) for it in ("corrected", "uncorrected"))
        chip = {"chip": f"coretemp_hwmon{socket}"}
        yield from (faults.ALARM.sample(0, {**chip, "sensor": f"Core {core}"}) for core in range(CORES))
    for drive in range(DRIVES):
        yield faults.NVME_LIVE.sample(1, {"device": f"nvme{drive}", "state": "live"})
        yield faults.ALARM.sample(0, {"chip": f"nvme_hwmon{SOCKETS + drive}", "sensor": "Composite"})
    sources = ("boot", "clock", "cpus", "edac", "hwmon", "kernel_log", "memory", "nvme", "pci", "processes", "shutdown")
    yield from (faults.SOURCE.sample(1, {"source": source}) for source in sources)
    yield from (faults.SERVICE.sample(1, {"service": it}) for it in ("nvidia-fabricmanager", "nvidia-persistenced"))
    yield faults.BOOT.sample(START_S, {"boot_id": "4e4c829e-a7cd-462a-9365-3dac9b606d44"})
    alone = (faults.CPUS, faults.MEMORY, faults.BLOCKED, faults.CLOCK_SYNCHRONIZED, faults.CLOCK_ERROR)
    yield from (metric.sample(turn) for metric in alone)


def allocations() -> Iterator[Sample]:
    """The samples of the allocation collector: each GPU belongs to the pod."""
    for rank in range(RANKS):
        of = {name: text for name, text in labels(0, rank).items() if name in allocation.INFO.labels}
        yield allocation.INFO.sample(1, {**of, "resource": "nvidia.com/gpu", "device": _uuid(rank)})
    for metric in (allocation.SUCCESS, allocation.INVALID):
        yield metric.sample(int(metric is allocation.SUCCESS), {"source": "kubelet"})
    ages = ("allocation_kubelet", "faults_sysfs", "processes")
    yield from (SOURCE_AGE.sample(1, {"source": source}) for source in ages)


def own() -> list[Sample]:
    """Return the exporter's samples of itself: its process, and a state of each collector that is on by default."""
    states = (
        CollectorState(name, Health.OK, 0.01, series=1000) for name, it in discover.collectors().items() if it.default
    )
    build = self_metrics.build_info(Build("1.0", "0123456", "2026-01-01", "3.11.7", "linux/x86_64"))
    limited = [name for name, it in discover.collectors().items() if it.default and _has_limit(it.flags)]
    of_limits = [it.sample(0, {"collector": name}) for name in limited for it in (FOLDED, LIMIT)]
    single = [it.sample(1) for it in (RELOAD_SUCCESSFUL, RELOAD_TIME, pages.SERIES, pages.BYTES, pages.SECONDS)]
    kept_off = [SAMPLES_DROPPED.sample(0, {"reason": reason}) for reason in ("duplicate", "malformed")]
    limits_of_spans = ("rate_limit", "nccl_rate_limit", "verbs_rate_limit", "xid_rate_limit")
    kept_off += [SPANS_DROPPED.sample(0, {"reason": reason}) for reason in limits_of_spans]
    sources = [xid.SOURCE.sample(1, {"source": source}) for source in ("kmsg", "nvml")]
    others = (*build, *of_limits, *single, *kept_off, *sources, *dropped.samples())
    return [*(sample for state in states for sample in about(state)), *self_metrics.process(), *others]


def _has_limit(flags: Iterable[Flag]) -> bool:
    return any(flag.name == "series-limit" for flag in flags)


def node(sys: Path, turn: int = 1) -> list[Sample]:
    """All samples of the node; `turn` is what counters have counted."""
    job = (*rdma(turn), *cuda_job(turn), *nccl_job(turn))
    machine_of_job = (*gpus(turn), *pci(turn), *machine(turn), *ports(sys))
    return [*job, *jobs(), *allocations(), *machine_of_job, *probes(turn), *own()]
