"""Decoding of lines of the kernel log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.faults.xid.catalog import ACTIONS, CATEGORIES
from exporter.faults.xid.decode import WORDS, FaultDecoder, bus_id, xid
from exporter.faults.xid.report import DriverReport, Family
from exporter.kmsg.records import Record

BUS = "00000000:3B:00.0"


def record(text: str, seconds: float = 0) -> Record:
    return Record(3, 0, 1, int(seconds * 1e9), text)


def fault(text: str) -> DriverReport | None:
    return FaultDecoder().report(record(text))


@pytest.mark.parametrize(
    ("text", "code", "device", "pid", "name"),
    [
        # Lines of real machines, from public reports, with drivers of ten years.
        ("(PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", 79, BUS, None, ""),
        ("(PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.", 79, BUS, 1234, ""),
        ("(PCI:0000:3b:00): 31, pid=1263, name=cuda-EvtHandlr, Ch 00000008, intr", 31, BUS, 1263, "cuda-EvtHandlr"),
        ("(PCI:0000:3b:00): 8, Channel 00000001", 8, BUS, None, ""),
        ("(PCI:0000:3b:00): 62, 023f0f30 00000000 00000000 202c0ffe", 62, BUS, None, ""),
        ("(PCI:0000:3b:00): 43, pid=3885519, name=gpu-burner, channel 0x00000010", 43, BUS, 3885519, "gpu-burner"),
        ("(PCI:0000:3b:00 GPU-I:05): 31, pid=8, name=<unknown>, channel 0x4", 31, BUS, 8, ""),
        ("(PCI:0018:01:00): 119, pid=1, name=a, b, Timeout waiting", 119, "00000018:01:00.0", 1, "a"),
        ("(PCI:00010000:ff:1f.7): 94, x", 94, "00010000:FF:1F.7", None, ""),
        ("(0000:3b:00): 13, Graphics Exception", 13, BUS, None, ""),
        ("(PCI:0000:3b:00): 48", 48, BUS, None, ""),
    ],
)  # fmt: skip
def test_xid(text: str, code: int, device: str, pid: int | None, name: str) -> None:
    """An Xid has the code, GPU and process of the line."""
    found = fault(f"NVRM: Xid {text}")
    assert found is not None
    assert (Family.XID, code, device, pid, name) == (found.family, found.code, found.device, found.pid, found.name)
    assert str(code) == found.labels["xid"]


def test_labels() -> None:
    """An Xid has the labels code, action and category; without an action in the catalog there is no label action."""
    labels = [xid(BUS, code).labels for code in (79, 171)]
    expected = [
        {"xid": "79", "action": "RESTART_BM", "category": "faulty_gpu"},
        {"xid": "171", "category": "gpu_hbm3_memory"},
    ]
    assert expected == labels


def test_nvlink() -> None:
    """An Xid of NVLink 5 has the action of the status; its span has link, status and reason."""
    found = fault("NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x02a505c6 0x00000000 0x0)")
    assert found is not None
    expected = {"xid": "149", "action": "RESET_GPU", "category": "network_switch_cable", "unit": "NETIR_LINK_DOWN"}
    assert expected == found.labels
    details = {"severity": "fatal", "link": 8, "status": "0x0", "reason": 42}
    assert {f"gpu.xid.{name}": value for name, value in details.items()} == found.details


def test_nvlink_undecoded() -> None:
    """An Xid of NVLink 5 with an unreadable line has the catalog's action, and no unit."""
    found = fault("NVRM: Xid (PCI:0000:3b:00): 149, something else")
    assert found is not None
    assert {"xid": "149", "action": "WORKFLOW_NVLINK5_ERR", "category": "faulty_gpu"} == found.labels


@pytest.mark.parametrize(
    ("message", "action", "recovery"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "RESET_GPU", 1),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "RESTART_BM", 2),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", "RESTART_BM", 2),
        ("GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", "DRAIN_P2P", 3),
        ("pid=1, name=x, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "DRAIN_AND_RESET", 4),
        ("GPU recovery action changed from 0x2 (OS Reboot) to 0x0 (None)", "IGNORE", 0),
        ("GPU recovery action changed from 0x0 (None) to 0x9 (New)", "XID_154", 9),
        ("something else", "XID_154", None),
    ],
)
def test_verdict(message: str, action: str, recovery: int | None) -> None:
    """Xid 154 has the action of the number, whatever text the driver version prints."""
    found = fault(f"NVRM: Xid (PCI:0000:3b:00): 154, {message}")
    assert found is not None
    assert (action, recovery) == (found.action, found.recovery)


@pytest.mark.parametrize(
    ("text", "labels", "details"),
    [
        (
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
            {"sxid": "12028", "severity": "nonfatal", "nvswitch": "3"},
            {"gpu.sxid.link": 32},
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 00042, Fatal, something",
            {"sxid": "42", "severity": "fatal", "nvswitch": "0"},
            {},
        ),
    ],
)
def test_sxid(text: str, labels: dict[str, str], details: dict[str, int]) -> None:
    """An SXid has the severity, switch and link of the line."""
    found = fault(text)
    assert found is not None
    assert (Family.SXID, "00000000:C1:00.0") == (found.family, found.device)
    assert (labels | {"category": "network_switch_cable"}, details) == (found.labels, found.details)


