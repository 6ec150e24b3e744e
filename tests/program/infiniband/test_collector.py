"""The collector: the devices that are read, and the effect of a device that blocks on the others."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from exporter.collectors import infiniband as module
from exporter.infiniband import sysfs
from exporter.model import Kind, Unavailable
from exporter.options import SettingsError
from exporter.views import prometheus
from tests.support import PATIENCE, until
from tests.unit.infiniband.conftest import Made
from tests.unit.infiniband.trees import Tree, write


def page(made: module.Infiniband) -> list[str]:
    return prometheus.render(made.collect()).text.decode().splitlines()


def test_page(tree: Tree, collector: Made) -> None:
    """The first scrape already has what the devices count, in the names that are fixed."""
    tree.rxe(rcvd_seq_err=3, sent_pkts=100)

    found = page(collector())

    for line in (
        'rdma_naks_received_total{device="rxe0",kind="sequence",port="1"} 3',
        'rdma_naks_sent_total{device="rxe0",kind="rnr",port="1"} 0',
        'rdma_packets_sent_total{device="rxe0",port="1"} 100',
        'rdma_port_packets_total{device="rxe0",direction="transmit",port="1"} 100',
        'rdma_link_speed_bytes_per_second{device="rxe0",port="1"} 312500000',
        'rdma_link_width{device="rxe0",port="1"} 1',
        'accel_exporter_infiniband_device_success{device="rxe0"} 1',
    ):
        assert line in found
    absent = ("rdma_nack_ratio", "rdma_bytes_unattributed", "rdma_port_hw_", "node_")
    assert [] == [line for line in found if line.startswith(absent)]


def test_every_file_on_request(tree: Tree, collector: Made) -> None:
    """Each file by its own name, as before it had a metric of its own, and those that have none."""
    tree.rxe(rcvd_seq_err=3, sent_pkts=100)
    port = 'device="rxe0",group="hw_counters",port="1"'

    found = page(collector(all_counters=True))

    assert f'rdma_port_hw_counter_total{{counter="sent_pkts",{port}}} 100' in found
    assert f'rdma_port_hw_value{{counter="lifespan",{port}}} 0' in found


def test_none(collector: Made) -> None:
    """Without a device the collector is unavailable."""
    with pytest.raises(Unavailable, match="no RDMA device"):
        list(collector().collect())


def test_no_rdma(tmp_path: Path) -> None:
    """So it is where the kernel has no RDMA at all."""
    made = Made(tmp_path)
    with pytest.raises(Unavailable, match="no RDMA device"):
        list(made().collect())
    made.close()


def test_excluded_devices_are_not_touched(tree: Tree, collector: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of an excluded device is opened."""
    tree.mlx5("mlx5_0")
    tree.mlx5("mlx5_9")
    opened, content = [], sysfs.content
    monkeypatch.setattr(sysfs, "content", lambda path: opened.append(path) or content(path))

    found = page(collector(exclude=("rxe*", "mlx5_?9", "mlx5_9")))

    assert 'accel_exporter_infiniband_device_success{device="mlx5_0"} 1' in found
    assert [] == [path for path in opened if "mlx5_9" in str(path)]
    assert opened
    with pytest.raises(Unavailable, match="not excluded"):
        list(collector(exclude=("*",)).collect())


def test_devices_come_and_go(tree: Tree, collector: Made) -> None:
    """A device that appears is in the next scrape; one that is gone is in none, and no thread stays."""
    tree.mlx5("mlx5_0")
    subject = collector(interval=1.0)
    assert any('device="mlx5_0"' in line for line in page(subject))
    tree.mlx5("mlx5_1")
    (tree.sys / "class/infiniband/mlx5_0").rename(tree.sys / "gone")

    found = page(subject)

    assert any('device="mlx5_1"' in line for line in found)
    assert [] == [line for line in found if 'device="mlx5_0"' in line]
    until(lambda: "rdma mlx5_0" not in {it.name for it in threading.enumerate()})


