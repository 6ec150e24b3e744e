"""Counts of the probes on perftest and ibv_rc_pingpong, against what these report themselves."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from exporter import discover
from tests.rdma.conftest import Page, Side
from tests.rdma.rig import DEVICE, Limit, perftest

PEER_GID = "0000:0000:0000:0000:0000:ffff:0a4d:0002"
"""10.77.0.2, as sysfs writes GIDs."""
RTS, ERR = 3, 6
pytestmark = pytest.mark.skipif("verbs" not in discover.collectors(), reason="there is no collector of verbs yet")


def posted(page: Page, comm: str, opcode: str) -> tuple[float, float]:
    """Bytes and work requests that a program posted."""
    labels = {"comm": comm, "opcode": opcode, "device": DEVICE}
    return page.value("rdma_send_bytes_total", **labels), page.value("rdma_send_work_requests_total", **labels)


def states(page: Page, **labels: str) -> set[float]:
    """States of late_receiver's queue pairs."""
    return {*page.get("rdma_qp_state", comm="late_receiver", **labels).values()}


@pytest.mark.evidence(feature="RDMA work and completions", on="real kernel, emulated hardware")
@pytest.mark.evidence(feature="functions of RDMA providers", on="real kernel, emulated hardware")
def test_write(sender: Side, receiver: Side) -> None:
    """ib_write_bw: bytes and requests to the byte, every completion, and the memory that was given back."""
    perftest(sender.host, receiver.host, "ib_write_bw --size=65536 --iters=100")

    page = sender.scrape()

    assert (6_553_600, 100) == posted(page, "ib_write_bw", "RDMA_WRITE")
    assert 100 == page.value("rdma_completions_total", comm="ib_write_bw", status="SUCCESS")
    registered = page.value("rdma_memory_region_operations_total", comm="ib_write_bw", operation="reg")
    assert registered == page.value("rdma_memory_region_operations_total", comm="ib_write_bw", operation="dereg") > 0


def test_pingpong(sender: Side, receiver: Side) -> None:
    """ibv_rc_pingpong: each side has sent what it reports."""
    command = f"ibv_rc_pingpong -d {DEVICE} -g 1 -n 100 -s 4096"
    server = receiver.host.begin(command)
    receiver.host.await_server()
    printed = sender.host.run(f"{command} {receiver.host.address}", 200)
    server.wait()

    assert "819200 bytes in" in printed  # both ways
    for side in (sender, receiver):
        page = side.scrape()
        assert (409_600, 100) == posted(page, "ibv_rc_pingpong", "SEND")
        completed = page.value("rdma_completions_total", comm="ibv_rc_pingpong", status="SUCCESS")
        assert 200 == completed  # received ones too


def test_read(sender: Side, receiver: Side) -> None:
    """ib_read_bw: the bytes read are the reader's; the other side posts nothing."""
    perftest(sender.host, receiver.host, "ib_read_bw --size=65536 --iters=50")

    assert (3_276_800, 50) == posted(sender.scrape(), "ib_read_bw", "RDMA_READ")
    assert {} == receiver.scrape().get("rdma_send_bytes_total", comm="ib_read_bw")


@pytest.mark.evidence(feature="RDMA latency", on="real kernel, emulated hardware")
def test_latency(sender: Side, receiver: Side, late_receiver: Path) -> None:
    """The sum of 200 latencies is between what a program measures around its two calls, and between them."""
    server = receiver.host.begin(f"{late_receiver} {DEVICE} 1 0")
    printed = sender.host.run(f"{late_receiver} {DEVICE} 1 7 200 {receiver.host.address} 2000", 200)
    server.wait()

    page = sender.scrape()

    least, most = (int(it) / 1e9 for it in printed.split())
    labels = {"comm": "late_receiver", "opcode": "SEND"}
    assert 200 == page.value("rdma_work_request_latency_seconds_count", **labels)
    assert least <= page.value("rdma_work_request_latency_seconds_sum", **labels) <= most


@pytest.mark.evidence(feature="RDMA extended calls", on="real kernel, emulated hardware")
def test_extended_calls(sender: Side, receiver: Side, extended_calls: Path) -> None:
    """Posts by the ibv_wr_* calls, with several ways to set segments, and completions by ibv_start_poll count; aborted
    posts do not. rdma-core's own program for these calls then sends as many bytes as it reports.
    """
    sender.host.run("mkfifo /run/begin")
    program = sender.host.begin(f"exec {extended_calls} {DEVICE} 1 <>/run/begin")
    sender.await_attached("wr_start", "wr_send", "wr_rdma_write", "wr_complete", "wr_abort")
    limit = Limit(sender.host, 60)
    while not sender.scrape().value("accel_exporter_probe_hits_total", symbol="start_poll"):
        assert not limit.passed, "its polls are not seen"
    sender.host.run("echo >/run/begin")
    assert "70 0 30\n" == program.wait(200)

    page = sender.scrape()

    comm = extended_calls.name
    assert (20_600, 30) == posted(page, comm, "SEND")
    assert (30_000, 30) == posted(page, comm, "RDMA_WRITE")
    assert 31 == page.value("rdma_post_send_calls_total", comm=comm)
    assert 70 == page.value("rdma_completions_total", comm=comm, status="SUCCESS")
    assert 30 == page.value("rdma_work_request_latency_seconds_count", comm=comm, opcode="SEND")
    assert 10 == page.value("rdma_work_request_latency_seconds_count", comm=comm, opcode="RDMA_WRITE")

    command = f"ibv_rc_pingpong --new_send -d {DEVICE} -g 1 -n 100 -s 4096"
    server = receiver.host.begin(command)
    receiver.host.await_server()
    printed = sender.host.run(f"{command} {receiver.host.address}", 200)
    server.wait()
    assert "819200 bytes in" in printed
    assert (409_600, 100) == posted(sender.scrape(), "ibv_rc_pingpong", "SEND")


@pytest.mark.evidence(feature="RDMA queue pairs and memory regions", on="real kernel, emulated hardware")
def test_killed_peer(sender: Side, receiver: Side, late_receiver: Path) -> None:
    """A queue pair has its peer's address; when the peer is killed its retries run out, and it is in ERR."""
    server = receiver.host.begin(f"exec {late_receiver} {DEVICE} 1 600")
    client = sender.host.begin(f"{late_receiver} {DEVICE} 1 7 100 {receiver.host.address}")
    limit = Limit(sender.host, 240)
    living = sender.scrape()
    while not limit.passed and RTS not in states(living, peer_gid=PEER_GID):
        time.sleep(1)
        living = sender.scrape()
    receiver.host.run("pkill -9 -x late_receiver")
    server.wait(statuses=(137,))
    limit = Limit(sender.host, 240)
    while not client.output and not limit.passed:
        time.sleep(0.2)

    page = sender.scrape()

    assert "5 99\n12 1\n" == client.wait()
    assert RTS in states(living, peer_gid=PEER_GID)
    assert 100_000 == page.value("rdma_send_bytes_total", comm="late_receiver")
    assert 1 == page.value("rdma_completions_total", comm="late_receiver", status="RETRY_EXC_ERR")
    assert 99 == page.value("rdma_completions_total", comm="late_receiver", status="WR_FLUSH_ERR")
    assert ERR in states(page)
