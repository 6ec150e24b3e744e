"""Samples of queue pairs, memory regions and their peers."""

from __future__ import annotations

import dataclasses
import errno
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.ledger import Process
from exporter.model import Metric, Sample
from exporter.verbs.control import READ, Control, Qp, Regions, by_process, device_name
from exporter.verbs.control_samples import OPERATIONS, QP, QUEUE_PAIRS, REGISTERED, STATE_CHANGES, STATES, gids, samples
from exporter.verbs.netlink import KernelQp
from exporter.verbs.peers import PAUSE, Peers, gid_text
from exporter.views.prometheus import name

A = "fe80:0000:0000:0000:0211:22ff:fe33:4455"
B = "0000:0000:0000:0000:0000:ffff:0a00:0002"
CONNECTED = Qp("rxe0", 17, 2, 3, 1, 0, 23, 1, 0, B, None, 1024, 14, 7, 6, 99, 7)
ACCEPTED = Qp("rxe0", 23, 2, 3, 1, 0, 17, 1, 1, A, None, 1024, 0, 7, 6, 7, 99)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    gids = tmp_path / "class/infiniband/rxe0/ports/1/gids"
    gids.mkdir(parents=True)
    for index, gid in enumerate((A, B, "0000:" * 7 + "0000")):
        (gids / str(index)).write_text(gid + "\n")
    return tmp_path


def peers(sysfs: Path, *kernel: KernelQp) -> Peers:
    made = Peers(sysfs, lambda _: list(kernel))
    made.refresh()
    return made


def process(pid: int, control: Control, ended: bool = False, **labels: str) -> tuple[Process[Control], Control]:
    return Process(pid, {"pid": str(pid), **labels}, control, 1000.0, ended), control


def info(found: list[Sample]) -> list[dict[str, str]]:
    """Labels of queue pairs, and their state."""
    return [
        {k: v for k, v in it.labels.items() if v} | {"state": STATES[int(it.value)]} for it in found if it.metric is QP
    ]


def test_names() -> None:
    """The metrics have the names that dashboards know."""
    assert [
        "rdma_qp_state_changes_total",
        "rdma_qp_state",
        "rdma_memory_region_registered_bytes",
        "rdma_memory_region_operations_total",
    ] == [name(it) for it in (STATE_CHANGES, QP, REGISTERED, OPERATIONS)]


def test_both_ends_on_one_node(sysfs: Path) -> None:
    """Each of two connected queue pairs has the other's number and GID, and the pod that is at the other end."""
    one = process(7, Control({0x10: CONNECTED}), pod="trainer-0", namespace="ml")
    two = process(8, Control({0x10: ACCEPTED}), pod="trainer-1", namespace="ml")
    first, second = info(list(samples([one, two], peers(sysfs))))
    assert {
        "pid": "7",
        "pod": "trainer-0",
        "namespace": "ml",
        "device": "rxe0",
        "port": "1",
        "qp": "17",
        "type": "RC",
        "state": "RTS",
        "peer_qp": "23",
        "local_gid": A,
        "peer_gid": B,
        "peer_pod": "trainer-1",
        "peer_namespace": "ml",
    } == first
    assert ("trainer-0", B, A) == tuple(second[it] for it in ("peer_pod", "local_gid", "peer_gid"))


def test_queue_pairs_are_counted_by_setting(sysfs: Path) -> None:
    """Queue pairs that were set alike are one series, those of other settings or states are others."""
    alike, other = dataclasses.replace(CONNECTED, number=18), dataclasses.replace(CONNECTED, number=19, state=6)
    process_ = process(7, Control({1: CONNECTED, 2: alike, 3: other, 4: ACCEPTED}))
    found = [sample for sample in samples([process_], peers(sysfs)) if sample.metric is QUEUE_PAIRS]
    set_to = ("state", "mtu", "timeout_seconds", "retries", "rnr_retries")
    assert {
        ("RTS", "1024", "0.0671089", "7", "6"): 2,
        ("ERR", "1024", "0.0671089", "7", "6"): 1,
        ("RTS", "1024", "0", "7", "6"): 1,
    } == {tuple(sample.labels[it] for it in set_to): sample.value for sample in found}


def test_gids_that_are_in_use(sysfs: Path) -> None:
    """Each GID that a queue pair of a living process uses once, and none of one that has ended."""
    both = [process(7, Control({1: CONNECTED, 2: CONNECTED})), process(8, Control({1: ACCEPTED}))]
    found = [dict(sample.labels) for sample in gids(both, peers(sysfs))]
    assert [{"device": "rxe0", "port": "1", "gid": gid} for gid in sorted((A, B))] == found
    both[0] = process(7, Control({1: CONNECTED}), ended=True)
    assert [B] == [sample.labels["gid"] for sample in gids(both, peers(sysfs))]


