"""Counters of queue pairs by process or type, which drivers keep on request: `rdma statistic qp set link … auto`.

mlx5 and ionic have them. Queue pairs that existed before have no counter. Switching the counters on takes CAP_NET_ADMIN
and hardware counters of the device; counters that an administrator switched on by hand stay unchanged.
"""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from exporter import nldev

MASKS = {"": 0, "type": 1, "pid": 2, "type,pid": 3}
"""Criteria that distinguish counters, as `rdma statistic` names them: enum rdma_nl_counter_mask."""
MOST_COUNTERS = 4096

_GET_DEVICES, _SET, _GET = 1, 16, 17
_DEVICE_INDEX, _DEVICE_NAME, _PORT = 1, 2, 3
QP, QP_TYPE, PID = 19, 26, 28
MODE, RESOURCE, MASK = 74, 75, 76
COUNTERS, COUNTER = 77, 78
VALUES, VALUE, NAME, NUMBER = 80, 81, 82, 83
_NONE, _AUTO = 0, 1
_TYPES = {2: "RC", 3: "UC", 4: "UD", 8: "RAW_PACKET", 9: "XRC_INI", 10: "XRC_TGT", 255: "DRIVER"}
"""enum ib_qp_type."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QpCounts:
    """One counter of the queue pairs of a process or a type on a port; `pid` 0 or `qp_type` empty stand for all."""

    device: str
    port: int
    pid: int
    qp_type: str
    values: Mapping[str, int]


class QpCounters:
    """Switches the counters on where they are off, and off again at the end; leaves counters alone that were on."""

    def __init__(self, wanted: str, connect: Callable[[], nldev.Socket] = nldev.connect) -> None:
        """`wanted` is a key of MASKS."""
        self._mask, self._connect = MASKS[wanted], connect
        self._ports: dict[tuple[str, int], int] = {}
        """Device indexes of the ports on which the counters were switched on here."""
        self._refused: set[tuple[str, int]] = set()

    def read(self, ports: set[tuple[str, int]]) -> list[QpCounts]:
        """Return the counters of these ports (device and number), switching them on for new ports. Raises OSError."""
        with closing(self._connect()) as connection:
            indexes = _indexes(connection)
            for removed in self._ports.keys() - ports:
                del self._ports[removed]
            self._refused &= ports
            for port in sorted(ports - self._ports.keys() - self._refused):
                if port[0] in indexes:
                    self._switch_on(connection, port, indexes[port[0]])
            found: list[QpCounts] = []
            for device in sorted({device for device, _ in ports} & indexes.keys()):
                body = nldev.pack(_DEVICE_INDEX, indexes[device]) + nldev.pack(RESOURCE, QP)
                for answer in nldev.dump(connection, _GET, body):
                    found += (counts for counts in _read(answer, device) if (device, counts.port) in ports)
        return found[:MOST_COUNTERS]

    def close(self) -> None:
        """Switch off the counters that were switched on here."""
        if not self._ports:
            return
        try:
            with closing(self._connect()) as connection:
                for (_, port), index in self._ports.items():
                    request = _request(index, port) + nldev.pack(MODE, _AUTO)
                    nldev.request(connection, _SET, request + nldev.pack(MASK, 0))
        except OSError as error:
            log.warning("counters of queue pairs stay on: %s; see rdma statistic qp mode", error.strerror or error)
        self._ports.clear()

    def _switch_on(self, connection: nldev.Socket, port: tuple[str, int], index: int) -> None:
        request = _request(index, port[1])
        try:
            [state] = nldev.request(connection, _GET, request + nldev.pack(MODE, _NONE)) or [{}]
            if nldev.number(state, MODE) not in (None, _NONE):
                raise OSError(errno.EBUSY, "another program has switched them on; its counters are shown")
            nldev.request(connection, _SET, request + nldev.pack(MODE, _AUTO) + nldev.pack(MASK, self._mask))
            self._ports[port] = index
        except OSError as error:
            self._refused.add(port)
            log.warning("counters of queue pairs were not switched on: %s port %d: %s", *port, error.strerror)


def _request(index: int, port: int) -> bytes:
    return nldev.pack(_DEVICE_INDEX, index) + nldev.pack(_PORT, port) + nldev.pack(RESOURCE, QP)


def _indexes(connection: nldev.Socket) -> dict[str, int]:
    """Return the kernel's index of each device by name."""
    found: dict[str, int] = {}
    for device in nldev.dump(connection, _GET_DEVICES, b""):
        index = nldev.number(device, _DEVICE_INDEX)
        if index is not None:
            found[_text(device.get(_DEVICE_NAME, b""))] = index
    return found


def _read(answer: nldev.Attributes, device: str) -> Iterator[QpCounts]:
    for kind, entry in nldev.unpack(answer.get(COUNTERS, b"")):
        if kind != COUNTER:
            continue
        fields = dict(nldev.unpack(entry))
        qp_type = nldev.number(fields, QP_TYPE)
        yield QpCounts(
            device,
            nldev.number(fields, _PORT) or 0,
            nldev.number(fields, PID) or 0,
            "" if qp_type is None else _TYPES.get(qp_type, str(qp_type)),
            dict(_values(fields.get(VALUES, b""))),
        )


def _values(entries: bytes) -> Iterator[tuple[str, int]]:
    for kind, entry in nldev.unpack(entries):
        fields = dict(nldev.unpack(entry))
        if kind == VALUE and NAME in fields and NUMBER in fields:
            yield _text(fields[NAME]), int.from_bytes(fields[NUMBER], sys.byteorder)


def _text(data: bytes) -> str:
    text = data.rstrip(b"\0").decode("utf-8", "replace")
    return "".join(character for character in text[:128] if character.isprintable())
