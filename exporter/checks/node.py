"""Checks of the things to observe on this node, and of access to them."""

from __future__ import annotations

import itertools
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from exporter import descriptors, pid_namespace, process_memory
from exporter.background.patience import Unanswered
from exporter.bpf import privileges
from exporter.bpf.attachments import MAX_LIBRARIES
from exporter.checks.finding import Answer, Status, process_folders, readable, text
from exporter.faults import ipmi
from exporter.kmsg.reader import open_source
from exporter.model import Unavailable
from exporter.settings import Settings
from exporter.verbs import doctor
from exporter.web import listen

LIBRARIES = {
    "CUDA": re.compile(r"lib(?:cuda|cudart)\.so"),
    "NCCL": re.compile(r"libnccl\.so"),
    "HIP": re.compile(r"libamdhip64\.so"),
    "GPUDirect Storage": re.compile(r"libcufile\.so"),
    "NIXL": re.compile(r"libnixl(?:-[0-9a-f]+)?\.so"),
    "UCX": re.compile(r"libucp(?:-[0-9a-f]+)?\.so"),
    "RDMA verbs": re.compile(r"libibverbs\.so"),
}
_PROCESSES = 32_768
_SAMPLE = 256
_MAPS_BYTES = 4 * 1024 * 1024
_DESCRIPTORS_OF_LIBRARY = 8
"""Of a library that is probed; usual ones take fewer."""
_CGROUPS, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_SMALL_MEMORY = 96 * 1024 * 1024


def addresses(settings: Settings) -> Answer:
    if settings.web.systemd_socket:
        return Status.INFO, "systemd opens the sockets"
    try:
        for bound in listen.bind(settings.web.listen_address):
            bound.close()
    except listen.ListenError as error:
        return Status.WARN, f"{error}", "ignore this when the listener is this exporter"
    return Status.OK, f"{', '.join(settings.web.listen_address)} is free to listen on"


def stacks(settings: Settings) -> Answer:
    if not settings.web.enable_profiles:
        return Status.INFO, "no profiles of stacks without --web.enable-profiles"
    from exporter.stacks import libdw

    if missing := libdw.missing():
        return Status.WARN, missing.partition(":")[0], libdw.INSTALL
    return Status.OK, "native frames of stacks can be unwound by libdw"


def host_pids(_: Settings) -> Answer:
    if pid_namespace.is_host():
        return Status.OK, "this process sees the host's pids, as the kernel reports them to probes"
    return Status.FAIL, f"{pid_namespace.REFUSAL}: pids of probes would be other processes", pid_namespace.REMEDY


def map_files(settings: Settings) -> Answer:
    readable, denied, refusal = 0, [], ""
    for folder in itertools.islice(process_folders(settings), _SAMPLE):
        try:
            readable += process_memory.patiently(settings.procfs, int(folder.name), _mapped_file)
        except Unanswered:
            continue
        except FileNotFoundError:
            continue
        except OSError as error:
            denied.append(folder.name)
            refusal = error.strerror or ""
    if denied and not readable:
        remedy = "grant CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH and CAP_CHECKPOINT_RESTORE (or CAP_SYS_ADMIN)"
        remedy = privileges.LEAVE_USER_NAMESPACE if privileges.in_user_namespace() else remedy
        return Status.FAIL, f"files that processes have mapped cannot be opened ({refusal})", remedy
    but = f", but not of pid {', '.join(denied[:5])} ({refusal})" if denied else ""
    return Status.OK, f"files that processes have mapped can be opened, whatever their mount namespace{but}"


def _mapped_file(folder: Path) -> bool:
    entry = next((folder / "map_files").iterdir(), None)
    return bool(entry and entry.stat())


def processes(settings: Settings) -> Answer:
    users: dict[str, list[str]] = {name: [] for name in LIBRARIES}
    seen = denied = locked = 0
    for folder in itertools.islice(process_folders(settings), _PROCESSES):
        try:
            maps = process_memory.read(settings.procfs, int(folder.name), "maps", _MAPS_BYTES).decode(errors="replace")
        except PermissionError:
            denied += 1
            continue
        except Unanswered:
            locked += 1
            continue
        except OSError:
            continue  # it has ended
        seen += 1
        for name, pattern in LIBRARIES.items():
            if pattern.search(maps):
                users[name].append(folder.name)
    shown = [
        f"{name}: {len(pids)} (pid {', '.join(pids[:5])}{', …' if len(pids) > 5 else ''})"
        for name, pids in users.items()
        if pids
    ]
    summary = (
        f"none of {seen} processes uses a CUDA, HIP, NCCL, cuFile, NIXL, UCX or verbs library by its usual name now"
    )
    if shown:
        summary = f"of {seen} processes these use libraries with known names: {'; '.join(shown)}"
    if locked:
        summary += f"; {locked} other{'s' * (locked != 1)} cannot be looked into while their memory maps are locked"
    if denied:
        summary += f"; {denied} other{'s' * (denied != 1)} cannot be looked into"
    if denied and privileges.in_user_namespace():
        return Status.WARN, summary, privileges.LEAVE_USER_NAMESPACE
    if denied and "CAP_SYS_PTRACE" in privileges.missing():  # else the host refuses what no capability gives
        return Status.WARN, summary, "run as root, or grant CAP_SYS_PTRACE"
    return Status.OK if shown else Status.INFO, summary