@pytest.mark.parametrize(
    "text",
    [
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Data {0x00140004, 0x00100000}",
    ],
)
def test_sxid_details_are_no_second_one(text: str) -> None:
    """The lines that follow an SXid's first are not counted."""
    assert fault(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
        "NVRM: GPU at PCI:0000:3b:00.0 has fallen off the bus.",
        "NVRM: GPU at 0000:3b:00.0 has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:26b5) installed in this system has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:3b:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands.",
        "NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:1e07) installed in this\n"
        "NVRM: system has fallen off the bus and is not responding to commands.",
    ],
)
def test_bus_loss(text: str) -> None:
    """A GPU that left the bus is found without an Xid, in the messages of several driver versions."""
    found = fault(text)
    assert found is not None
    assert (Family.BUS_LOSS, BUS, {"category": "faulty_gpu"}) == (found.family, found.device, found.labels)


def test_bus_loss_over_several_records() -> None:
    """A message in several records has its GPU in the first record; a record of long ago names no GPU."""
    decoder = FaultDecoder()
    lines = ["NVRM: The NVIDIA GPU 0000:3b:00.0", "NVRM: (PCI ID: 10de:26b5) installed in this system has"]
    assert [None, None] == [decoder.report(record(text, 5)) for text in lines]
    found = [decoder.report(record("NVRM: fallen off the bus and is not responding", at)) for at in (5.1, 60)]
    found += [decoder.report(record(f"NVRM: {text} fallen off the bus", 60)) for text in ("GPU has", "system has")]
    assert [BUS, "", "", ""] == [it.device for it in found if it]


def test_other_use_of_the_same_sentence() -> None:
    """A GPU that is installed and not supported has not left the bus."""
    text = "NVRM: The NVIDIA GPU 0000:3b:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system is not supported"
    assert fault(text) is None


def test_owner() -> None:
    """The line before a GPU's first Xid has bus id and UUID."""
    uuid = "GPU-f1648d72-c7c8-9814-2832-7a062b009188"
    owners = [
        FaultDecoder.owner(record(text))
        for text in (f"NVRM: GPU at PCI:0000:3b:00: {uuid}", f"NVRM: GPU at PCI:0000:3b:00: {uuid}x", "NVRM: GPU at")
    ]
    assert [(BUS, uuid), None, None] == owners


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.163.01",
        "NVRM: Xid (PCI:0000:3b:00): abc, pid=2280636",
        "NVRM: Xid (PCI:0000:3b:00): 123456, x",
        "NVRM: Xid (PCI:3b:00): 13, x",
        "NVRM: Xid 13",
        # A chosen name of a file or process must not forge a fault.
        "overlayfs: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "audit: name=\nNVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "x: nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 32",
        "python3[12]: NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
        "NVRM:[12]: segfault at 0 ip 0 sp 0 error 4 in GPU has fallen off the bus[7f00+1000]",
        "NVRM: GPU 0000:[12]: segfault at 0 ip 0 sp 0 error 4 in 3b:00.0: GPU has fallen off the bus[7f00+1000]",
        "NVRM: (PCI ID: [12]: segfault at 0 ip 0 sp 0 error 4 in 10de:26b5) fallen off the bus[7f00+1000]",
        "NVRM: fallen of[12]: segfault at 0 ip 0 sp 0 error 4 in fallen off the bus[7f00+1000]",
        "NVRM: Xid (PCI:[12]: segfault at 0 ip 0 sp 0 error 4 in 0000:3b:00): 79, fallen off the bus[7f00+1000]",
        "NVRM: GPU at PCI:0000:3b:00: GPU-1\nx[12]: segfault at 0 ip 0 sp 0 error 4 in fallen off the bus[7f00+1000]",
    ],
)
def test_no_fault(text: str) -> None:
    """Lines that only look like a fault are none."""
    assert fault(text) is None


@given(st.text(max_size=200) | st.text("NVRM: XidS(PCI:0a3b.)79,pid=e<>'\n", max_size=200))
def test_any_text(text: str) -> None:
    """Any message gives a complete fault or none."""
    for start in ("", "NVRM: Xid (PCI:0000:3b:00): ", "NVRM: ", "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): "):
        found = fault(start + text)
        if found:
            assert found.action in {"", *ACTIONS} and found.labels["category"] in CATEGORIES
            assert all(found.labels.values()) and len(str(found.labels)) < 300
            assert WORDS.search((start + text).encode("utf-8", "replace"))


@given(st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_bus_ids(domain: int, bus: int, device: int, function: int) -> None:
    """NVML's form and the kernel's give the same id; the kernel's form without a function means function 0."""
    nvml = f"{domain:08X}:{bus:02X}:{device:02X}.{function:X}"
    assert nvml == bus_id(nvml) == bus_id(f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    assert nvml[:-1] + "0" == bus_id(f"{domain:04x}:{bus:02x}:{device:02x}")