def test_every_label_is_declared(sysfs: Path) -> None:
    """A sample has no label that its metric does not name."""
    control = Control({1: CONNECTED}, Counter({("rxe0", 3): 1}), {("rxe0", "host"): Regions(1, 0, 0, 1, 0, 0, 1)})
    kernel = KernelQp("rxe0", 1, 5, 6, type=2, state=3, pid=7)
    for sample in samples([process(7, control)], peers(sysfs, kernel)):
        assert set() == sample.labels.keys() - {"pid", *sample.metric.labels}


def test_a_peer_elsewhere(sysfs: Path) -> None:
    """Of a peer on another node the pod is not known, and its labels are absent."""
    [found] = info(list(samples([process(7, Control({1: CONNECTED}))], peers(sysfs))))
    assert (B, set()) == (found["peer_gid"], {"peer_pod", "peer_namespace"} & found.keys())


def test_a_queue_pair_that_only_the_kernel_knows(sysfs: Path) -> None:
    """One made before the exporter has type, state and peer from the kernel; others' are not this process's."""
    kernel = (
        KernelQp("rxe0", 1, 30, 31, type=2, state=6, pid=7),
        KernelQp("rxe0", 1, 32, 33, type=2, state=3, pid=9),
        KernelQp("rxe0", 0, 1, 0, type=1, state=3, pid=0),
    )
    [found] = info(list(samples([process(7, Control())], peers(sysfs, *kernel))))
    expected = {"pid": "7", "device": "rxe0", "port": "1", "qp": "30", "type": "RC", "state": "ERR", "peer_qp": "31"}
    assert expected == found


def test_the_kernel_adds_the_peer_of_one_half_known(sysfs: Path) -> None:
    """A queue pair first seen in use has the kernel's peer until its own is seen set, and has one series."""
    late = Qp("rxe0", 30, 2, 3)
    kernel = KernelQp("rxe0", 1, 30, 31, type=2, state=3, pid=7)
    [found] = info(list(samples([process(7, Control({5: late}))], peers(sysfs, kernel))))
    expected = {"pid": "7", "device": "rxe0", "qp": "30", "type": "RC", "state": "RTS", "peer_qp": "31"}
    assert expected == found


def test_states_and_regions(sysfs: Path) -> None:
    """Changes count by new state; registered bytes are those not deregistered; unmatched ones are apart."""
    regions = {("rxe0", "dmabuf"): Regions(1000, 300, 0, 9, 2, 4, 1)}
    control = Control(states=Counter({("rxe0", 6): 2}), regions=regions)
    found = list(samples([process(7, control)], peers(sysfs)))
    assert [({"pid": "7", "device": "rxe0", "state": "ERR"}, 2, 1000.0)] == [
        (it.labels, it.value, it.start) for it in found if it.metric is STATE_CHANGES
    ]
    assert [700] == [it.value for it in found if it.metric is REGISTERED]
    operations = {(it.labels["operation"], it.labels["memory"]): it.value for it in found if it.metric is OPERATIONS}
    assert {("reg", "dmabuf"): 9, ("rereg", "dmabuf"): 2, ("dereg", "dmabuf"): 4, ("dereg", "unknown"): 1} == operations


def test_registered_bytes_that_are_not_known(sysfs: Path) -> None:
    """Bytes are absent: of one device where a region had no room, of all where a call's effect is not known."""
    regions = {("rxe0", "host"): Regions(5000, 0, 4000, 5), ("mlx5_0", "host"): Regions(300, 0, 0, 3)}

    def found(control: Control, metric: Metric) -> dict[str, object]:
        of_one = samples([process(7, control)], peers(sysfs))
        return {it.labels["device"]: it.value for it in of_one if it.metric is metric and it.value}

    control = Control(regions=regions)
    assert {"mlx5_0": 300} == found(control, REGISTERED)
    control.memory_missed = 1
    assert {} == found(control, REGISTERED)
    assert {"rxe0": 5, "mlx5_0": 3} == found(control, OPERATIONS)
    control.ended()
    assert [0, 0] == [it.value for it in samples([process(7, control, True)], peers(sysfs)) if it.metric is REGISTERED]


