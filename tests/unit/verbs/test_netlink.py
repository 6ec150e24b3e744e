"""The kernel's list of queue pairs is read as it is written, and what is no list is refused."""

from __future__ import annotations

import errno
import os
import re
import struct
from pathlib import Path

import pytest

from exporter import nldev
from exporter.verbs import netlink
from exporter.verbs.netlink import KernelQp, dump, queue_pairs

HEADER = Path("/usr/include/rdma/rdma_netlink.h")
GET, QPS = 5 << 10 | 1, 5 << 10 | 10


def attribute(kind: int, content: bytes) -> bytes:
    packed = struct.pack("=HH", 4 + len(content), kind) + content
    return packed + bytes(-len(packed) % 4)


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def u8(kind: int, value: int) -> bytes:
    return attribute(kind, bytes([value]))


def message(kind: int, content: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(content), kind, 2, 1, 0) + content


DONE = message(3, struct.pack("=i", 0))
DEVICES = message(GET, u32(1, 0) + attribute(2, b"rxe0\0")) + message(GET, u32(1, 4) + attribute(2, b"mlx5_0\0"))
USERS = attribute(20, u32(21, 17) + u32(22, 23) + u32(23, 5) + u8(26, 2) + u8(27, 3) + u32(3, 1) + u32(28, 4711))
KERNELS = attribute(20, u32(21, 1) + u8(26, 1) + u8(27, 3) + attribute(29, b"ib_core\0") + u32(3, 0xFFFFFFFF))


class Socket:
    """A socket that answers with these datagrams and remembers the requests."""

    def __init__(self, *answers: bytes) -> None:
        self.answers, self.requests = list(answers), list[bytes]()

    def sendall(self, data: bytes) -> None:
        self.requests.append(data)

    def recv(self, size: int) -> bytes:
        return self.answers.pop(0)

    def close(self) -> None:
        pass


def test_queue_pairs_of_two_devices() -> None:
    """Every device is queried by its number, and each of its queue pairs is returned with its device."""
    first = message(QPS, u32(1, 0) + attribute(2, b"rxe0\0") + attribute(0x8000 | 19, USERS + KERNELS))
    socket = Socket(DEVICES + DONE, first, DONE, message(QPS, u32(1, 4) + attribute(2, b"mlx5_0\0")) + DONE)
    assert [
        KernelQp("rxe0", 1, 17, 23, type=2, state=3, pid=4711),
        KernelQp("rxe0", 0, 1, 0, type=1, state=3, pid=0),
    ] == dump(socket)
    flags = 0x301
    assert [
        struct.pack("=IHHII", 16, GET, flags, 1, 0),
        struct.pack("=IHHII", 24, QPS, flags, 1, 0) + u32(1, 0),
        struct.pack("=IHHII", 24, QPS, flags, 1, 0) + u32(1, 4),
    ] == socket.requests


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (message(2, struct.pack("=i", -errno.EPERM)), errno.EPERM),
        (message(3, struct.pack("=i", -errno.EINVAL)), errno.EINVAL),
        (DEVICES[:-3], errno.EBADMSG),
        (message(GET, struct.pack("=HH", 3, 1)), errno.EBADMSG),
        (struct.pack("=IHHII", 8, GET, 0, 1, 0), errno.EBADMSG),
    ],
    ids=["refused", "failed on the way", "cut short", "an attribute too short", "a message too short"],
)
def test_an_answer_that_is_no_list(answer: bytes, code: int) -> None:
    """A refusal of the kernel, or an answer that contradicts itself, is an error with its number."""
    with pytest.raises(OSError) as raised:
        dump(Socket(answer))
    assert code == raised.value.errno


def test_no_devices_no_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a node without RDMA no socket is opened: that would load the modules."""
    monkeypatch.setattr(nldev.socket, "socket", lambda *_: pytest.fail("a socket was opened"))
    assert [] == queue_pairs(tmp_path)
    (tmp_path / "class/infiniband").mkdir(parents=True)
    assert [] == queue_pairs(tmp_path)


@pytest.mark.skipif(not HEADER.exists(), reason="the kernel's user headers (linux-libc-dev) are not installed")
def test_numbers_are_those_of_the_kernel() -> None:
    """Commands and attributes are numbered as in rdma_netlink.h."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)

    def numbered(enum: str) -> dict[str, int]:
        [body] = re.findall(rf"enum {enum} {{(.*?)}};", text, re.S)
        numbers: dict[str, int] = {}
        following = 0
        for entry in filter(None, (part.strip() for part in body.split(","))):
            name, _, value = (part.strip() for part in entry.partition("="))
            following = numbers.get(value, int(value) if value.isdigit() else following) if value else following
            numbers[name] = following
            following += 1
        return numbers

    attributes, commands = numbered("rdma_nldev_attr"), numbered("rdma_nldev_command")
    assert (netlink.GET_DEVICES, netlink.GET_QPS) == (
        commands["RDMA_NLDEV_CMD_GET"],
        commands["RDMA_NLDEV_CMD_RES_QP_GET"],
    )
    named = {
        "DEV_INDEX": netlink.DEVICE_INDEX,
        "DEV_NAME": netlink.DEVICE_NAME,
        "PORT_INDEX": netlink.PORT,
        "RES_QP": netlink.QPS,
        "RES_QP_ENTRY": netlink.QP,
        "RES_LQPN": netlink.LOCAL_QPN,
        "RES_RQPN": netlink.REMOTE_QPN,
        "RES_TYPE": netlink.QP_TYPE,
        "RES_STATE": netlink.QP_STATE,
        "RES_PID": netlink.PID,
    }
    assert {name: attributes[f"RDMA_NLDEV_ATTR_{name}"] for name in named} == named


def test_random_bytes_never_hang() -> None:
    """Answers of noise end in an error or a list, never in another exception."""
    for seed in range(300):
        noise = os.urandom(seed % 90 + 1)
        try:
            dump(Socket(noise, DONE, DONE, DONE))
        except OSError:
            continue
