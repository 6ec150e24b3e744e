"""Counters of queue pairs: switched on, read and switched off again, with a kernel that is none."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from exporter import nldev
from exporter.infiniband import qp_counters
from exporter.infiniband.qp_counters import QpCounters, QpCounts

GET_DEVICES, SET, GET = 1, 16, 17
PORTS = {("mlx5_0", 1)}


def attribute(kind: int, content: bytes | int) -> bytes:
    data = content.to_bytes(4, "little") if isinstance(content, int) else content
    return (struct.pack("=HH", 4 + len(data), kind) + data).ljust((4 + len(data) + 3) & ~3, b"\0")


def message(kind: int, content: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(content), kind, 0, 1, 0) + content


class Kernel:
    """One device with one port. `refusal` is the errno of every setting."""

    def __init__(self) -> None:
        self.mode, self.mask = 0, 0
        self.refusal = 0
        self.set: list[tuple[int, int]] = []
        self.opened = self.closed = 0
        self.counters = attribute(78, attribute(3, 1) + attribute(79, 5) + attribute(28, 4242) + self.values())
        self._answers: list[bytes] = []

    @staticmethod
    def values() -> bytes:
        one = attribute(82, b"out_of_sequence\0") + attribute(83, (2**40).to_bytes(8, "little"))
        return attribute(80, attribute(81, one))

    def connect(self) -> Kernel:
        self.opened += 1
        return self

    def close(self) -> None:
        self.closed += 1

    def recv(self, size: int) -> bytes:
        return self._answers.pop(0)

    def sendall(self, data: bytes) -> None:
        size, kind, flags, _, _ = struct.unpack_from("=IHHII", data)
        assert size == len(data)
        command = kind - (5 << 10)
        given = {name: int.from_bytes(value, "little") for name, value in nldev.unpack(data[16:])}
        status, answer = 0, b""
        if command == GET_DEVICES:
            answer = message(kind, attribute(1, 7) + attribute(2, b"mlx5_0\0"))
        elif command == SET:
            assert (7, 1, 19, 1) == (given[1], given[3], given[75], given[74])
            status = self.refusal
            if not status:
                self.set.append((given[74], given[76]))
                self.mode, self.mask = (1, given[76]) if given[76] else (0, 0)
        elif flags & 0x300:
            answer = message(kind, attribute(2, b"mlx5_0\0") + attribute(77, self.counters)) if self.mode else b""
        else:
            answer = message(kind, attribute(74, self.mode))
        end = message(3 if flags & 0x300 else 2, (-status).to_bytes(4, "little", signed=True))
        self._answers = [answer + end]


def test_on_and_off() -> None:
    """Switched on by process, read, and off at the end; every socket is closed."""
    kernel = Kernel()
    subject = QpCounters("pid", kernel.connect)

    assert [QpCounts("mlx5_0", 1, 4242, "", {"out_of_sequence": 2**40})] == subject.read(PORTS)
    subject.read(PORTS)
    assert [(1, 2)] == kernel.set
    subject.close()

    assert [(1, 2), (1, 0)] == kernel.set
    assert kernel.opened == kernel.closed == 3


def test_another_program_uses_them(caplog: pytest.LogCaptureFixture) -> None:
    """Counters that are on already are shown, and neither changed nor switched off."""
    kernel = Kernel()
    kernel.mode = 1
    subject = QpCounters("type", kernel.connect)

    assert 1 == len(subject.read(PORTS))
    subject.close()

    assert [] == kernel.set
    assert "another program" in caplog.text


def test_refused(caplog: pytest.LogCaptureFixture) -> None:
    """A driver without such counters is logged once and not tried again."""
    kernel = Kernel()
    kernel.refusal = errno.EOPNOTSUPP
    subject = QpCounters("pid", kernel.connect)

    assert [] == subject.read(PORTS) == subject.read(PORTS)
    subject.close()

    assert 1 == len(caplog.records)


def test_other_ports_are_left_alone() -> None:
    """Nothing of a device that is excluded is switched on or shown."""
    kernel = Kernel()
    kernel.mode = 1

    assert [] == QpCounters("pid", kernel.connect).read({("mlx5_7", 1)})
    assert [] == kernel.set


@pytest.mark.parametrize("counters", [b"\x03\0", b"\xff\xff\x4e\0", attribute(78, b"\xff\xff\1\0"), attribute(78, b"")])
def test_malformed(counters: bytes) -> None:
    """An answer that is cut short is an error or shows no value."""
    kernel = Kernel()
    kernel.counters = counters
    subject = QpCounters("pid", kernel.connect)

    try:
        assert [] == [it for it in subject.read(PORTS) if it.values]
    except OSError as error:
        assert errno.EBADMSG == error.errno


def test_numbers() -> None:
    """The numbers are those of the kernel's header."""
    header = Path("/usr/include/rdma/rdma_netlink.h")
    if not header.exists():
        pytest.skip("there are no headers of the kernel (linux-libc-dev)")
    body = re.search(r"enum rdma_nldev_attr \{(.*?)\};", re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S), re.S)
    assert body
    names = [it.split("=")[0].strip() for it in body[1].split(",")]
    numbers = {
        name.removeprefix("RDMA_NLDEV_ATTR_"): at for at, name in enumerate(it for it in names if "PAD" not in it)
    }

    assert {
        "STAT_MODE": qp_counters.MODE,
        "STAT_RES": qp_counters.RESOURCE,
        "STAT_AUTO_MODE_MASK": qp_counters.MASK,
        "STAT_COUNTER": qp_counters.COUNTERS,
        "STAT_COUNTER_ENTRY": qp_counters.COUNTER,
        "STAT_HWCOUNTERS": qp_counters.VALUES,
        "STAT_HWCOUNTER_ENTRY": qp_counters.VALUE,
        "STAT_HWCOUNTER_ENTRY_NAME": qp_counters.NAME,
        "STAT_HWCOUNTER_ENTRY_VALUE": qp_counters.NUMBER,
        "RES_QP": qp_counters.QP,
        "RES_TYPE": qp_counters.QP_TYPE,
        "RES_PID": qp_counters.PID,
    }.items() <= numbers.items()