def test_the_end_of_a_process(sysfs: Path) -> None:
    """The process's queue pairs are gone and its memory is not registered any more; what it did stays."""
    control = Control({1: CONNECTED}, Counter({("rxe0", 3): 1}), {("rxe0", "host"): Regions(100, 40, 10, 3, 0, 1, 0)})
    control.ended()
    late = Control(states=Counter({("rxe0", 3): 1}), regions={("rxe0", "host"): Regions(5, 0, 0, 1)})
    late.ended()
    control.absorb(late)
    found = list(samples([process(7, control, ended=True)], peers(sysfs)))
    assert [] == info(found)
    assert [0] == [it.value for it in found if it.metric is REGISTERED]
    assert [2] == [it.value for it in found if it.metric is STATE_CHANGES]
    assert [4, 0, 1] == [it.value for it in found if it.metric is OPERATIONS]


def row(**fields: object) -> SimpleNamespace:
    return SimpleNamespace(**fields)


class Key(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def test_only_what_was_set_is_known() -> None:
    """Attributes without a bit in the mask are not known, whatever the row holds; a path without GIDs has a LID."""
    device = row(name=b"mlx5_0\0garbage")
    rest = {"peer_gid": bytes(range(16)), "gid_index": 4, "timeout": 5, "retries": 6, "rnr_retries": 7}
    rest |= {"path_mtu": 9, "port": 3, "send_psn": 1, "receive_psn": 2, "peer": 8, "created_ns": 0, "resets": 0}
    qp = row(device=device, number=17, type=4, state=1, known=0, routed=1, lid=5, **rest)
    assert Qp("mlx5_0", 17, 4, 1) == Qp.of(qp)
    qp.known, qp.routed = 0x80 | 0x100, 0
    assert Qp("mlx5_0", 17, 4, 1, port=3, peer_lid=5) == Qp.of(qp)


def test_read_sorts_by_process() -> None:
    """Counts of each process, device, state and kind of memory are kept apart."""
    device = row(name=b"mlx5_0\0")
    totals = Regions(100, 10, 0, 3, 1, 2, 0)
    maps: dict[str, dict[Any, object]] = {
        "qp_controls": {},
        "qp_states": {Key(tgid=7, state=3, device=device): 5, Key(tgid=8, state=3, device=device): 6},
        "region_totals": {Key(tgid=7, memory=1, device=device): row(**totals._asdict())},
        "memory_missed": {8: 2},
    }
    assert {
        7: Control(states=Counter({("mlx5_0", 3): 5}), regions={("mlx5_0", "dmabuf"): totals}),
        8: Control(states=Counter({("mlx5_0", 3): 6}), memory_missed=2),
    } == by_process({name: maps[name].items() for name in READ})


@pytest.mark.parametrize("raw", [b"../../etc\0", b"\xff\xfe\0", b"a b\0", b".\0", b"\0", b"-x\0"])
def test_names_that_are_no_device(raw: bytes) -> None:
    """Contents of a process's memory that are no device name lead nowhere."""
    assert "" == device_name(raw)


def test_gids(sysfs: Path) -> None:
    """A GID is as its file in sysfs has it; zero, absent and unknown ones are empty."""
    found = peers(sysfs)
    assert [A, B, "", "", "", "", ""] == [
        found.gid("rxe0", 1, 0),
        found.gid("rxe0", 1, 1),
        found.gid("rxe0", 1, 2),
        found.gid("rxe0", 1, 3),
        found.gid("rxe0", 2, 0),
        found.gid("rxe0", 1, None),
        found.gid("", 1, 0),
    ]
    assert A == gid_text(bytes.fromhex("fe80000000000000021122fffe334455"))
    assert "" == gid_text(bytes(16)) == gid_text(b"short")


def test_the_kernels_list_is_read_when_wanted_and_not_often(tmp_path: Path) -> None:
    """Once at first, then only when wanted and after a pause; a refusal is reported and leaves no old answers."""
    answers: list[list[KernelQp] | OSError] = [
        [KernelQp("rxe0", 1, 30, 31, type=2, state=3, pid=7)],
        OSError(errno.EPERM, "refused"),
    ]
    read, clock = [], [100.0]

    def listed(sysfs: Path) -> list[KernelQp]:
        read.append(sysfs)
        answer = answers[len(read) - 1]
        if isinstance(answer, OSError):
            raise answer
        return answer

    found = Peers(tmp_path, listed, lambda: clock[0])
    found.refresh()
    clock[0] += PAUSE
    found.refresh()
    assert ([tmp_path], [30], "") == (read, [it.number for it in found.of(7)], found.problem)
    found.want()
    clock[0] += PAUSE - 1
    found.refresh()
    assert 2 == len(read)
    assert [] == found.of(7)
    assert "refused" in found.problem
    found.want()
    found.refresh()
    assert 2 == len(read)
