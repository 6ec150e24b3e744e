"""Meaning of the counters of each driver, on devices as their drivers show them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from exporter.infiniband import device as device_module
from exporter.infiniband import drivers, metrics, sysfs
from exporter.infiniband.device import RdmaDevice
from exporter.model import Metric, Sample
from exporter.verbs.posted import Posted, PostedBytes, RdmaPort
from tests.unit.infiniband.trees import EFA, IRDMA_GEN2, IRDMA_GEN3, MANA, MLX5, Tree, count, write


def device(tree: Tree, name: str, posted: Posted | None = None) -> RdmaDevice:
    return RdmaDevice(
        tree.sys / "class/infiniband" / name, drivers.load(), posted or Posted(), None, False, all_counters=True
    )


def values(samples: Iterable[Sample], metric: Metric, *names: str) -> dict[str, object]:
    """Values by the labels named, or else the kind."""
    return {
        " ".join(it.labels.get(name, "") for name in names or ("kind",)): it.value
        for it in samples
        if it.metric is metric
    }


def value(samples: Iterable[Sample], metric: Metric) -> object:
    [found] = values(samples, metric).values()
    return found


def counters(samples: Iterable[Sample]) -> dict[str, object]:
    return values(samples, metrics.HW_COUNTER, "port", "group", "counter")


def test_mlx5(tree: Tree) -> None:
    """RoCE on a ConnectX-7: NAKs by kind, packets of RDMA alone, no series of NAKs sent."""
    tree.mlx5(packet_seq_err=7, rnr_nak_retry_err=2, implied_nak_seq_err=1, port_xmit_packets=1000, np_cnp_sent=5)

    found = device(tree, "mlx5_0").read()

    assert {"sequence": 7, "rnr": 2, "implied": 1} == values(found, metrics.NAKS_RECEIVED)
    assert {} == values(found, metrics.NAKS_SENT)
    assert 1000 == value(found, metrics.PACKETS_SENT)
    assert {"sent": 5, "handled": 0, "ignored": 0} == values(found, metrics.CNPS)
    assert {"eth0": 1} == values(found, metrics.PORT_INFO, "netdev")


def test_every_file(tree: Tree) -> None:
    """Every file of both folders is shown under its name, data in bytes, and a setting as no counter."""
    tree.mlx5(port_xmit_data=25, port_rcv_data=3, symbol_error=9)

    found = device(tree, "mlx5_0").read()

    assert 21 + len(MLX5) == len(counters(found))
    assert 100 == counters(found)["1 counters port_xmit_data"]
    assert 12 == counters(found)["1 counters port_rcv_data"]
    assert 9 == counters(found)["1 counters symbol_error"]
    assert {"1 hw_counters lifespan": 10} == values(found, metrics.HW_VALUE, "port", "group", "counter")


def test_a_port_in_units_of_its_own(tree: Tree) -> None:
    """Bytes, packets, ticks, errors of the link and requests given up have a metric each."""
    tree.infiniband(
        **{"port_xmit_data": 25, "port_rcv_data": 3, "port_xmit_packets": 7, "port_rcv_packets": 8},
        **{"port_xmit_wait": 11, "port_xmit_discards": 5, "symbol_error": 9, "port_rcv_errors": 4},
        **{"req_transport_retries_exceeded": 2, "req_rnr_retries_exceeded": 1},
    )

    found = RdmaDevice(tree.sys / "class/infiniband/mlx5_0", drivers.load(), Posted(), None, False).read()

    assert {"transmit": 100, "receive": 12} == values(found, metrics.IO, "direction")
    assert {"transmit": 7, "receive": 8} == values(found, metrics.PACKETS, "direction")
    assert 11 == value(found, metrics.TRANSMIT_WAIT)
    assert {"transmit": 5} == values(found, metrics.DISCARDED, "direction")
    assert {"transport": 2, "rnr": 1} == values(found, metrics.RETRIES_EXCEEDED)
    errors = dict.fromkeys(("recovery", "local_integrity", "buffer_overrun", "remote_physical"), 0)
    assert {"symbol": 9, "receive": 4, **errors} == values(found, metrics.LINK_ERRORS, "error")
    assert {} == counters(found) == values(found, metrics.HW_VALUE)


def test_ports_without_the_standard_counters(tree: Tree) -> None:
    """Soft-RoCE and EFA count in hw_counters/ alone; what they do not count is absent."""
    tree.rxe(sent_pkts=100, rcvd_pkts=90, retry_exceeded_err=3)
    port = tree.device("rdmap0", "efa", "0000:5f:00.0")
    count(port / "hw_counters", EFA, {"tx_bytes": 4000, "rx_bytes": 3000, "rx_pkts": 30, "rx_drops": 2})

    rxe, efa = device(tree, "rxe0").read(), device(tree, "rdmap0").read()

    assert {"transmit": 100, "receive": 90} == values(rxe, metrics.PACKETS, "direction")
    assert {"transport": 3, "rnr": 0} == values(rxe, metrics.RETRIES_EXCEEDED)
    assert {} == values(rxe, metrics.IO, "direction") == values(rxe, metrics.LINK_ERRORS, "error")
    assert {"transmit": 4000, "receive": 3000} == values(efa, metrics.IO, "direction")
    assert {"transmit": 0, "receive": 30} == values(efa, metrics.PACKETS, "direction")
    assert {"receive": 2} == values(efa, metrics.DISCARDED, "direction")
    assert {} == values(efa, metrics.TRANSMIT_WAIT, "port") == values(efa, metrics.RETRIES_EXCEEDED)


def test_link_downed(tree: Tree) -> None:
    """Of Ethernet it is the interface's losses of carrier: the file counters/link_downed does not count there."""
    tree.mlx5("roce", link_downed=0)
    tree.infiniband("ib", link_downed=2)
    tree.rxe("rxe0", link_downed=4)

    assert 3 == value(device(tree, "roce").read(), metrics.DOWNED)
    assert 2 == value(device(tree, "ib").read(), metrics.DOWNED)
    assert 4 == value(device(tree, "rxe0").read(), metrics.DOWNED)


