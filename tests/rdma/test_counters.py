"""Counters of a real port: the exporter's against the kernel's own, with packets lost and receivers too slow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rdma.conftest import Side
from tests.rdma.rig import DEVICE, PORT, Host, perftest

pytestmark = pytest.mark.evidence(feature="RDMA port counters", on="real kernel, emulated hardware")

LABELS = {"device": DEVICE, "port": PORT}
DROP = "INPUT -p udp --dport 4791 -m statistic --mode random --probability 0.02 -j DROP"
"""RoCE v2's port. Only between two hosts: within one, soft-RoCE loops back inside the device."""


@contextmanager
def losing(host: Host) -> Iterator[None]:
    """The host loses packets that come in."""
    host.run(f"iptables-legacy -A {DROP}")
    try:
        yield
    finally:
        host.run(f"iptables-legacy -D {DROP}")


def write(sender: Side, receiver: Side, iterations: int = 100, size: int = 65536) -> None:
    """Writes into the receiver's memory with perftest."""
    perftest(sender.host, receiver.host, f"ib_write_bw --size={size} --iters={iterations}")


def test_idle(sender: Side) -> None:
    """Every file of the kernel's is there with its value; the link is up; a ratio of nothing is absent."""
    page, counters = sender.settled()

    shown = {
        dict(labels)["counter"]: value for labels, value in page.get("rdma_port_hw_counter_total", **LABELS).items()
    }
    assert {name: value for name, value in counters.items() if name != "lifespan"} == shown
    assert counters["lifespan"] == page.value("rdma_port_hw_value", **LABELS)
    assert counters["sent_pkts"] == page.value("rdma_port_packets_total", direction="transmit", **LABELS)
    assert counters["rcvd_pkts"] == page.value("rdma_port_packets_total", direction="receive", **LABELS)
    assert 4 == page.value("rdma_link_state", **LABELS)
    assert 5 == page.value("rdma_link_physical_state", **LABELS)
    assert 1 == page.value("rdma_device_info", device=DEVICE, driver="rxe")
    assert 1 == page.value("rdma_port_info", link_layer="Ethernet", **LABELS)
    assert {} == page.get("rdma_nack_ratio", **LABELS)


def test_lost_packets(sender: Side, receiver: Side) -> None:
    """Packets lost on the way: NAKs and the ratio are the kernel's own numbers, on both sides, and above 0."""
    before = sender.host.counters()
    with losing(receiver.host):
        write(sender, receiver)

    page, after = sender.settled()
    other, received = receiver.settled()

    naks, packets = (after[name] - before[name] for name in ("rcvd_seq_err", "sent_pkts"))
    assert naks > 0
    assert after["rcvd_seq_err"] == page.value("rdma_naks_received_total", kind="sequence", **LABELS)
    assert after["sent_pkts"] == page.value("rdma_packets_sent_total", **LABELS)
    assert naks / packets == page.value("rdma_nack_ratio", kind="sequence", **LABELS)
    assert 0 == page.value("rdma_nack_ratio", kind="rnr", **LABELS)
    assert received["out_of_seq_request"] == other.value("rdma_naks_sent_total", kind="sequence", **LABELS) >= naks


def test_clean_again(sender: Side, receiver: Side) -> None:
    """Without loss no NAK is added."""
    before = sender.host.counters()
    write(sender, receiver)

    page, after = sender.settled()

    assert before["rcvd_seq_err"] == page.value("rdma_naks_received_total", kind="sequence", **LABELS)
    assert after["sent_pkts"] == page.value("rdma_packets_sent_total", **LABELS) > before["sent_pkts"]


@pytest.mark.parametrize("retries,statuses", [(7, "0 100\n"), (1, "5 99\n13 1\n")], ids=["patient", "impatient"])
def test_receiver_without_buffers(
    sender: Side, receiver: Side, late_receiver: Path, retries: int, statuses: str
) -> None:
    """A receiver without buffers: NAKs of kind rnr, as many as the kernel counts, and none of kind sequence."""
    before = sender.host.counters()
    server = receiver.host.begin(f"{late_receiver} {DEVICE} 1 2")
    printed = sender.host.run(f"{late_receiver} {DEVICE} 1 {retries} 100 {receiver.host.address}")
    server.wait()

    page, after = sender.settled()
    other, received = receiver.settled()

    assert statuses == printed
    assert after["rcvd_rnr_err"] > before["rcvd_rnr_err"]
    assert after["rcvd_rnr_err"] == page.value("rdma_naks_received_total", kind="rnr", **LABELS)
    given_up = int(retries < 7)
    assert given_up == after["retry_rnr_exceeded_err"] - before["retry_rnr_exceeded_err"]
    assert after["retry_rnr_exceeded_err"] == page.value("rdma_retries_exceeded_total", kind="rnr", **LABELS)
    assert received["send_rnr_err"] == other.value("rdma_naks_sent_total", kind="rnr", **LABELS)
    assert page.value("rdma_nack_ratio", kind="rnr", **LABELS) > 0
    assert after["rcvd_seq_err"] == before["rcvd_seq_err"]
