"""Faults in the kernel log, by lines as kernels print them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.faults import categories, signals
from exporter.faults.kernel_log import WORDS, fault, find
from exporter.kmsg.records import Record

LINES = [
    (
        "mlx5_core 0000:5e:00.0: wait_func:1174:(pid 12345): ENABLE_HCA(0x104) timeout. Will cause a leak of a command "
        "resource",
        "nic_command_timeout",
        "0000:5e:00.0",
    ),
    (
        "mlx5_core 0000:5e:00.1: poll_health:825:(pid 0): device's health compromised - reached miss count",
        "nic_health_compromised",
        "0000:5e:00.1",
    ),
    (
        "mlx5_core 0000:5e:00.0: print_health:427:(pid 0): synd 0x8: unrecoverable hardware error",
        "nic_unrecoverable",
        "0000:5e:00.0",
    ),
    (
        "NETDEV WATCHDOG: ens1f0 (mlx5_core): transmit queue 3 timed out",
        "nic_transmit_timeout",
        "ens1f0",
    ),
    (
        "NETDEV WATCHDOG: CPU: 4: eth0 (virtio_net): transmit queue 0 timed out 5120 ms",
        "nic_transmit_timeout",
        "eth0",
    ),
    (
        "mlx5_core 0000:5e:00.0 ens1f0np0: NETDEV WATCHDOG: CPU: 38: transmit queue 14 timed out 5112 ms",
        "nic_transmit_timeout",
        "ens1f0np0",
    ),
    (
        "virtio_net virtio0 eth0: NETDEV WATCHDOG: CPU: 1: transmit queue 0 timed out 5500 ms",
        "nic_transmit_timeout",
        "eth0",
    ),
    (
        "mlx5_core 0000:5e:00.0: mlx5_pcie_event:299:(pid 9): Detected insufficient power on the PCIe slot (27W).",
        "nic_power",
        "0000:5e:00.0",
    ),
    (
        "mlx5_core 0000:5e:00.0: Port module event[error]: module 0, Cable error, High Temperature",
        "nic_temperature",
        "0000:5e:00.0",
    ),
    ("mlx5_core 0000:5e:00.0: Port module event: module 0, Cable unplugged", "cable_unplugged", "0000:5e:00.0"),
    (
        "mlx5_core 0000:5e:00.0: Port module event[error]: module 1, Cable error, Bus stuck(I2C Data or clock shorted)",
        "module_error",
        "0000:5e:00.0",
    ),
    ("nvme nvme0: I/O 24 (Read) QID 5 timeout, aborting", "nvme_timeout", "nvme0"),
    ("nvme nvme1: I/O tag 24 (3018) opcode 0x2 (I/O Cmd) QID 5 timeout, aborting", "nvme_timeout", "nvme1"),
    ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff", "nvme_timeout", "nvme0"),
    ("nvme nvme0: Disabling device after reset failure: -19", "nvme_disabled", "nvme0"),
    ("blk_update_request: I/O error, dev sda, sector 12345 op 0x0:(READ)", "block_error", "sda"),
    ("print_req_error: critical medium error, dev dm-0, sector 1", "block_error", "dm-0"),
    ("I/O error, dev nvme0n1, sector 12345 op 0x0:(READ) flags 0x80700", "block_error", "nvme0n1"),
    ("critical medium error, dev nvme0n1, sector 4096 op 0x0:(READ) flags 0x0", "block_error", "nvme0n1"),
    ("EXT4-fs (nvme0n1p2): Remounting filesystem read-only", "filesystem_readonly", "nvme0n1p2"),
    ("EXT3-fs (sda1): error: remounting filesystem read-only", "filesystem_readonly", "sda1"),
    ("NILFS (sdb): Remounting filesystem read-only", "filesystem_readonly", "sdb"),
    ("[Hardware Error]: CPU 0: Machine Check Exception: 5 Bank 1: be00000000800400", "machine_check", "0"),
    ("mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: ac00004000010090", "machine_check", "12"),
    (
        "[Hardware Error]: CPU:88 (19:11:1) MC1_STATUS[Over|UE|MiscV|AddrV|-|TCC|SyndV|-|Poison|-]: 0xfe80000000000150",
        "machine_check",
        "88",
    ),
    ("{1}[Hardware Error]: event severity: fatal", "hardware_error", "firmware"),
    ("[Hardware Error]: event severity: recoverable", "hardware_error", "firmware"),
    ("BUG: soft lockup - CPU#0 stuck for 22s! [bash:1]", "soft_lockup", "0"),
    ("NMI watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [bash:1]", "soft_lockup", "1"),
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [nv_queue:1234]", "soft_lockup", "3"),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 5", "hard_lockup", "5"),
    ("watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 4", "hard_lockup", "4"),
    ("Kernel panic - not syncing: Watchdog detected hard LOCKUP on cpu 0", "hard_lockup", "0"),
    ("INFO: task kworker/u256:1:77 blocked for more than 120 seconds.", "hung_task", "kworker/u256:1"),
    ("INFO: task python3:4711 blocked for more than 120 seconds.", "hung_task", "python3"),
    ("INFO: task python3:1473 blocked in I/O wait for more than 122 seconds.", "hung_task", "python3"),
    ("CPU7: Core temperature above threshold, cpu clock throttled (total events = 12)", "cpu_throttled", "7"),
    (
        "mce: CPU11: Package temperature is above threshold, cpu clock is throttled (total events = 1)",
        "cpu_throttled",
        "11",
    ),
    (
        "thermal thermal_zone4: critical temperature reached (128 C), shutting down",
        "critical_temperature",
        "thermal_zone4",
    ),
    ("thermal_sys: Critical temperature reached(128 C),shutting down", "critical_temperature", "thermal"),
    (
        "thermal thermal_zone0: acpitz: critical temperature reached, shutting down",
        "critical_temperature",
        "thermal_zone0",
    ),
    ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0", "memory_uncorrected", "MC0"),
    (
        "EDAC MC1: 2 UE on mc#1csrow#2channel#0 (csrow:2 channel:0 page:0x1 offset:0x0 grain:64)",
        "memory_uncorrected",
        "MC1",
    ),
    ("Memory failure: 0x1a2b3c: recovery action for dirty LRU page: Recovered", "memory_page_failed", "page"),
    ("Out of memory: Killed process 4711 (python3) total-vm:1000kB, anon-rss:900kB", "oom_kill", "python3"),
    ("Memory cgroup out of memory: Killed process 4711 (train) total-vm:1000kB", "oom_kill", "train"),
    ("Out of memory: Killed process 4711 ((sd-pam)), UID 0, total-vm:1000kB", "oom_kill", "(sd-pam)"),
    (
        "python3[4711]: segfault at 18 ip 00007f0011223344 sp 00007ffd11223344 error 4 in libnccl.so.2.21.5[7f00+1000]",
        "segfault",
        "libnccl.so.2.21.5",
    ),
    ("nfs: server storage1.example not responding, still trying", "nfs_not_responding", "storage1.example"),
    (
        "pcieport 0000:00:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
        "pcie_uncorrected",
        "0000:00:01.0",
    ),
    (
        "nvidia 0000:18:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer",
        "pcie_uncorrected",
        "0000:18:00.0",
    ),
    ("pcieport 0000:3a:00.0: DPC: containment event, status:0x1f01 source:0x0000", "pcie_contained", "0000:3a:00.0"),
    ("pcieport 0000:3a:00.0: pciehp: Slot(5): Link Down", "pcie_link_lost", "0000:3a:00.0"),
]
HEALTHY = [
    "mlx5_core 0000:5e:00.0 ens1f0: Link up",
    "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
    "nvme nvme0: 8/0/0 default/read/poll queues",
    "nvme nvme0: Shutdown timeout set to 10 seconds",
    "EDAC MC0: Giving out device to module skx_edac",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0",
    "mce: CPU0: Thermal monitoring enabled (TM1)",
    "mce: [Hardware Error]: Machine check events logged",
    "mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: 8c00004000010090",
    "[Hardware Error]: CPU:3 (19:1:1) MC17_STATUS[Over|CE|-|AddrV|-|SyndV|CECC|-|-|-]: 0xd42040000000011b",
    "[Hardware Error]: CPU:0 (19:50:0) MC14_STATUS[-|-|-|AddrV|PCC|-|-|Deferred|-|-]: 0x8700900800000000",
    "nfs: server storage1.example OK",
    "pcieport 0000:00:01.0: AER: enabled with IRQ 24",
    "pcieport 0000:00:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "pcieport 0000:3a:00.0: pciehp: Slot(5): Card present",
    "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode",
    "bash[4711]: segfault at 0 ip 0 sp 0 error 4 in libc.so.6[7f00+1000]",
    "NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus.",
]


@pytest.mark.parametrize(("line", "signal", "component"), LINES)
def test_lines(line: str, signal: str, component: str) -> None:
    """Each is one fault of one component, and the reader lets it through."""
    found = find(line)

    assert found
    assert (signal, component) == (found[0].name, found[1])
    assert WORDS.search(line.encode())


@pytest.mark.parametrize("line", [line for line, _, _ in LINES])
@pytest.mark.parametrize("quoting", ["tmpfs: Unknown parameter '{}'", 'overlay: unrecognized mount option "{}"'])
def test_quoted_texts_are_no_faults(line: str, quoting: str) -> None:
    """The kernel quotes options of mount(2), which any user can choose in a user namespace."""
    assert find(quoting.format(line)) is None
    assert find(quoting.format("x\n" + line)) is None


NAMES_OF_USERS = (
    "{comm}[26]: segfault at 0 ip 00007f0011223344 sp 00007ffd11223344 error 4 in {file}[10,7f0011220000+1000]",
    "{comm}[26] bad frame in rt_sigreturn frame:000000001 ip:7f00 sp:7ffd orax:1 in {file}[7f00+1000]",
    "{comm}[26]: unhandled exception: DABT (lower EL), ESR 0x92000006, level 2 translation fault in {file}[7f00+1000]",
    "{comm}: page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL), nodemask=(null),cpuset={file},mems_allowed=0",
    "{comm} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "{comm} (26): drop_caches: 3",
    "{comm}/26: potentially unexpected fatal signal 11.",
    "traps: {comm}[26] general protection fault ip:7f00 sp:7ffd error:0 in {file}[7f00+1000]",
    " in {file}[7f00+1000]",
    "coredump: 26({comm}): over core_pipe_limit, skipping core dump",
    "cgroup: fork rejected by pids controller in /kubepods/{file}",
    "Memory cgroup out of memory: Killed process 26 ({comm}) total-vm:1kB",
    "INFO: task {comm}:26 blocked for more than 120 seconds.",
    "INFO: task {comm}:26 blocked in I/O wait for more than 120 seconds.",
    "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [{comm}:26]",
    "Memory failure: 0x1: Killing {comm}:26 due to hardware memory corruption",
    "EXT4-fs error (device sda1): ext4_lookup:1855: inode #2: comm {comm}: iget: bogus i_mode (0)",
    "{comm}: renamed from eth0",
)
"""Messages of Linux with the name of a process (15 bytes), and that of a file or control group (any length)."""


@pytest.mark.parametrize("message", NAMES_OF_USERS)
@pytest.mark.parametrize("break_", ["", "\n"])
def test_names_are_no_faults(message: str, break_: str) -> None:
    """No names of a process and a file, with or without a line feed, are a fault other than the message's own: only the
    crash that any user can have in a library, in a file of its name.
    """
    own = find(message.format(comm="x", file="y"))
    for line in (line for line, signal, _ in LINES if signal != "segfault"):
        for end in range(16):
            for file in (line, line[end:], line[end:].lstrip()):
                forged = message.format(comm=(break_ + line)[:end], file=break_ + file)
                found = find(forged)
                assert (found and found[0]) in (None, own and own[0]), forged


def test_a_file_named_as_a_library() -> None:
    """A crash is in the library that the kernel names, not in one that is a part of the name of a file."""
    crash = "python3[1]: segfault at 0 ip 0 sp 0 error 4 in {}[7f00+1000]"
    assert find(crash.format("x error 4 in libcuda.so.1")) is None
    assert find(crash.format("libcuda.so.1"))


def test_every_signal_has_a_line() -> None:
    """No pattern is without a line that it fits."""
    assert [it.name for it in signals.KERNEL_LOG] == list(dict.fromkeys(signal for _, signal, _ in LINES))


@pytest.mark.parametrize("line", HEALTHY)
def test_healthy_lines(line: str) -> None:
    """Lines of a healthy node, and corrected errors, are no faults; Xids are counted elsewhere."""
    assert find(line) is None


def test_signals_are_sound() -> None:
    """Names are unique, categories are rows of the table, and each signal has an action."""
    names = [it.name for it in signals.KERNEL_LOG]
    rows = {it.label for it in categories.CATEGORIES}

    assert sorted(set(names)) == sorted(names)
    assert {it.category for it in signals.KERNEL_LOG} <= rows
    assert all(it.meaning and it.action for it in signals.KERNEL_LOG)
    assert 419 == sum(it.count for it in categories.CATEGORIES)


def test_time_of_a_fault() -> None:
    """A fault has the wall time of its record, and is marked when the record is replayed; others report none."""
    line = LINES[0][0]
    faults = [fault(Record(3, 0, 2, 5, line, replayed), 7.0) for replayed in (False, True)]

    assert [(7.0, False), (7.0, True)] == [(it.time, it.replayed) for it in faults if it]
    assert fault(Record(3, 0, 2, 5, "usb 1-1: new device"), 7.0) is None


@given(st.text(max_size=2000))
def test_hostile_lines(line: str) -> None:
    """Whatever a line holds, a component is short and reading it ends."""
    for text in (line, LINES[0][0] + line, "nfs: server " + line + " not responding", "INFO: task " + line):
        found = find(text)
        assert found is None or len(found[1]) <= 128