def test_rxe(tree: Tree) -> None:
    """Soft-RoCE counts NAKs of both ways, and has no driver of a bus."""
    tree.rxe(rcvd_seq_err=3, rcvd_rnr_err=4, out_of_seq_request=5, send_rnr_err=6, sent_pkts=100)

    found = device(tree, "rxe0").read()

    assert {"sequence": 3, "rnr": 4} == values(found, metrics.NAKS_RECEIVED)
    assert {"sequence": 5, "rnr": 6} == values(found, metrics.NAKS_SENT)
    assert 100 == value(found, metrics.PACKETS_SENT)
    assert {"rxe": 1} == values(found, metrics.DEVICE_INFO, "driver")


@pytest.mark.parametrize("names", [IRDMA_GEN2, IRDMA_GEN2 + IRDMA_GEN3], ids=["E810", "E830"])
def test_irdma(tree: Tree, names: list[str]) -> None:
    """NAKs are there where the device counts them and else missing, not 0; names keep their spaces."""
    port = tree.device("irdma0", "ice")
    count(port / "hw_counters", names, {"ip4OutPkts": 10, "ip6OutPkts": 5, "Nak Sequence Error": 2, "RNR sent": 1})

    found = device(tree, "irdma0").read()

    gen3 = names != IRDMA_GEN2
    assert ({"sequence": 2, "rnr": 0, "implied": 0} if gen3 else {}) == values(found, metrics.NAKS_RECEIVED)
    assert ({"rnr": 1} if gen3 else {}) == values(found, metrics.NAKS_SENT)
    assert gen3 == ("1 hw_counters Nak Sequence Error" in counters(found))
    assert 15 == value(found, metrics.PACKETS_SENT)