def test_blocked(
    tree: Tree, collector: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A device with a hanging driver is logged and has no series until it answers; the other devices are read on."""
    tree.mlx5("mlx5_0")
    tree.mlx5("mlx5_1", packet_seq_err=1)
    answer, content = threading.Event(), sysfs.content

    def read(path: Path) -> str:
        if "mlx5_0" in path.parts and path.name == "out_of_sequence":
            answer.wait()
        return content(path)

    monkeypatch.setattr(sysfs, "content", read)
    caplog.set_level(logging.INFO)
    subject = collector(interval=1.0, deadline=1.0)
    assert subject._readers._readers["mlx5_1"].read_once.wait(PATIENCE)

    found = page(subject)

    assert ['accel_exporter_infiniband_device_success{device="mlx5_0"} 0'] == [
        line for line in found if 'device="mlx5_0"' in line
    ]
    assert 'rdma_naks_received_total{device="mlx5_1",kind="sequence",port="1"} 1' in found
    assert ["mlx5_0 is not seen: reading it takes more than 1 s and has not ended"] == list(subject.problems())
    write(tree.port("mlx5_1") / "hw_counters/packet_seq_err", 2)
    until(lambda: 'rdma_naks_received_total{device="mlx5_1",kind="sequence",port="1"} 2' in page(subject))
    answer.set()
    until(lambda: 'accel_exporter_infiniband_device_success{device="mlx5_0"} 1' in page(subject))
    assert ["mlx5_0 is seen again"] == [it for it in caplog.messages if "mlx5_0" in it and "again" in it]


def test_series_limit(tree: Tree, collector: Made) -> None:
    """More series than allowed are folded."""
    tree.mlx5()

    samples = list(collector(series_limit=20).collect())

    assert any(sample.labels.get("overflow") == "true" for sample in samples)


def test_node_exporter_names(tree: Tree, collector: Made) -> None:
    """node_exporter's series, on request: its names, kinds and units, with counters that do not wrap."""
    port = tree.mlx5(port_rcv_data=10, packet_seq_err=2, link_downed=1, VL15_dropped=3)
    write(port / "hw_counters/lifespan", 2500)

    found = page(collector(node_exporter=True))

    for line in (
        'node_infiniband_info{board_id="MT_0000000838",device="mlx5_0",'
        'firmware_version="28.39.1002",hca_type="MT4129"} 1',
        'node_infiniband_state_id{device="mlx5_0",port="1"} 4',
        'node_infiniband_physical_state_id{device="mlx5_0",port="1"} 5',
        'node_infiniband_rate_bytes_per_second{device="mlx5_0",port="1"} 50000000000',
        'node_infiniband_lifespan_seconds{device="mlx5_0",port="1"} 2',
        'node_infiniband_port_data_received_bytes_total{device="mlx5_0",port="1"} 40',
        'node_infiniband_packet_sequence_errors_total{device="mlx5_0",port="1"} 2',
        'node_infiniband_link_downed_total{device="mlx5_0",port="1"} 1',
        'node_infiniband_vl15_dropped_total{device="mlx5_0",port="1"} 3',
        "# TYPE node_infiniband_vl15_dropped_total counter",
        "# TYPE node_infiniband_lifespan_seconds gauge",
    ):
        assert line in found


def test_declared(tree: Tree, collector: Made) -> None:
    """Every sample is of a declared metric and has no label that its metric does not name."""
    tree.mlx5()
    tree.rxe()

    for sample in collector(node_exporter=True, all_counters=True).collect():
        if sample.metric.name.startswith(("rdma", "node_", "accel_exporter.infiniband")):
            assert sample.metric in module.METRICS
            assert set(sample.labels) <= set(sample.metric.labels)
    assert {Kind.COUNTER, Kind.GAUGE} == {it.kind for it in module.METRICS}


def test_wrong_settings() -> None:
    """Series of a collector that is off are one clear error."""
    values = {option.name: option.default for option in module.OPTIONS}
    with pytest.raises(SettingsError, match="has no effect without"):
        module.configure(values | {module.SWITCH: False, module.COMPATIBLE: True})


def test_switched_off() -> None:
    """Switched off there are no settings, so no collector."""
    values = {option.name: option.default for option in module.OPTIONS}

    assert module.configure(values | {module.SWITCH: False}) is None


def test_a_wrapped_counter_outlasts_the_collector(tree: Tree, collector: Made) -> None:
    """A 32-bit counter that has wrapped goes on counting in the collector that a reload puts in this one's place."""
    port = tree.mlx5(rx_write_requests=2**32 - 10)
    series = 'rdma_port_hw_counter_total{counter="rx_write_requests",device="mlx5_0",group="hw_counters",port="1"}'
    first = collector(interval=1.0, all_counters=True)
    assert f"{series} {2**32 - 10}" in page(first)
    write(port / "hw_counters/rx_write_requests", 5)
    until(lambda: f"{series} {2**32 + 5}" in page(first))
    first.close()
    write(port / "hw_counters/rx_write_requests", 23)

    collector.shared = {"port_counters": collector.node.port_counters}
    assert f"{series} {2**32 + 23}" in page(collector(all_counters=True))
