"""What this node lets us observe: one function a question, each answering in a sentence and with what to do."""

from __future__ import annotations

import errno
import itertools
import os
import platform
import re
import select
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from exporter.bpf import multi, object_path, privileges
from exporter.bpf.libbpf import BpfError, Object
from exporter.bpf.native import library
from exporter.bpf.safety import try_return_probes
from exporter.bpf.watch import Watch
from exporter.collectors import allocation
from exporter.custom import doctor as custom
from exporter.custom.folder import FolderError
from exporter.kmsg.reader import open_log
from exporter.model import Unavailable
from exporter.settings import Settings
from exporter.verbs import doctor
from exporter.web import listen

HOST_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the first pid namespace (PROC_PID_INIT_INO, include/linux/proc_ns.h)."""

LIBRARIES = {
    "CUDA": re.compile(r"lib(?:cuda|cudart)\.so"),
    "NCCL": re.compile(r"libnccl\.so"),
    "RDMA verbs": re.compile(r"libibverbs\.so"),
}
_PROCESSES = 32_768
_SAMPLE = 256
_MAPS_BYTES = 4 * 1024 * 1024
_SMALL_MEMORY = 96 * 1024 * 1024


class Status(Enum):
    OK = "ok"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """The answer to one question: `says` what is so and what that means, `do` what helps (empty: nothing to do)."""

    name: str
    status: Status
    says: str
    do: str = ""


Answer = tuple[Status, str] | tuple[Status, str, str]


def examine(settings: Settings) -> Iterator[Finding]:
    """Asks everything, in an order in which a person would; a question that cannot be answered is a failed one."""
    for name, question in QUESTIONS.items():
        try:
            yield Finding(name, *question(settings))
        except (Unavailable, BpfError) as error:
            yield Finding(name, Status.FAIL, str(error).partition("\n")[0], getattr(error, "remedy", ""))
        except Exception as error:
            yield Finding(name, Status.FAIL, f"cannot be examined: {type(error).__name__}: {error}", "report this")


def _capabilities(_: Settings) -> Answer:
    missing = privileges.missing()
    if not missing:
        return Status.OK, f"all capabilities that probes need are there (uid {os.geteuid()})"
    why = ", ".join(f"{name} (to {privileges.OBSERVING[name]})" for name in missing)
    remedy = "run as root, or grant them (systemd AmbientCapabilities=, --cap-add, securityContext)"
    return Status.FAIL, f"missing: {why}", remedy


def _libbpf(_: Settings) -> Answer:
    try:
        bpf = library()
    except BpfError as error:
        return Status.FAIL, str(error)
    return Status.OK, f"libbpf.so.1 is version {bpf.libbpf_major_version()}.{bpf.libbpf_minor_version()}"


def _objects(_: Settings) -> Answer:
    """Loading each object asks the kernel all at once: bpf(), its capabilities, seccomp, lockdown, the verifier."""
    folder = object_path("any").parent
    objects = sorted(folder.glob("*.bpf.o"))
    if not objects:
        missing = f"there are no compiled probes for {platform.machine()} in {folder}"
        return Status.FAIL, missing, "run make setup, or install the package anew"
    for path in objects:
        try:
            Object(path).close()
        except BpfError as error:
            lines = str(error).splitlines()
            said = lines[0] if error.errno in (errno.EPERM, errno.EACCES) else "\n".join(lines)
            return Status.FAIL, f"Linux {platform.release()} does not take {path.name}: {said}"
    names = ", ".join(path.name.removesuffix(".bpf.o") for path in objects)
    return Status.OK, f"Linux {platform.release()} loads every probe ({names})"


def _lockdown(settings: Settings) -> Answer:
    state = _text(settings.sysfs / "kernel/security/lockdown")
    if "[confidentiality]" in state:
        remedy = "boot without lockdown=confidentiality, or lockdown=integrity"
        return Status.FAIL, "the kernel is locked down (confidentiality): tracing programs may not read memory", remedy
    return Status.OK, "kernel lockdown does not forbid tracing"


def _uprobes(settings: Settings) -> Answer:
    if not (settings.sysfs / "bus/event_source/devices/uprobe").exists():
        return (
            Status.FAIL,
            "the kernel has no uprobes: no library can be probed",
            "use a kernel with CONFIG_UPROBE_EVENTS",
        )
    if {"CAP_BPF", "CAP_PERFMON"} & set(privileges.missing()):
        return Status.INFO, "uprobes; of what kind is not told without CAP_BPF and CAP_PERFMON"
    if multi.supported():
        return Status.OK, "uprobes, with multi-uprobe links: attaching and detaching take milliseconds"
    if privileges.WITHOUT_MULTI_UPROBES not in privileges.effective():
        remedy = f"grant {privileges.WITHOUT_MULTI_UPROBES}, or use Linux 6.6 or newer"
        return (
            Status.FAIL,
            f"no multi-uprobe links, and uprobes without them need {privileges.WITHOUT_MULTI_UPROBES}",
            remedy,
        )
    return (
        Status.WARN,
        "no multi-uprobe links: detaching takes up to a quarter of a second each, in parallel",
        "use Linux 6.6 or newer",
    )


def _btf(settings: Settings) -> Answer:
    if (settings.sysfs / "kernel/btf/vmlinux").exists():
        return Status.OK, "the kernel describes its types (BTF)"
    return Status.WARN, "no /sys/kernel/btf/vmlinux: probes on kernel functions are off, those on libraries work"


def _returns(_: Settings) -> Answer:
    survival = try_return_probes()
    if survival.doubt:
        return Status.WARN, survival.doubt, "without return probes waits, errors and frees of allocations go uncounted"
    if not survival.seccomp:
        remedy = "update to Linux 6.14 or 6.12.14; until then waits, errors and frees of allocations go uncounted"
        return Status.WARN, "a return probe would kill processes under a seccomp filter here, so there are none", remedy
    if not survival.shadow_stack:
        says = "return probes are safe, but not with a shadow stack: libraries that such a process uses get none"
        return Status.WARN, says, "update to Linux 6.11 or later"
    return Status.OK, "return probes are safe, under seccomp filters and with shadow stacks too"


def _watch(_: Settings) -> Answer:
    with select.epoll() as poll:
        Watch(poll).close()
    return Status.OK, "the kernel tells of new mappings as they happen"


def _addresses(settings: Settings) -> Answer:
    if settings.web.systemd_socket:
        return Status.INFO, "systemd opens the sockets"
    try:
        for bound in listen.bind(settings.web.listen_address):
            bound.close()
    except listen.ListenError as error:
        return Status.WARN, f"{error}", "if it is this exporter that runs there, all is well"
    return Status.OK, f"{', '.join(settings.web.listen_address)} is free to listen on"


def _pid_namespace(settings: Settings) -> Answer:
    if Path("/proc/self/ns/pid").stat().st_ino == HOST_PID_NAMESPACE:
        return Status.OK, "this process sees the host's pids, those the kernel gives to probes"
    remedy = "use hostPID: true (Kubernetes) or --pid=host (docker), or mount the host's /proc and say --path.procfs"
    try:
        if (settings.procfs / "1/ns/pid").stat().st_ino == HOST_PID_NAMESPACE:
            return Status.OK, f"{settings.procfs} shows the host's pids, those the kernel gives to probes"
    except OSError as error:
        return Status.FAIL, f"whether {settings.procfs} shows the host's pids cannot be told: {error.strerror}", remedy
    return Status.FAIL, f"{settings.procfs} shows a container's pids: those that probes give mean others here", remedy


def _map_files(settings: Settings) -> Answer:
    readable, denied, refusal = 0, [], ""
    for folder in itertools.islice(_process_folders(settings), _SAMPLE):
        try:
            entry = next((folder / "map_files").iterdir(), None)
            readable += bool(entry and entry.stat())
        except FileNotFoundError:
            continue
        except OSError as error:
            denied.append(folder.name)
            refusal = error.strerror or ""
    if denied and not readable:
        remedy = "grant CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH and CAP_CHECKPOINT_RESTORE (or CAP_SYS_ADMIN)"
        return Status.FAIL, f"files that processes have mapped cannot be opened ({refusal})", remedy
    but = f", but not of pid {', '.join(denied[:5])} ({refusal})" if denied else ""
    return Status.OK, f"files that processes have mapped can be opened, whatever their mount namespace{but}"


def _processes(settings: Settings) -> Answer:
    users: dict[str, list[str]] = {name: [] for name in LIBRARIES}
    seen = 0
    for folder in itertools.islice(_process_folders(settings), _PROCESSES):
        seen += 1
        maps = _text(folder / "maps", _MAPS_BYTES)
        for name, pattern in LIBRARIES.items():
            if pattern.search(maps):
                users[name].append(folder.name)
    shown = [
        f"{name}: {len(pids)} (pid {', '.join(pids[:5])}{', …' if len(pids) > 5 else ''})"
        for name, pids in users.items()
        if pids
    ]
    if shown:
        return Status.OK, f"of {seen} processes these use libraries we know by name: {'; '.join(shown)}"
    return Status.INFO, f"none of {seen} processes uses a CUDA, NCCL or verbs library by its usual name now"


def _nvidia(settings: Settings) -> Answer:
    version = re.search(r"Kernel Module.*?\s([0-9]+(?:\.[0-9]+)+)", _text(settings.procfs / "driver/nvidia/version"))
    gpus = len(list((settings.procfs / "driver/nvidia/gpus").glob("*")))
    if version:
        return Status.OK, f"NVIDIA driver {version[1]} with {gpus} GPU{'' if gpus == 1 else 's'}"
    return Status.INFO, "no NVIDIA driver here: calls of CUDA libraries are still seen, GPU metrics are not to be had"


def _kernel_log(settings: Settings) -> Answer:
    if "xid" not in settings.collectors:
        return Status.INFO, "the kernel log is not read: the collector xid is off"
    path = Path(settings.collectors["xid"]["kmsg"])
    try:
        os.close(open_log(path))
    except Unavailable as error:
        return Status.WARN, f"{error}: faults of GPUs are only seen as far as NVML tells them", error.remedy
    return Status.OK, f"{path} can be read: faults of GPUs and NVSwitches are seen"


def _rdma(settings: Settings) -> Answer:
    devices = sorted(path.name for path in (settings.sysfs / "class/infiniband").glob("*"))
    if devices:
        return Status.OK, f"RDMA devices: {', '.join(devices[:16])}"
    return Status.INFO, "no RDMA device here: port counters and NACKs are not to be had"


def _providers(settings: Settings) -> Answer:
    host = settings.procfs / "1/root"
    found = list(doctor.installed(host if _readable(host) else Path("/")))
    if not found:
        return Status.INFO, "no rdma-core here to look into; containers bring their own, which are found when they run"
    said = [(False, f"{name}: {it}", "") if isinstance(it, str) else doctor.says(name, it) for name, it in found]
    well = [name for (name, _), (whole, _, _) in zip(found, said, strict=True) if whole]
    text = f"of {len(found)} RDMA providers the functions are found in {len(well)}"
    for whole, sentence, remedy in said:
        if not whole:
            concerned = any((settings.sysfs / "class/infiniband").glob("*"))
            return Status.WARN if concerned else Status.INFO, f"{text}; {sentence}", remedy if concerned else ""
    return Status.OK, text


def _cgroups(settings: Settings) -> Answer:
    if (settings.sysfs / "fs/cgroup/cgroup.controllers").exists():
        return Status.OK, "cgroup v2: container, pod and Slurm job ids come from /proc/PID/cgroup"
    return Status.OK, "cgroup v1 or hybrid: container, pod and Slurm job ids come from /proc/PID/cgroup"


def _kubernetes(settings: Settings) -> Answer:
    if _readable(settings.logs / "pods"):
        return Status.OK, f"pod and container names come from {settings.logs}"
    if _in_kubernetes():
        remedy = f"mount the host's /var/log read-only, or say --path.logs (now {settings.logs})"
        return Status.WARN, "Kubernetes, but not the kubelet's log folders: pods have ids and no names", remedy
    return Status.INFO, "no kubelet here: pods have no names to find"


def _allocations(settings: Settings) -> Answer:
    mine = settings.collectors.get("allocation")
    if mine is None:
        return Status.INFO, "whom GPUs are given to is not asked: the collector allocation is off"
    kubelet, slurm, pods = found = allocation.sources(mine)
    for source in found:
        source.read(may_be_absent=source is kubelet)
    failures = [source.failure for source in found if source.there and source.failure]
    if failures:
        return Status.WARN, "; ".join(failures), "until then series of GPUs name no pod or job by allocation"
    if not kubelet.there and kubelet.where and _in_kubernetes():
        remedy = f"mount the host's folder of it read-only, or say --{allocation.SOCKET}"
        return Status.WARN, f"Kubernetes, but no {kubelet.where}: whose a GPU is, is not known", remedy
    things = {kubelet: "GPUs given to containers", slurm: "jobs on GPUs", pods: "pods with the labels asked for"}
    said = [f"{source.where} tells of {len(source.items())} {things[source]}" for source in found if source.there]
    if said:
        return Status.OK, "; ".join(said)
    return Status.INFO, "no kubelet and no Slurm mapping folder to tell whom GPUs are given to"


def _custom(settings: Settings) -> Answer:
    mine = settings.collectors.get("custom")
    if mine is None:
        return Status.INFO, "no probes of this site's own: --custom.dir names no folder"
    try:
        refused, says = custom.examine(mine)
    except (FolderError, Unavailable) as error:
        return Status.WARN, f"no custom probe can run: {error}", getattr(error, "remedy", "")
    if refused:
        return Status.WARN, "; ".join(refused), f"accel-exporter check-custom {mine['custom.dir']} tries the others"
    return Status.OK, says


def _in_kubernetes() -> bool:
    return Path("/var/lib/kubelet").exists() or "KUBERNETES_SERVICE_HOST" in os.environ


def _memory(_: Settings) -> Answer:
    limits = [_text(Path("/sys/fs/cgroup/memory.max")), _text(Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))]
    limit = min((int(text) for text in limits if text.strip().isdecimal()), default=0)
    if 0 < limit < _SMALL_MEMORY:
        return Status.WARN, f"memory is limited to {limit >> 20} MiB", f"allow {_SMALL_MEMORY >> 20} MiB or more"
    return Status.OK, "no memory limit is too small for us"


QUESTIONS: dict[str, Callable[[Settings], Answer]] = {
    "capabilities": _capabilities,
    "libbpf": _libbpf,
    "lockdown": _lockdown,
    "probes": _objects,
    "uprobes": _uprobes,
    "btf": _btf,
    "return probes": _returns,
    "new processes": _watch,
    "pid namespace": _pid_namespace,
    "mapped files": _map_files,
    "addresses": _addresses,
    "memory": _memory,
    "processes": _processes,
    "nvidia": _nvidia,
    "kernel log": _kernel_log,
    "rdma": _rdma,
    "rdma providers": _providers,
    "cgroups": _cgroups,
    "kubernetes": _kubernetes,
    "allocations": _allocations,
    "custom probes": _custom,
}


def _process_folders(settings: Settings) -> Iterator[Path]:
    return (folder for folder in settings.procfs.iterdir() if folder.name.isdecimal())


def _text(path: Path, limit: int = 65_536) -> str:
    """A file's beginning; empty when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def _readable(path: Path) -> bool:
    return os.access(path, os.R_OK)
