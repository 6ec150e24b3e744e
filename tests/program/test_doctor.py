"""The doctor's findings about made-up nodes, and their printed form."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from exporter import checks, descriptors, doctor, pid_namespace, settings
from exporter.bpf import privileges
from exporter.bpf.calibrate import HIT_COST
from exporter.bpf.native import BpfError
from exporter.bpf.probe_metrics import ATTACHED
from exporter.bpf.safety import Survival
from exporter.checks import Finding, Status, probed
from exporter.collectors import allocation
from exporter.faults import ipmi
from exporter.kmsg.kernel_log import KmsgSettings
from exporter.observer import Observer
from exporter.scrape import Scraper
from exporter.settings import OverheadSettings, Settings
from tests.standins import kubelet
from tests.support import PATIENCE

ROOT = Path(__file__).parents[2]


@pytest.fixture
def node(tmp_path: Path) -> Settings:
    """A node with nothing in /proc, /sys and /var/log."""
    for folder in ("proc", "sys", "log"):
        (tmp_path / folder).mkdir()
    return replace(settings.load({}, {}, []), procfs=tmp_path / "proc", sysfs=tmp_path / "sys", logs=tmp_path / "log")


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capabilities count, also where the tests run in a user namespace."""
    monkeypatch.setattr(privileges, "in_user_namespace", lambda: False)


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def answer(name: str, node: Settings) -> Finding:
    return Finding(name, *checks.CHECKS[name](node))


def test_every_question_is_answered_here() -> None:
    """On this machine, whatever it allows, every check has a summary."""
    findings = list(checks.examine(settings.load({}, {}, [])))

    assert list(checks.CHECKS) == [finding.name for finding in findings]
    assert [] == [finding for finding in findings if not finding.summary or "cannot be examined" in finding.summary]