def test_efa(tree: Tree) -> None:
    """EFA has no NAKs: retransmissions and packets, and the counters of the device itself without a port."""
    port = tree.device("rdmap0s6", "efa", link_layer="Unspecified", rate="100 Gb/sec (4X EDR)")
    count(port / "hw_counters", EFA, {"tx_pkts": 50, "retrans_pkts": 1, "tx_bytes": 4000})
    write(port.parents[1] / "hw_counters/submitted_cmds", 12)

    found = device(tree, "rdmap0s6").read()

    assert {} == values(found, metrics.NAKS_RECEIVED)
    assert 50 == value(found, metrics.PACKETS_SENT)
    assert 1 == value(found, metrics.RETRANSMITTED)
    assert 12 == counters(found)[" hw_counters submitted_cmds"]


def test_mana(tree: Tree) -> None:
    """A rate of now is a gauge beside the counters."""
    port = tree.device("mana_0", "mana")
    count(port / "hw_counters", MANA, {"requester_oos_nak": 1, "responder_rnr_nak": 2, "current_rate": 90})

    found = device(tree, "mana_0").read()

    assert {"sequence": 1, "rnr": 0, "implied": 0} == values(found, metrics.NAKS_RECEIVED)
    assert {"rnr": 2} == values(found, metrics.NAKS_SENT)
    assert 90 == values(found, metrics.HW_VALUE, "counter")["current_rate"]
    assert "1 hw_counters current_rate" not in counters(found)


@pytest.mark.parametrize(
    "sequence,rnr,implied",
    [
        ("packet_seq_err", "rnr_nak_retry_err", "implied_nak_seq_err"),
        ("seq_err_naks_rcvd", "rnr_naks_rcvd", "missing_resp"),
    ],
)
def test_bnxt(tree: Tree, sequence: str, rnr: str, implied: str) -> None:
    """Broadcom's NAKs by their names of now and of older kernels."""
    port = tree.device("bnxt_re0", "bnxt_en")
    count(port / "hw_counters", [sequence, rnr, implied], {sequence: 1, rnr: 2, implied: 3})

    assert {"sequence": 1, "rnr": 2, "implied": 3} == values(device(tree, "bnxt_re0").read(), metrics.NAKS_RECEIVED)


def test_unknown_driver(tree: Tree) -> None:
    """Of a driver that nobody knows the counters are shown as they are, and nothing is made of them."""
    port = tree.device("x0", "from_the_future")
    count(port / "hw_counters", ["packet_seq_err"], {"packet_seq_err": 4})

    found = device(tree, "x0").read()

    assert {"1 hw_counters packet_seq_err": 4} == counters(found)
    assert {} == values(found, metrics.NAKS_RECEIVED)


def test_wrap(tree: Tree) -> None:
    """A counter that is 32 bits wide in the device goes on when it begins at 0 again; a wider one was set back."""
    port = tree.mlx5(rx_write_requests=2**32 - 10, np_cnp_sent=50)
    subject = device(tree, "mlx5_0")
    subject.read()
    write(port / "hw_counters/rx_write_requests", 5)
    write(port / "hw_counters/np_cnp_sent", 5)

    found = counters(subject.read())

    assert 2**32 + 5 == found["1 hw_counters rx_write_requests"]
    assert 5 == found["1 hw_counters np_cnp_sent"]


def test_set_back(tree: Tree) -> None:
    """A driver that was loaded again counts from 0: that is no wraparound."""
    port = tree.mlx5(rx_write_requests=2**32 - 10)
    subject = device(tree, "mlx5_0")
    subject.read()
    (port / "hw_counters").rename(port / "before")
    count(port / "hw_counters", MLX5, {"rx_write_requests": 5})

    assert 5 == counters(subject.read())["1 hw_counters rx_write_requests"]


def test_kinds() -> None:
    """The table knows three kinds of NAKs received, and only drivers that also count packets can have a ratio."""
    rows = drivers.load().values()

    assert {"sequence", "rnr", "implied"} == {kind for it in rows for kind in it.kinds.get("received", {})}
    assert all(it.sums.get("packets") for it in rows if it.kinds.get("received"))


