"""Statistics of network interfaces: read from the kernel, and understood by the names that drivers give them."""

from __future__ import annotations

import errno
import struct
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from exporter.infiniband import drivers, ethtool, metrics, pauses
from exporter.infiniband.device import RdmaDevice
from exporter.infiniband.ethtool import Ethtool
from exporter.model import Metric
from exporter.verbs.posted import Posted
from tests.unit.infiniband.trees import Tree

pytestmark = pytest.mark.evidence(feature="PFC pauses", on="stand-in")

BUS_ID = "0000:18:00.0"


class Kernel:
    """Answers the ioctl for an interface of the PCI function BUS_ID. `late` statistics come after they were counted."""

    def __init__(self, statistics: dict[str, int], late: int = 0) -> None:
        self.statistics, self.late = statistics, late
        self.refusal = 0
        self._buffers: dict[int, array[int]] = {}

    def remember(self, kind: str, content: bytes) -> array[int]:
        made = array(kind, content)
        self._buffers[made.buffer_info()[0]] = made
        return made

    def ioctl(self, _: object, request: int, argument: bytes) -> None:
        assert 0x8946 == request
        assert 40 == len(argument)
        if self.refusal:
            raise OSError(self.refusal, "refused")
        name, address = struct.unpack_from("=16sQ", argument)
        assert b"eth0" == name.rstrip(b"\0")
        buffer = self._buffers[address]
        (command,) = struct.unpack_from("=I", buffer)
        names = list(self.statistics)
        if command == 0x3:
            struct.pack_into("=32s", buffer, 100, BUS_ID.encode())
            struct.pack_into("=I", buffer, 180, len(names))
            return
        names += [f"late{number}" for number in range(self.late)]
        if command == 0x1B:
            struct.pack_into("=I", buffer, 8, len(names))
            for at, text in enumerate(names):
                struct.pack_into("=32s", buffer, 12 + at * 32, text.encode())
        else:
            assert 0x1D == command
            struct.pack_into("=I", buffer, 4, len(names))
            for at, text in enumerate(names):
                struct.pack_into("=Q", buffer, 8 + at * 8, self.statistics.get(text, 1))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel({"rx_packets": 2**40, "tx_prio3_pause": 7})
    monkeypatch.setattr(ethtool, "array", made.remember)
    monkeypatch.setattr(ethtool.fcntl, "ioctl", made.ioctl)
    return made


@pytest.fixture
def subject() -> Iterator[Ethtool]:
    made = Ethtool()
    yield made
    made.close()


def test_statistics(kernel: Kernel, subject: Ethtool) -> None:
    """Names and values as the driver has them, also of statistics that appear meanwhile."""
    assert {"rx_packets": 2**40, "tx_prio3_pause": 7} == subject.statistics("eth0", BUS_ID)
    kernel.late = 3

    assert 5 == len(subject.statistics("eth0", BUS_ID))


def test_another_interface(kernel: Kernel, subject: Ethtool) -> None:
    """An interface of that name but another device, as in another network namespace, is not read."""
    with pytest.raises(OSError, match=f"is of {BUS_ID}") as raised:
        subject.statistics("eth0", "0000:99:00.0")

    assert errno.ENODEV == raised.value.errno


def test_real_interface(subject: Ethtool) -> None:
    """The machine's kernel answers for the loopback interface, which is of no PCI function."""
    with pytest.raises(OSError):
        subject.statistics("lo", BUS_ID)


def found(statistics: dict[str, int]) -> dict[tuple[Metric, str], Any]:
    return {(it.metric, " ".join(it.labels.values())): it.value for it in pauses.samples(statistics, {})}


def test_mlx5() -> None:
    """Pauses by priority, storms, waiting for PCIe, RDMA through the port, discards: each with its own unit."""
    assert {
        (metrics.PFC_FRAMES, "3 received"): 5,
        (metrics.PFC_FRAMES, "3 sent"): 6,
        (metrics.PFC_FRAMES, "all sent"): 8,
        (metrics.PFC_SECONDS, "3 received"): 2.5,
        (metrics.PFC_STORMS, "error"): 1,
        (metrics.PCI_STALLED, "read"): 0.25,
        (metrics.NETDEV_PACKETS, "transmit unicast"): 9,
        (metrics.NETDEV_IO, "receive multicast"): 900,
        (metrics.NETDEV_DISCARDED, "3 buffer"): 4,
        (metrics.NETDEV_DISCARDED, "3 host_buffer"): 11,
        (metrics.NETDEV_DISCARDED, "0 host_congestion"): 12,
        (metrics.NETDEV_DISCARDED, "all buffer"): 13,
        (metrics.NETDEV_DISCARDED, "all pcie"): 14,
        (metrics.NETDEV_MARKED, "5 device"): 15,
        (metrics.NETDEV_MARKED, "all"): 16,
        (metrics.PFC_TRANSITIONS, "3 sent"): 17,
        (metrics.PCI_STALLED_TIME, "write"): 18,
    } == found(
        {
            "rx_prio3_pause": 5,
            "tx_prio3_pause": 6,
            "tx_global_pause": 8,
            "rx_prio3_pause_duration": 2_500_000,
            "tx_pause_storm_error_events": 1,
            "outbound_pci_stalled_rd": 25,
            "tx_vport_rdma_unicast_packets": 9,
            "rx_vport_rdma_multicast_bytes": 900,
            "rx_prio3_discards": 4,
            "rx_prio3_buf_discard": 11,
            "rx_prio0_cong_discard": 12,
            "rx_discards_phy": 13,
            "outbound_pci_buffer_overflow": 14,
            "rx_prio5_marked": 15,
            "rx_ecn_mark": 16,
            "tx_prio3_pause_transition": 17,
            "outbound_pci_stalled_wr_events": 18,
            "rx_prio9_pause": 1,
            "rx_packets": 2,
        }
    )


def test_ice_and_bnxt() -> None:
    """Intel's and Broadcom's names of the same."""
    assert {
        (metrics.PFC_FRAMES, "0 received"): 1,
        (metrics.PFC_FRAMES, "7 sent"): 2,
        (metrics.PFC_FRAMES, "all received"): 3,
    } == found({"rx_priority_0_xoff.nic": 1, "tx_pfc_ena_frames_pri7": 2, "link_xoff_rx.nic": 3})


def test_device(tree: Tree, kernel: Kernel, subject: Ethtool) -> None:
    """A port has the pauses of its interface; an interface that cannot be read costs only these."""
    tree.mlx5(packet_seq_err=1)
    device = RdmaDevice(tree.sys / "class/infiniband/mlx5_0", drivers.load(), Posted(), subject, False)
    [pause] = [it for it in device.read() if it.metric is metrics.PFC_FRAMES]
    assert (7, {"device": "mlx5_0", "port": "1", "priority": "3", "direction": "sent"}) == (pause.value, pause.labels)
    kernel.refusal = errno.EOPNOTSUPP

    samples = device.read()

    assert [] == [it for it in samples if it.metric is metrics.PFC_FRAMES]
    assert ["NETDEV_ENOTSUP"] == [it.labels["error"] for it in samples if it.metric is metrics.UNREADABLE]
    assert [1, 0, 0] == [it.value for it in samples if it.metric is metrics.NAKS_RECEIVED]