@pytest.mark.parametrize(
    ("limit", "status", "allowed"),
    [
        (32, Status.WARN, "leaves 0 to probes: too few"),
        (128, Status.WARN, "leaves 64 to probes: too few"),
        (1024, Status.WARN, "leaves 768 to probes: enough for about 63 libraries"),
        (65536, Status.OK, "leaves 65216 to probes: enough for the 256 libraries"),
    ],
)
def test_open_files(node: Settings, monkeypatch: pytest.MonkeyPatch, limit: int, status: Status, allowed: str) -> None:
    """The finding has the effect of the hard limit of open files, and the limit to raise if it is low."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, limit))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    finding = answer("open files", node)

    assert status is finding.status
    assert allowed in finding.summary
    assert ("LimitNOFILE" in finding.remedy) is (status is Status.WARN)


@pytest.mark.parametrize(
    ("own", "limits", "found"),
    [
        ("0::/a.slice/b.service\n", {"a.slice/b.service/memory.max": "67108864"}, "64 MiB"),
        ("0::/a/b\n", {"memory.max": "max", "a/memory.max": "33554432", "a/b/memory.max": "67108864"}, "32 MiB"),
        ("0::/\n", {"memory.max": "67108864"}, "64 MiB"),
        ("0::/kubepods/x\n", {"memory.max": "67108864"}, "64 MiB"),
        ("", {"memory.max": "67108864"}, "64 MiB"),
        ("0::/a/b\n", {"a/memory.max": "max", "a/b/memory.max": "max", "c/memory.max": "67108864"}, ""),
        ("0::/../a\n", {"memory.max": "67108864"}, "64 MiB"),
        ("4:memory:/a/b\n0::/\n", {"memory/a/memory.limit_in_bytes": "67108864"}, "64 MiB"),
        ("4:memory:/a:b\n", {"memory/a:b/memory.limit_in_bytes": "67108864"}, "64 MiB"),
        ("4:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "9223372036854771712"}, ""),
        ("4:memory:/a\n0::/\n", {"memory/memory.limit_in_bytes": "67108864"}, "64 MiB"),
    ],
)
def test_memory(
    node: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, limits: dict[str, str], found: str
) -> None:
    """The least limit of the exporter's own cgroup and those above it counts, and no other's."""
    write(tmp_path / "own", own)
    for path, limit in limits.items():
        write(tmp_path / "cgroup" / path, f"{limit}\n")
    monkeypatch.setattr("exporter.checks.node._OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr("exporter.checks.node._CGROUPS", tmp_path / "cgroup")

    finding = answer("memory", node)

    assert (Status.WARN if found else Status.OK) is finding.status
    assert found in finding.summary


def test_uprobes_missing(node: Settings) -> None:
    """A kernel without uprobes is a failure, with what to do."""
    finding = answer("uprobes", node)

    assert Status.FAIL is finding.status
    assert "CONFIG_UPROBE_EVENTS" in finding.remedy


def test_uprobes_that_are_not_permitted() -> None:
    """In a user namespace, where capabilities permit no BPF, no newer kernel is the remedy."""
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-m", "exporter", "doctor", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if not done.stdout:
        pytest.skip(f"no user namespace can be made here: {done.stderr}")
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}

    assert "Operation not permitted" in findings["uprobes"]["says"]
    assert [] == [it for it in findings.values() if "Linux 6.6" in it["do"] or "grant" in it["do"]]
    for name in ("capabilities", "probes", "uprobes", "mapped files"):
        assert ("fail", True) == (findings[name]["status"], privileges.LEAVE_USER_NAMESPACE in findings[name]["do"])
    watching = findings["new processes"]  # permitted where kernel.perf_event_paranoid is 0 or less
    assert watching["status"] == "ok" or privileges.LEAVE_USER_NAMESPACE == watching["do"]
    assert [] == [it["name"] for it in findings.values() if it["status"] in ("warn", "fail") and not it["do"]]


@pytest.mark.parametrize(
    ("code", "held", "remedy"),
    [
        (errno.EPERM, (), privileges.GRANT),
        (errno.EACCES, privileges.OBSERVING, privileges.PERMIT),
        (errno.EINVAL, privileges.OBSERVING, "update to Linux 6.1 or newer; on such a kernel, report this"),
        (errno.EMFILE, privileges.OBSERVING, descriptors.RAISE),
        (errno.ENOENT, privileges.OBSERVING, ""),  # the message has it
    ],
)
def test_what_the_kernel_refuses(
    node: Settings, monkeypatch: pytest.MonkeyPatch, code: int, held: Collection[str], remedy: str
) -> None:
    """A failure of the kernel has the remedy for its error, in the checks that load, and that watch processes."""

    def fail(*_: object) -> None:
        raise BpfError(code, "load it: oh\nmore")

    monkeypatch.setattr(privileges, "effective", lambda: frozenset(held))
    monkeypatch.setattr(checks.kernel, "Object", fail)
    monkeypatch.setattr(checks.kernel, "Watch", fail)
    monkeypatch.setattr(checks, "CHECKS", {name: checks.CHECKS[name] for name in ("probes", "new processes")})
    found = {it.name: it for it in checks.examine(node)}

    assert {"probes": (Status.FAIL, remedy), "new processes": (Status.FAIL, remedy)} == {
        name: (it.status, it.remedy) for name, it in found.items()
    }
    assert "load it: oh" in found["new processes"].summary and "more" not in found["new processes"].summary


def test_a_kernel_without_a_tracepoint(node: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that needs a newer kernel is named, and is no failure; without the kernel's types it is one."""
    reasons = ["prog 'on_data': failed to find kernel BTF type ID of 'sk_data_ready': -3", "no valid kernel BTF"]

    class Loaded:
        def __init__(self, path: Path) -> None:
            if path.name == "serving.bpf.o":
                raise BpfError(errno.ESRCH, f"load {path}: No such process\n{reasons.pop(0)}")

        def close(self) -> None:
            """Nothing is loaded."""

    monkeypatch.setattr(checks.kernel, "Object", Loaded)
    found = [checks.kernel.objects(node) for _ in range(2)]

    assert [Status.INFO, Status.FAIL] == [it[0] for it in found]
    assert found[0][1].endswith("serving needs a newer kernel") and "no valid kernel BTF" in found[1][1]


@pytest.mark.parametrize(
    ("missing", "dependent"),
    [
        ("sysfs", {"uprobes", "ipmi", "rdma", "cgroups"}),
        ("procfs", {"pid namespace", "mapped files", "processes", "nvidia"}),
    ],
)
def test_a_file_system_that_is_not_mounted(tmp_path: Path, missing: str, dependent: set[str]) -> None:
    """An empty folder in place of /sys or /proc is one failure with a remedy; nothing is concluded from its files."""
    (tmp_path / "empty").mkdir()
    chosen = replace(settings.load({}, {}, []), **{missing: tmp_path / "empty"})
    findings = {finding.name: finding for finding in checks.examine(chosen)}

    assert Status.FAIL is findings[missing].status
    assert f"{missing} is not mounted at {tmp_path / 'empty'}" == findings[missing].summary
    assert f"--path.{missing}" in findings[missing].remedy
    unknown = {name for name, finding in findings.items() if finding.summary.startswith("unknown: ")}
    assert dependent == unknown
    assert {Status.INFO} == {findings[name].status for name in unknown}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize("place", ["/sys", "/proc"])