def test_ratio(tree: Tree) -> None:
    """NAKs over packets between readings, by kind; nothing when no packet was sent."""
    port = tree.mlx5(port_xmit_packets=1000, packet_seq_err=3)
    subject = device(tree, "mlx5_0")
    assert {} == values(subject.read(), metrics.NACK_RATIO)
    assert {} == values(subject.read(), metrics.NACK_RATIO)
    write(port / "counters/port_xmit_packets", 1200)
    write(port / "hw_counters/packet_seq_err", 5)

    assert {"sequence": 0.01, "rnr": 0.0, "implied": 0.0} == values(subject.read(), metrics.NACK_RATIO)


class Posts:
    """Posted bytes, as the verbs collector would report them."""

    def __init__(self) -> None:
        self.posted, self.known = Posted(), PostedBytes({}, 1)
        self.certain = True
        self.posted.follow(lambda: self.known if self.certain else None)

    def add(self, port: int, count: int) -> None:
        known = RdmaPort("mlx5_0", port)
        self.known = PostedBytes({**self.known.bytes, known: self.known.bytes.get(known, 0) + count}, self.known.since)


def test_unattributed(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes sent beyond those posted since all posts are seen; it does not fall, and is missing when they are not."""
    monkeypatch.setattr("exporter.infiniband.device.POSTED_SECONDS", 0.0)
    port = tree.mlx5(port_xmit_data=1000)
    posts = Posts()
    subject = device(tree, "mlx5_0", posts.posted)
    posts.add(1, 100)
    assert 0 == value(subject.read(), metrics.UNATTRIBUTED)
    write(port / "counters/port_xmit_data", 1500)  # 2000 bytes more
    posts.add(1, 1500)
    assert 500 == value(subject.read(), metrics.UNATTRIBUTED)
    posts.add(0, 400)  # not yet sent; the only port there is
    assert 500 == value(subject.read(), metrics.UNATTRIBUTED)
    posts.certain = False
    assert {} == values(subject.read(), metrics.UNATTRIBUTED)
    write(port / "counters/port_xmit_data", 9000)
    posts.certain, posts.known = True, PostedBytes(posts.known.bytes, 2)
    assert 500 == value(subject.read(), metrics.UNATTRIBUTED)
    posts.posted.follow(None)
    assert {} == values(subject.read(), metrics.UNATTRIBUTED)


def test_posted_bytes_are_not_queried_at_each_reading(tree: Tree) -> None:
    """Twice a minute is enough: in between the port keeps its value."""
    port = tree.mlx5(port_xmit_data=1000)
    posts, queries = Posts(), []
    posts.posted.follow(lambda: queries.append(1) or posts.known)
    subject = device(tree, "mlx5_0", posts.posted)
    assert 0 == value(subject.read(), metrics.UNATTRIBUTED)
    write(port / "counters/port_xmit_data", 1500)
    assert 0 == value(subject.read(), metrics.UNATTRIBUTED)
    assert [1] == queries


def test_posts_of_an_unknown_port(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a device has two ports and a post may be of either, the ports have no series."""
    monkeypatch.setattr("exporter.infiniband.device.POSTED_SECONDS", 0.0)
    tree.mlx5(port_xmit_data=1000)
    second = tree.device("mlx5_0", "mlx5_core", number=2)
    count(second / "counters", ["port_xmit_data"], {})
    posts = Posts()
    subject = device(tree, "mlx5_0", posts.posted)
    assert 2 == len(values(subject.read(), metrics.UNATTRIBUTED, "port"))
    posts.add(0, 1)

    assert {} == values(subject.read(), metrics.UNATTRIBUTED)


def test_interface_of_a_port(tree: Tree) -> None:
    """An interface stacked on the device's own is ignored; several are distinguished by their port."""
    port = tree.device("mlx4_0", "mlx4_core", netdev="eth0")
    second = tree.device("mlx4_0", "mlx4_core", netdev="eth1", number=2)
    write(port / "gid_attrs/ndevs/0", "bond0")
    write(second / "gid_attrs/ndevs/0", "eth1.100")

    found = device(tree, "mlx4_0").read()

    assert {"1 eth0": 1, "2 eth1": 1} == values(found, metrics.PORT_INFO, "port", "netdev")


def test_link(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """State, speed in bytes per second and lanes; a link that is down has no speed."""
    monkeypatch.setattr(device_module, "LINK_SECONDS", 0.0)
    port = tree.infiniband()
    subject = device(tree, "mlx5_0")
    found = subject.read()
    assert [4, 5, 50e9, 4] == [
        value(found, it) for it in (metrics.STATE, metrics.PHYSICAL_STATE, metrics.SPEED, metrics.WIDTH)
    ]
    write(port / "state", "1: DOWN")
    write(port / "phys_state", "2: Polling")

    found = subject.read()

    assert [1, 2] == [value(found, it) for it in (metrics.STATE, metrics.PHYSICAL_STATE)]
    assert {} == values(found, metrics.SPEED)


def test_links_are_not_read_every_time(tree: Tree) -> None:
    """A link is read at an interval: a driver may log a line for each reading."""
    port = tree.infiniband()
    subject = device(tree, "mlx5_0")
    subject.read()
    write(port / "state", "1: DOWN")

    assert 4 == value(subject.read(), metrics.STATE)


@pytest.mark.parametrize("content", ["N/A (no PMA)", "", "-1", "1 2", "9" * 21, str(2**64), "\0\0", "0x", "x" * 9000])
def test_hostile_counter(tree: Tree, content: str) -> None:
    """A file without a number of 64 bits is left out, and the files beside it are read."""
    port = tree.mlx5(symbol_error=1)
    (port / "hw_counters/out_of_buffer").write_text(content)

    found = counters(device(tree, "mlx5_0").read())

    assert "1 hw_counters out_of_buffer" not in found
    assert 1 == found["1 counters symbol_error"]


def test_hostile_tree(tree: Tree) -> None:
    """Folders, FIFOs, broken links and endless lists among the files cost only themselves."""
    port = tree.mlx5(symbol_error=1)
    (port / "hw_counters/folder").mkdir()
    os.mkfifo(port / "hw_counters/fifo")
    (port / "hw_counters/broken").symlink_to("nowhere")
    (port / "rate").unlink()
    write(port / "state", "\x1b[31m banana")
    for number in range(600):
        write(port / f"counters/z{number}", number)
    (port.parent / "..port").mkdir()

    found = device(tree, "mlx5_0").read()

    unreadable = values(found, metrics.UNREADABLE, "error")
    assert {"EISDIR": 1, "ENOENT": 1, "NOT_A_NUMBER": 1, "TOO_MANY": 600 + 21 - 512} == unreadable
    assert {} == values(found, metrics.STATE) == values(found, metrics.SPEED)
    assert 1 == counters(found)["1 counters symbol_error"]


def test_removed(tree: Tree) -> None:
    """A device that was removed is an error, not one without counters."""
    tree.mlx5()
    subject = device(tree, "mlx5_0")
    (tree.sys / "class/infiniband/mlx5_0").rename(tree.sys / "away")

    with pytest.raises(OSError, match="was removed"):
        subject.read()


def test_unreadable_files_are_counted(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that the driver refuses are counted by error, and the others are shown."""
    content = sysfs.content
    refused = {"out_of_buffer": errno.EINVAL, "port_xmit_wait": errno.EOPNOTSUPP, "symbol_error": errno.EPERM}

    def read(path: Path) -> str:
        if path.name in refused:
            raise OSError(refused[path.name], "refused")
        return content(path)

    monkeypatch.setattr(sysfs, "content", read)
    tree.mlx5(packet_seq_err=4)

    found = device(tree, "mlx5_0").read()

    assert {"EINVAL": 1, "ENOTSUP": 1, "EPERM": 1} == values(found, metrics.UNREADABLE, "error")
    assert {"sequence": 4, "rnr": 0, "implied": 0} == values(found, metrics.NAKS_RECEIVED)
