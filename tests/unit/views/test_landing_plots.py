"""Plotted values, as read from samples."""

from __future__ import annotations

import pytest

from exporter.history import CounterValue
from exporter.model import Kind, Metric, Sample
from exporter.views.landing_plots import BYTES, COLLECTIVES, GPU, LAUNCHES, NACKS, PORT_SENT, QP_SENT, SENT, read


def sample(name: str, value: float, start: float | None = None, **labels: str) -> Sample:
    return Sample(Metric(name, "", Kind.COUNTER, labels=tuple(labels)), labels, value, start)


def test_counts_of_a_process_are_added_up_in_one_layer() -> None:
    """Launches are the driver's where it was seen; calls of all collectives are one count, from the earliest start."""
    found = read(
        [
            sample("gpu.cuda.kernel.launch.calls", 100, 5.0, pid="1", api_layer="driver"),
            sample("gpu.cuda.kernel.launch.calls", 90, 5.0, pid="1", api_layer="runtime"),
            sample("gpu.cuda.kernel.launch.calls", 7, 6.0, pid="2", api_layer="runtime"),
            sample("nccl.collective.calls", 3, 9.0, pid="2", collective="AllReduce"),
            sample("nccl.collective.calls", 4, 8.0, pid="2", collective="Broadcast"),
        ]
    )
    assert {
        (LAUNCHES, "1"): CounterValue(100, 5.0),
        (LAUNCHES, "2"): CounterValue(7, 6.0),
        (COLLECTIVES, "2"): CounterValue(7, 8.0),
    } == found.counts


def test_bytes_sent_are_of_process_queue_pair_and_port() -> None:
    """Opcodes of a queue pair are added up; of a port only what it sent counts."""
    found = read(
        [
            sample("rdma.send", 10, 1.0, pid="1", device="d", qp="7", opcode="SEND"),
            sample("rdma.send", 20, 1.0, pid="1", device="d", qp="7", opcode="RDMA_WRITE"),
            sample("rdma.send", 5, 1.0, pid="1", device="d", qp="8", opcode="SEND"),
            sample("rdma.port.io", 99, device="d", port="1", direction="transmit"),
            sample("rdma.port.io", 98, device="d", port="1", direction="receive"),
        ]
    )
    assert {
        (SENT, "1"): CounterValue(35, 1.0),
        (QP_SENT, "1/d/7"): CounterValue(30, 1.0),
        (QP_SENT, "1/d/8"): CounterValue(5, 1.0),
        (PORT_SENT, "d/1"): CounterValue(99, 0.0),
    } == found.counts


def test_gauges_of_the_node() -> None:
    """Memory is the sum of all processes, GPU use the mean of all GPUs, the NACK ratio that of the worst port."""
    found = read(
        [
            sample("accel_exporter.collector.success", 1, collector="cuda"),
            sample("gpu.cuda.memory.usage", 10, pid="1", memory="device"),
            sample("gpu.cuda.memory.usage", 20, pid="1", memory="pool"),
            sample("gpu.cuda.memory.usage", 5, pid="2", memory="device"),
            sample("hw.gpu.utilization", 0.5, gpu_uuid="a", task="general"),
            sample("hw.gpu.utilization", 0.9, gpu_uuid="a", task="encoder"),
            sample("hw.gpu.utilization", 0.1, gpu_uuid="b", task="general"),
            sample("rdma.nack", 0.25, device="d", port="1", kind="sequence"),
            sample("rdma.nack", 0.5, device="d", port="1", kind="rnr"),
            sample("rdma.nack", 0.125, device="d", port="2", kind="rnr"),
        ]
    )
    assert {
        (BYTES, ""): 35,
        (BYTES, "1"): 30,
        (BYTES, "2"): 5,
        (GPU, ""): pytest.approx(0.3),
        (GPU, "a"): 0.5,
        (GPU, "b"): 0.1,
        (NACKS, ""): 0.75,
        (NACKS, "d/1"): 0.75,
        (NACKS, "d/2"): 0.125,
    } == found.gauges


def test_nothing_known_is_nothing_read() -> None:
    """Without a sample there is no value; only a collector that works makes nobody mean none."""
    assert ({}, {}, set()) == (read([]).counts, read([]).gauges, set(read([]).watched))
    works = [sample("accel_exporter.collector.success", 1, collector=name) for name in ("cuda", "nccl")]
    fails = [sample("accel_exporter.collector.success", 0, collector="verbs")]
    found = read([*works, *fails])
    assert ({(BYTES, ""): 0}, {LAUNCHES, BYTES, COLLECTIVES}) == (found.gauges, set(found.watched))