def test_no_mount(place: str) -> None:
    """With an empty file system mounted instead, no finding has the remedy of a report or of another kernel."""
    command = f"mount -t tmpfs none {place} && exec {sys.executable} -m exporter doctor --json"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}

    mounted = findings["sysfs" if place == "/sys" else "procfs"]
    assert ("fail", True) == (mounted["status"], mounted["do"].endswith(place))
    assert [] == [it for it in findings.values() if "report this" in it["do"] or "CONFIG_" in it["do"]]
    assert "unknown" in findings["uprobes"]["says"]
    assert [] == [it for it in findings.values() if "Too many open files" in it["says"]]
    if place == "/proc":
        assert "mount procfs at /proc" in findings["probes"]["says"]


@pytest.mark.parametrize(
    ("survival", "status"),
    [
        (Survival(seccomp=True, shadow_stack=True), Status.OK),
        (Survival(seccomp=True, shadow_stack=False), Status.WARN),
        (Survival(seccomp=True, shadow_stack=True, signal_stacks=False), Status.WARN),
        (Survival(seccomp=False, shadow_stack=True), Status.WARN),
        (Survival(seccomp=False, shadow_stack=False, doubt="it could not be tried: oh\n  more"), Status.WARN),
    ],
)
def test_return_probes(node: Settings, monkeypatch: pytest.MonkeyPatch, survival: Survival, status: Status) -> None:
    """Return probes that would harm somebody are a warning; what goes uncounted is in its summary, not the remedy."""
    monkeypatch.setattr(checks.kernel, "try_return_probes", lambda: survival)
    found = answer("return probes", node)

    assert status is found.status
    assert (status is Status.WARN) == bool(found.remedy)
    assert "uncounted" not in found.remedy
    assert survival.seccomp or "frees of allocations go uncounted" in found.summary


@pytest.mark.parametrize(
    ("collectors", "status", "summary"),
    [
        ((), Status.INFO, "not read: the collectors xid and faults are off"),
        (("faults",), Status.OK, "can be read: faults of the node's hardware are seen"),
        (("faults", "xid"), Status.OK, "can be read: faults of GPUs and NVSwitches are seen"),
    ],
)
def test_kernel_log(node: Settings, collectors: tuple[str, ...], status: Status, summary: str) -> None:
    """Readability of the kernel log matters to either collector that reads it."""
    write(node.logs / "kmsg")
    kmsg = KmsgSettings(str(node.logs / "kmsg"))
    found = answer("kernel log", replace(node, collectors=dict.fromkeys(collectors, {}), kmsg=kmsg))

    assert (status, True) == (found.status, summary in found.summary)


@pytest.mark.parametrize("collector", ["faults", "xid"])
def test_no_kernel_log(node: Settings, collector: str) -> None:
    """A kernel log that cannot be opened is a warning with a remedy, and the path is the one of the settings."""
    kmsg = KmsgSettings(str(node.logs / "nowhere"))
    found = answer("kernel log", replace(node, collectors={collector: {}}, kmsg=kmsg))

    assert (Status.WARN, True) == (found.status, "CAP_SYSLOG" in found.remedy)
    assert f"there is no {kmsg.path}" in found.summary


def test_address_in_use(node: Settings) -> None:
    """An address that somebody listens on already is named."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        finding = answer("addresses", replace(node, web=replace(node.web, listen_address=(address,))))

    assert Status.WARN is finding.status
    assert address in finding.summary


def test_question_that_breaks(node: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that cannot be chosen is one failure in one line; the others are answered."""

    def broken(_: Settings) -> checks.Answer:
        raise RuntimeError("oh")

    monkeypatch.setattr(checks, "CHECKS", {"broken": broken, "rdma": checks.CHECKS["rdma"]})

    first, second = checks.examine(node)

    assert Finding("broken", Status.FAIL, "cannot be examined: RuntimeError: oh", "report this") == first
    assert second.status is Status.INFO


