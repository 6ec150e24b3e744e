"""Checks of what the kernel permits: loading programs, attaching probes, watching processes."""

from __future__ import annotations

import errno
import os
import platform
import select
from collections.abc import Iterable
from pathlib import Path

from exporter import descriptors
from exporter.bpf import multi, object_path, privileges
from exporter.bpf.libbpf import BpfError, Object, lacks_tracepoint
from exporter.bpf.native import INSTALL, NOT_SUPPORTED, library
from exporter.bpf.safety import try_return_probes
from exporter.bpf.watch import Watch
from exporter.checks.finding import Answer, Status, text
from exporter.settings import Settings

_REFUSED = (errno.EPERM, errno.EACCES)
_UNSUPPORTED = (errno.EINVAL, errno.E2BIG, errno.ENOSYS, errno.EOPNOTSUPP, NOT_SUPPORTED)
_UNCOUNTED = "waits, errors and frees of allocations go uncounted"


def remedy(error: BpfError) -> str:
    """Return what to do about a failure of the kernel or of libbpf; empty where only the message has it."""
    if error.errno in _REFUSED:
        return privileges.remedy()
    if error.errno in _UNSUPPORTED:
        return "update to Linux 6.1 or newer; on such a kernel, report this"
    return descriptors.RAISE if error.errno == errno.EMFILE else ""


def capabilities(_: Settings) -> Answer:
    if privileges.in_user_namespace():
        summary = f"capabilities of a user namespace (uid {os.geteuid()} in it), which permit no probes"
        return Status.FAIL, summary, privileges.LEAVE_USER_NAMESPACE
    missing = privileges.missing()
    if not missing:
        return Status.OK, f"all capabilities that probes need are granted (uid {os.geteuid()})"
    why = ", ".join(f"{name} (to {privileges.OBSERVING[name]})" for name in missing)
    return Status.FAIL, f"missing: {why}", privileges.GRANT


def libbpf(_: Settings) -> Answer:
    try:
        bpf = library()
    except BpfError as error:
        return Status.FAIL, str(error).removesuffix(f": {INSTALL}"), INSTALL
    return Status.OK, f"libbpf.so.1 is version {bpf.libbpf_major_version()}.{bpf.libbpf_minor_version()}"


def objects(_: Settings) -> Answer:
    """Load each object, which tests bpf(), its capabilities, seccomp, lockdown and the verifier together."""
    folder = object_path("any").parent
    objects = sorted(folder.glob("*.bpf.o"))
    if not objects:
        missing = f"there are no compiled probes for {platform.machine()} in {folder}"
        return Status.FAIL, missing, "run make setup, or install the package again"
    loaded, newer = [], []
    for path in objects:
        try:
            Object(path).close()
            loaded.append(path)
        except BpfError as error:
            if lacks_tracepoint(error):
                newer.append(path)
                continue
            lines = str(error).splitlines()
            reason = lines[0] if error.errno in _REFUSED else "\n".join(lines)
            return Status.FAIL, f"Linux {platform.release()} rejects {path.name}: {reason}", remedy(error)
    if newer:
        return Status.INFO, f"Linux {platform.release()} loads {_names(loaded)}; {_names(newer)} needs a newer kernel"
    return Status.OK, f"Linux {platform.release()} loads every probe ({_names(loaded)})"


def _names(objects: Iterable[Path]) -> str:
    return ", ".join(path.name.removesuffix(".bpf.o") for path in objects)


def lockdown(settings: Settings) -> Answer:
    path = _kernel(settings, "security/lockdown")
    if not path.exists():
        return Status.INFO, f"kernel lockdown unknown: there is no {path}"
    state = text(path)
    if "[confidentiality]" in state:
        boot = "boot without lockdown=confidentiality, or lockdown=integrity"
        return Status.FAIL, "the kernel is locked down (confidentiality): tracing programs may not read memory", boot
    return Status.OK, "kernel lockdown does not forbid tracing"


def _kernel(settings: Settings, name: str) -> Path:
    """Return a path below /sys/kernel, which is the same in every container, but not part of every sysfs mount."""
    mounted = settings.sysfs / "kernel"
    return (mounted if mounted.exists() else Path("/sys/kernel")) / name


def uprobes(settings: Settings) -> Answer:
    if not (settings.sysfs / "bus/event_source/devices/uprobe").exists():
        return (
            Status.FAIL,
            "the kernel has no uprobes: no library can be probed",
            "use a kernel with CONFIG_UPROBE_EVENTS",
        )
    if {"CAP_BPF", "CAP_PERFMON"} & set(privileges.missing()):
        return Status.INFO, "uprobes; the kind of link cannot be tested without CAP_BPF and CAP_PERFMON"
    if multi.supported():
        return Status.OK, "uprobes, with multi-uprobe links: attaching and detaching take milliseconds"
    if multi.refusal() in _REFUSED:
        return (
            Status.FAIL,
            f"the kernel permits no multi-uprobe links here ({os.strerror(multi.refusal())})",
            privileges.remedy(),
        )
    if privileges.WITHOUT_MULTI_UPROBES not in privileges.effective():
        return (
            Status.FAIL,
            f"no multi-uprobe links, and uprobes without them need {privileges.WITHOUT_MULTI_UPROBES}",
            f"grant {privileges.WITHOUT_MULTI_UPROBES}, or use Linux 6.6 or newer",
        )
    return (
        Status.WARN,
        "no multi-uprobe links: detaching takes up to a quarter of a second each, in parallel",
        "use Linux 6.6 or newer",
    )


def btf(settings: Settings) -> Answer:
    if _kernel(settings, "btf/vmlinux").exists():
        return Status.OK, "the kernel has type information (BTF)"
    without = "cuFile and the ends of processes are not probed; CUDA, NCCL and RDMA are"
    return Status.WARN, f"no /sys/kernel/btf/vmlinux: {without}"


def returns(settings: Settings) -> Answer:
    if not settings.bpf_return_probes:
        return Status.INFO, f"return probes are switched off (--no-bpf.return-probes): {_UNCOUNTED}"
    survival = try_return_probes()
    if survival.doubt:
        doubt = survival.doubt.partition("\n")[0]
        return Status.WARN, f"{doubt}; without return probes {_UNCOUNTED}", "see probes and uprobes; else report this"
    if not survival.seccomp:
        summary = "a return probe would kill processes under a seccomp filter here, so there are none"
        return Status.WARN, f"{summary}: {_UNCOUNTED}", "update to Linux 6.14 or 6.12.14"
    if not survival.shadow_stack:
        summary = "return probes are safe, but not with a shadow stack: libraries of processes with one get none"
        return Status.WARN, summary, "update to Linux 6.11 or later"
    if not survival.signal_stacks:
        summary = (
            "return probes are no uprobe sessions here: a process dies if its signal handler runs on a stack above "
            "that of the thread (sigaltstack) and calls a probed function while the thread is in another"
        )
        remedy = "update to Linux 6.13 or later with type information (BTF), or start with --no-bpf.return-probes"
        return Status.WARN, summary, remedy
    safe = "return probes are safe (uprobe sessions), also under seccomp filters, with shadow and with signal stacks"
    return Status.OK, safe


def watch(_: Settings) -> Answer:
    with select.epoll() as poll:
        Watch(poll).close()
    return Status.OK, "the kernel reports new mappings as they happen"
