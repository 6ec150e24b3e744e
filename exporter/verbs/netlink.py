"""The kernel's own list of queue pairs: the dump that `rdma resource show qp` is made from.

The list includes queue pairs made before the exporter started: number, peer, state and owner, but no GID.
Messages and numbers: include/uapi/linux/netlink.h, include/uapi/rdma/rdma_netlink.h, drivers/infiniband/core/nldev.c.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from exporter import nldev

GET_DEVICES, GET_QPS = 1, 10
DEVICE_INDEX, DEVICE_NAME, PORT = 1, 2, 3
QPS, QP = 19, 20
LOCAL_QPN, REMOTE_QPN, QP_TYPE, QP_STATE, PID = 21, 22, 26, 27, 28
_NO_PORT = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class KernelQp:
    """One queue pair in the kernel's list. Fields are 0 or -1 where the kernel leaves them out."""

    device: str
    port: int
    number: int
    remote: int
    """Number of the peer's queue pair; 0 for none: only RC and UC have peers."""
    type: int
    state: int
    """The state in the hardware (enum ibv_qp_state)."""
    pid: int
    """Pid of the owner; 0 for the kernel."""


def queue_pairs(sysfs: Path = Path("/sys")) -> list[KernelQp]:
    """Return all queue pairs of all devices of this node. Raises OSError where the kernel refuses.

    On a node without devices no socket is opened: opening it would load the RDMA modules. Drivers may query their
    firmware for each queue pair, so this is not for every scrape.
    """
    devices = sysfs / "class/infiniband"
    if not devices.is_dir() or not any(devices.iterdir()):
        return []
    with closing(nldev.connect()) as socket:
        return dump(socket)


def dump(socket: nldev.Socket) -> list[KernelQp]:
    """Return all queue pairs from an open socket."""
    found: list[KernelQp] = []
    for device in nldev.dump(socket, GET_DEVICES, b""):
        index = nldev.number(device, DEVICE_INDEX)
        if index is not None:
            for answer in nldev.dump(socket, GET_QPS, nldev.pack(DEVICE_INDEX, index)):
                found += _read_qps(answer)
    return found


def _read_qps(answer: nldev.Attributes) -> Iterator[KernelQp]:
    name = answer.get(DEVICE_NAME, b"").rstrip(b"\0").decode(errors="backslashreplace")
    for kind, entry in nldev.unpack(answer.get(QPS, b"")):
        if kind != QP:
            continue
        fields = dict(nldev.unpack(entry))
        yield KernelQp(
            device=name,
            port=0 if (port := _number(fields, PORT, 0)) == _NO_PORT else port,
            number=_number(fields, LOCAL_QPN, 0),
            remote=_number(fields, REMOTE_QPN, 0),
            type=_number(fields, QP_TYPE, -1),
            state=_number(fields, QP_STATE, -1),
            pid=_number(fields, PID, 0),
        )


def _number(fields: nldev.Attributes, name: int, absent: int) -> int:
    value = nldev.number(fields, name)
    return absent if value is None else value