def test_a_check_that_hangs(node: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that does not end is a failed one, with what to look for, and the next one is run."""
    answer = threading.Event()

    def hang(_: Settings) -> checks.Answer:
        answer.wait()
        return Status.OK, "too late"

    monkeypatch.setattr(checks, "CHECKS", {"stuck": hang, "rdma": checks.CHECKS["rdma"]})
    monkeypatch.setattr(checks, "SECONDS", 2)
    examined = checks.examine(node)
    first = next(examined)
    monkeypatch.setattr(checks, "SECONDS", PATIENCE)
    (second,) = examined
    answer.set()
    assert (Status.FAIL, "rdma") == (first.status, second.name)
    assert "not examined within 2 s" in first.summary
    assert "state D" in first.remedy
    assert "not examined" not in second.summary


def test_a_check_that_computes(node: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine that is at work is waited for longer than one that does not answer."""

    began = time.monotonic()

    def compute(_: Settings) -> checks.Answer:
        time.sleep(0.5)
        return Status.OK, "done"

    monkeypatch.setattr(checks, "CHECKS", {"slow": compute})
    monkeypatch.setattr(checks, "SECONDS", 0.2)
    monkeypatch.setattr(checks, "on_processor", lambda thread: time.monotonic() - began)
    (only,) = checks.examine(node)
    assert (Status.OK, "done") == (only.status, only.summary)


def test_time_on_a_processor() -> None:
    """A thread that computes has it, one that waits has none."""
    end, ended = threading.Event(), threading.Event()

    def compute() -> None:
        while time.thread_time() < 0.5:
            pass
        ended.set()
        end.wait()

    computing, waiting = (threading.Thread(target=it, daemon=True) for it in (compute, end.wait))
    computing.start()
    waiting.start()
    ended.wait()
    times = checks.on_processor(computing), checks.on_processor(waiting)
    end.set()
    assert times[0] >= 0.5 > 0.1 > times[1]


def test_a_check_that_computes_for_ever(node: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work without an end is given up."""
    end = threading.Event()

    def compute(_: Settings) -> checks.Answer:
        while not end.is_set():
            pass
        return Status.OK, "too late"

    monkeypatch.setattr(checks, "CHECKS", {"endless": compute})
    monkeypatch.setattr(checks, "SECONDS", 0.2)
    monkeypatch.setattr(checks, "MOST_SECONDS", 1)
    (only,) = checks.examine(node)
    end.set()
    assert "not examined" in only.summary


@pytest.mark.parametrize(
    ("held", "status", "named"),
    [
        (set(privileges.OBSERVING), Status.OK, ()),
        ({"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"}, Status.OK, ()),
        ({"CAP_SYS_ADMIN"}, Status.FAIL, ("CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH")),
        ({"CAP_BPF", "CAP_PERFMON"}, Status.FAIL, ("CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_CHECKPOINT_RESTORE")),
    ],
)
def test_capabilities(
    node: Settings, monkeypatch: pytest.MonkeyPatch, held: set[str], status: Status, named: tuple[str, ...]
) -> None:
    """Missing capabilities are named with what they are for; CAP_SYS_ADMIN stands for those split off from it."""
    monkeypatch.setattr(privileges, "effective", lambda: frozenset(held))

    finding = answer("capabilities", node)

    assert status is finding.status
    assert named == tuple(name for name in privileges.OBSERVING if name in finding.summary)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("[none] integrity confidentiality\n", Status.OK),
        ("none [integrity] confidentiality\n", Status.OK),
        ("none integrity [confidentiality]\n", Status.FAIL),
    ],
)
def test_lockdown(node: Settings, text: str, status: Status) -> None:
    """Only confidentiality lockdown keeps tracing programs from reading."""
    write(node.sysfs / "kernel/security/lockdown", text)

    assert status is answer("lockdown", node).status


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build", "570.86.15"),
    ],
)
def test_nvidia(node: Settings, line: str, version: str) -> None:
    """Both kernel modules have the driver's version in their file; GPUs are counted."""
    write(node.procfs / "driver/nvidia/version", line)
    (node.procfs / "driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)

    assert f"NVIDIA driver {version} with 1 GPU" == answer("nvidia", node).summary


def test_no_hardware(node: Settings) -> None:
    """A node without GPU, RDMA or kubelet is no fault."""
    statuses = {name: answer(name, node).status for name in ("nvidia", "rdma")}

    assert {"nvidia": Status.INFO, "rdma": Status.INFO} == statuses


def test_rdma(node: Settings) -> None:
    """RDMA devices are named."""
    (node.sysfs / "class/infiniband/mlx5_0").mkdir(parents=True)

    assert "RDMA devices: mlx5_0" == answer("rdma", node).summary


def with_controller(node: Settings, host: str = "") -> Settings:
    return replace(node, collectors={"faults": {"ipmi": True, "ipmi-host": host}})


def test_a_controller_that_is_not_queried(node: Settings) -> None:
    """Without the flag no management controller is queried; where there is one, the finding names the flag."""
    assert "has no management controller" in answer("ipmi", node).summary
    write(node.sysfs / "class/ipmi/ipmi0/uevent")
    finding = answer("ipmi", node)
    assert Status.INFO is finding.status
    assert "(ipmi0)" in finding.summary and "--collector.faults.ipmi" in finding.summary


def test_a_controller_that_can_be_queried(node: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query takes FreeIPMI, the kernel's driver and the right to open the device, or a name in the network."""
    device = tmp_path / "ipmi0"
    monkeypatch.setattr(ipmi, "DEVICE", device)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    chosen = with_controller(node)
    missing = answer("ipmi", chosen)
    assert Status.WARN is missing.status and "freeipmi-tools" in missing.summary

    monkeypatch.setattr("shutil.which", lambda name, **_: f"/usr/sbin/{name}")
    assert "ipmi_devintf" in answer("ipmi", chosen).remedy
    write(node.sysfs / "class/ipmi/ipmi0/uevent")
    assert "may not open" in answer("ipmi", chosen).summary
    write(device)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "run as root" in answer("ipmi", chosen).remedy
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert Status.OK is answer("ipmi", chosen).status

    remote = answer("ipmi", with_controller(node, "10.0.0.9"))
    assert (Status.OK, True) == (remote.status, "10.0.0.9" in remote.summary)


def test_processes(node: Settings) -> None:
    """Processes that map known libraries are counted, with a few of their pids."""
    for pid in range(1, 8):
        write(
            node.procfs / str(pid) / "maps", "7f0000000000-7f0000001000 r-xp 00000000 00:1 1 /x/libcudart.so.12.4.99\n"
        )
    write(node.procfs / "9" / "maps", "7f0000000000-7f0000001000 r-xp 00000000 00:1 1 /x/libc.so.6\n")
    write(node.procfs / "version", "not a process")

    summary = answer("processes", node).summary

    assert summary.startswith("of 8 processes these use libraries with known names: CUDA: 7 (pid ")
    assert summary.endswith(", …)")


@pytest.mark.parametrize(
    ("missing", "status", "remedy"),
    [(["CAP_SYS_PTRACE"], Status.WARN, "run as root, or grant CAP_SYS_PTRACE"), ([], Status.INFO, "")],
)
def test_processes_that_cannot_be_looked_into(
    node: Settings, monkeypatch: pytest.MonkeyPatch, missing: list[str], status: Status, remedy: str
) -> None:
    """Processes of others, which may use any library, are counted apart; one that has ended meanwhile is none. A
    capability is no remedy where it is there.
    """
    monkeypatch.setattr("exporter.bpf.privileges.missing", lambda: missing)
    for pid in range(1, 6):
        write(node.procfs / str(pid) / "maps", "7f0000000000-7f0000001000 r-xp 00000000 00:1 1 /x/libc.so.6\n")
    (node.procfs / "7").mkdir()
    opened = Path.open

    def open_own(path: Path, *mode: str) -> object:
        if path.parent.name in ("2", "4"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *mode)

    monkeypatch.setattr(Path, "open", open_own)
    found = answer("processes", node)
    assert (status, remedy) == (found.status, found.remedy)
    assert "none of 3 processes uses" in found.summary
    assert found.summary.endswith("; 2 others cannot be looked into")


def test_the_hosts_pids(node: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the exporter's own PID namespace counts, as for its search; another mount of procfs is no remedy."""
    own = Path("/proc/self/ns/pid").stat().st_ino
    monkeypatch.setattr(pid_namespace, "HOST", own)
    assert Status.OK is answer("pid namespace", node).status
    monkeypatch.setattr(pid_namespace, "HOST", own + 1)
    write(node.procfs / "1/ns/pid")
    monkeypatch.setattr(pid_namespace, "HOST", (node.procfs / "1/ns/pid").stat().st_ino)
    refused = answer("pid namespace", node)
    assert Status.FAIL is refused.status
    assert "procfs" not in refused.remedy
    assert all(word in refused.remedy for word in ("hostPID: true", "--pid=host", "unshare"))


def test_pods_without_names(node: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Kubernetes without the kubelet's logs the remedy names the mount; with the logs there is none."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert Status.WARN is answer("kubernetes", node).status

    (node.logs / "pods").mkdir()

    assert Status.OK is answer("kubernetes", node).status


def with_allocation(node: Settings, **changed: str) -> Settings:
    """The node with the collector allocation and these settings of it."""
    defaults = {option.name: option.default for option in allocation.OPTIONS}
    mine = allocation.configure({**defaults, allocation.INTERVAL: PATIENCE, **changed})
    return replace(node, collectors={"allocation": mine or {}})


def test_allocations(node: Settings, tmp_path: Path) -> None:
    """Each source is read as the collector reads it, and its items are counted."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/0").write_text("1001\n1002\n")
    path = tmp_path / "kubelet.sock"
    chosen = with_allocation(node, **{allocation.SOCKET: str(path), allocation.FOLDER: str(tmp_path / "jobs")})
    with kubelet.kubelet(path, kubelet.pod("train-0", kubelet.container("main", "GPU-1", "GPU-2", "GPU-3"))):
        finding = answer("allocations", chosen)

    assert Status.OK is finding.status
    expected = f"{path} lists 3 GPUs allocated to containers; {tmp_path / 'jobs'} lists 2 jobs on GPUs"
    assert expected == finding.summary


def test_allocations_that_cannot_be_read(node: Settings, tmp_path: Path) -> None:
    """A folder that is not there and a socket that nobody serves are warnings that name them."""
    path = tmp_path / "kubelet.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
    chosen = with_allocation(node, **{allocation.SOCKET: str(path), allocation.FOLDER: str(tmp_path / "nowhere")})
    finding = answer("allocations", chosen)

    assert Status.WARN is finding.status
    assert f"{path}: Connection refused" in finding.summary
    assert f"{tmp_path / 'nowhere'}: No such file or directory" in finding.summary


def test_no_allocations(node: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kubelet is nothing to speak of, except in Kubernetes, where its socket has to be mounted."""
    chosen = with_allocation(node, **{allocation.SOCKET: str(tmp_path / "kubelet.sock"), allocation.FOLDER: ""})
    monkeypatch.setattr(checks.site, "in_kubernetes", lambda: False)
    assert Status.INFO is answer("allocations", chosen).status
    monkeypatch.setattr(checks.site, "in_kubernetes", lambda: True)
    finding = answer("allocations", chosen)

    assert (Status.WARN, True) == (finding.status, "--kubernetes.pod-resources-socket" in finding.remedy)
    assert Status.INFO is answer("allocations", replace(node, collectors={})).status


FINDINGS = [
    Finding("one", Status.OK, "it works"),
    Finding("two", Status.FAIL, "it does not:\n  because", "do this"),
]


def test_plain() -> None:
    """Piped, each finding is one line and the last line counts them."""
    out = io.StringIO()
    doctor.write(FINDINGS, [], out, as_json=False)

    assert [
        "ok    one               it works",
        "fail  two               it does not:   because -> do this",
        "1 ok, 0 info, 0 warn, 1 fail",
    ] == out.getvalue().splitlines()


def test_json() -> None:
    """For programs the same is one JSON object with the build."""
    out = io.StringIO()
    doctor.write(FINDINGS, [], out, as_json=True)

    document = json.loads(out.getvalue())

    assert {"name": "one", "status": "ok", "says": "it works", "do": ""} == document["findings"][0]
    assert {"version", "revision", "date", "python", "platform"} == set(document["build"])


@pytest.mark.parametrize(("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_terminal(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], coloured: bool) -> None:
    """In a terminal lines are wrapped to its width and coloured, unless NO_COLOR is set."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", "70")
    out = io.StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]
    doctor.write([Finding("long", Status.WARN, "word " * 40, "do")], [], out, as_json=False)

    lines = out.getvalue().splitlines()

    assert coloured == ("\x1b[33m" in lines[0])
    assert [] == [line for line in lines[1:] if len(line) > 70]
    assert "→ do" in out.getvalue()


def test_failed() -> None:
    """The exit code depends on failures alone."""
    assert [True, False] == [doctor.failed(FINDINGS), doctor.failed(FINDINGS[:1])]


@pytest.mark.parametrize(("release", "status"), [("6.8.0-49-generic", Status.INFO), ("6.12.1", Status.OK)])
def test_contention(node: Settings, monkeypatch: pytest.MonkeyPatch, release: str, status: Status) -> None:
    """Before Linux 6.12 the ceiling of hits is named."""
    monkeypatch.setattr("platform.release", lambda: release)
    assert status is probed.contention(node)[0]


@pytest.mark.parametrize(("path", "status"), [("/usr/sbin/criu", Status.INFO), (None, Status.OK)])
def test_checkpoints(node: Settings, monkeypatch: pytest.MonkeyPatch, path: str | None, status: Status) -> None:
    """If CRIU is installed, the finding names the effect of probes on it."""
    monkeypatch.setattr("shutil.which", lambda _: path)
    assert status is probed.checkpoints(node)[0]


@pytest.mark.parametrize(("detached", "status"), [(True, Status.OK), (False, Status.FAIL)])
def test_detaching(node: Settings, monkeypatch: pytest.MonkeyPatch, detached: bool, status: Status) -> None:
    """Probes that are still attached when the time for detaching is over are a failure."""
    monkeypatch.setattr(Observer, "start", lambda self: self.targets.scanned.set())
    monkeypatch.setattr(Observer, "close", lambda self: detached)

    *_, finding = doctor.check(node, {})[0]

    assert ("detaching", status) == (finding.name, finding.status)
    assert ("not everything" in finding.summary) is not detached


@pytest.mark.parametrize(("pages", "status"), [([0, 1], Status.OK), ([0, None], Status.OK), ([0], Status.FAIL)])
def test_a_process_that_has_just_ended(
    node: Settings, monkeypatch: pytest.MonkeyPatch, pages: list[int | None], status: Status
) -> None:
    """Functions that are not attached are a failure once a process that has ended cannot be the reason any more."""
    labels = {"probe": "cuda", "symbol": "cuMemAlloc_v2", "library": "/a/libcuda.so.1", "placement": "emulated"}
    found = [[] if value is None else [ATTACHED.sample(value, labels)] for value in pages]
    monkeypatch.setattr(Observer, "start", lambda self: self.targets.scanned.set())
    monkeypatch.setattr(Scraper, "gather", lambda self: found.pop(0) if len(found) > 1 else found[0])
    monkeypatch.setattr(doctor, "SETTLE_WITHIN", 0.8 if status is Status.FAIL else PATIENCE)
    findings = doctor.check(node, {})[0]
    assert [status] == [it.status for it in findings if it.name == "attaching"]


@pytest.mark.parametrize(
    ("bound", "cost", "status", "part"),
    [
        (0.01, 0.7e-6, Status.OK, "a hit costs 0.7 µs; calls that may be left out are probed in windows"),
        (0.01, 0.7e-6, Status.OK, "1.00% of a process's CPU time, or 0.5 cores of all processes together"),
        (0.01, None, Status.INFO, "is unknown on this node: no limit applies"),
        (0.0, 0.7e-6, Status.INFO, "no limit: every call is probed"),
    ],
)
def test_the_bound_of_the_overhead(
    node: Settings, monkeypatch: pytest.MonkeyPatch, bound: float, cost: float | None, status: Status, part: str
) -> None:
    kinds = [("emulated", "true"), ("stepped", "false"), ("emulated", "false")]
    hits = [(it, 9e-6) for it in kinds[:2]] + [(kinds[2], cost)]
    samples = [
        HIT_COST.sample(value, {"placement": placement, "returns": returns})
        for (placement, returns), value in hits
        if value is not None
    ]
    monkeypatch.setattr(Scraper, "gather", lambda self: samples)
    findings, _ = doctor.check(replace(node, overhead=OverheadSettings(bound, 0.5)), {})
    [finding] = [it for it in findings if it.name == "overhead"]
    assert status == finding.status and part in finding.summary