def nvidia(settings: Settings) -> Answer:
    version = re.search(r"Kernel Module.*?\s([0-9]+(?:\.[0-9]+)+)", text(settings.procfs / "driver/nvidia/version"))
    gpus = len(list((settings.procfs / "driver/nvidia/gpus").glob("*")))
    if version:
        return Status.OK, f"NVIDIA driver {version[1]} with {gpus} GPU{'' if gpus == 1 else 's'}"
    return Status.INFO, "no NVIDIA driver on this node: calls of CUDA libraries are counted, without GPU metrics"


def kernel_log(settings: Settings) -> Answer:
    gpus = "xid" in settings.collectors
    if not gpus and "faults" not in settings.collectors:
        return Status.INFO, "the kernel log is not read: the collectors xid and faults are off"
    try:
        source = open_source(Path(settings.kmsg.path))
        source.close()
    except Unavailable as error:
        unseen = "only GPU faults that NVML reports are detected" if gpus else "faults in the log are not detected"
        return Status.WARN, f"{error}: {unseen}", error.remedy
    seen = "faults of GPUs and NVSwitches" if gpus else "faults of the node's hardware"
    return Status.OK, f"{source.name} can be read: {seen} are seen"


def controller(settings: Settings) -> Answer:
    found = sorted(path.name for path in (settings.sysfs / "class/ipmi").glob("ipmi*"))
    wanted = settings.collectors.get("faults", {})
    if not wanted.get("ipmi"):
        present = (
            f"there is a management controller ({found[0]})" if found else "the kernel has no management controller"
        )
        return Status.INFO, f"{present}; none is queried without --collector.faults.ipmi"
    try:
        ipmi.command("", "", "")
    except FileNotFoundError as error:
        return (
            Status.WARN,
            f"the management controller cannot be queried: {error.filename} {error.strerror}",
            "install it",
        )
    if host := wanted["ipmi-host"]:
        return Status.OK, f"the management controller at {host} is queried over the network"
    if not found:
        remedy = "load ipmi_si and ipmi_devintf, or name the controller with --collector.faults.ipmi-host"
        return Status.WARN, "the kernel has no management controller", remedy
    if os.geteuid() or not os.access(ipmi.DEVICE, os.R_OK | os.W_OK):
        remedy = "run as root, in a privileged container, or query it over the network: --collector.faults.ipmi-host"
        return Status.WARN, f"FreeIPMI may not open {ipmi.DEVICE}", remedy
    return Status.OK, f"the management controller is queried through {ipmi.DEVICE}"


def rdma(settings: Settings) -> Answer:
    devices = sorted(path.name for path in (settings.sysfs / "class/infiniband").glob("*"))
    if devices:
        return Status.OK, f"RDMA devices: {', '.join(devices[:16])}"
    return Status.INFO, "no RDMA device on this node: there are no port counters or NACKs"


def providers(settings: Settings) -> Answer:
    host = settings.procfs / "1/root"
    found = list(doctor.installed(host if readable(host) else Path("/")))
    if not found:
        return (
            Status.INFO,
            "no rdma-core on this node; the one of a container is examined when a process uses it",
        )
    results = [
        (False, f"{name}: {outcome}", "") if isinstance(outcome, str) else doctor.describe(name, outcome)
        for name, outcome in found
    ]
    complete = [name for (name, _), (whole, _, _) in zip(found, results, strict=True) if whole]
    text = f"of {len(found)} RDMA providers the functions are found in {len(complete)}; "
    text += "ibv_wr_start and related functions are found through queue pairs when a job creates them"
    for whole, sentence, remedy in results:
        if not whole:
            present = any((settings.sysfs / "class/infiniband").glob("*"))
            return Status.WARN if present else Status.INFO, f"{text}; {sentence}", remedy if present else ""
    return Status.OK, text


def _memory_limits(cgroups: str) -> Iterator[Path]:
    """Yield the files with the limits on this process: of its cgroup and all above it, on cgroup v1 and v2.

    `cgroups` is its /proc/PID/cgroup. A path there may be that of the host, of which only the innermost part is mounted
    in a container: folders that are not there have no limit, and the root's is yielded always.
    """
    own = {"": "/", "memory": "/"} | {
        row[1]: row[2] for row in (it.split(":", 2) for it in cgroups.splitlines()) if row[2:]
    }
    for controller, file in (("", "memory.max"), ("memory", "memory/memory.limit_in_bytes")):
        root, name = (_CGROUPS / file).parent, Path(file).name
        parts = [part for part in own[controller].split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            yield root.joinpath(*parts[:depth]) / name


def memory(_: Settings) -> Answer:
    limits = [text(path) for path in _memory_limits(text(_OWN_CGROUPS))]
    limit = min((int(text) for text in limits if text.strip().isdecimal()), default=0)
    if 0 < limit < _SMALL_MEMORY:
        return Status.WARN, f"memory is limited to {limit >> 20} MiB", f"allow {_SMALL_MEMORY >> 20} MiB or more"
    return Status.OK, "no memory limit is too small for the exporter"


def open_files(_: Settings) -> Answer:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    left = max(0, most - descriptors.reserve(most))
    libraries = (left - descriptors.PROGRAMS - (os.cpu_count() or 1)) // _DESCRIPTORS_OF_LIBRARY
    allowed = f"the limit of open files, {most}, leaves {left} to probes"
    if libraries <= 0:
        return Status.WARN, f"{allowed}: too few for the programs of all collectors", descriptors.RAISE
    if libraries < MAX_LIBRARIES:
        return Status.WARN, f"{allowed}: enough for about {libraries} libraries", descriptors.RAISE
    return Status.OK, f"{allowed}: enough for the {MAX_LIBRARIES} libraries that are probed at most"
