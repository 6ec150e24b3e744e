"""Fields of HTTP/2's requests and answers, decoded from the blocks that the kernel's programs copied (RFC 7541).

A block may refer to any earlier one of its connection, so all of them are decoded, in their order. One that was lost,
cut or came before the exporter leaves a gap: what refers to fields before it is not known, and nothing else. The tables
count from the newest field, so those of later blocks are at their places nevertheless.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from hpack import Decoder, HPACKError
from hpack.table import HeaderTable

from exporter.serving.answer import LONGEST_FIELD

REQUEST_FIELDS, ANSWER_FIELDS, CONNECTION_ENDED = 1, 2, 3
"""Values of enum kind of bpf/serving/serving.h."""
MOST_CONNECTIONS = 4096
"""As many as the kernel's programs follow."""
MOST_ENTRIES = 1 << 18
"""Fields in the tables of all connections: about 50 MB. Beyond this connections with the oldest blocks have none."""
MOST_STREAMS = 512
"""Streams of a connection that have fields and no end: the kernel's programs follow half as many."""
LARGEST_TABLE = 16_384
_UNKNOWN = b""
_KEPT = {
    b":method": "method",
    b":path": "path",
    b":status": "status",
    b"content-type": "content_type",
    b"content-encoding": "encoding",
    b"grpc-status": "grpc_status",
    b"traceparent": "traceparent",
}


class FieldBlock(Protocol):
    """struct fields of bpf/serving/http2.h."""

    kind: int
    stream: int
    connection: int
    order: int
    size: int
    cut: int
    block: bytes


@dataclass(slots=True)
class Fields:
    """Header fields of a request and of its response, empty where absent or unknown."""

    method: bytes = b""
    path: bytes = b""
    status: bytes = b""
    content_type: bytes = b""
    encoding: bytes = b""
    grpc_status: bytes = b""
    traceparent: bytes = b""


class _Table(HeaderTable):
    """The table of one direction, which begins in the middle: fields before that have no name and no value."""

    def get_by_index(self, index: int) -> tuple[bytes, bytes]:
        if index > self.STATIC_TABLE_LENGTH + len(self.dynamic_entries):
            return _UNKNOWN, _UNKNOWN
        return super().get_by_index(index)

    @property
    def maxsize(self) -> int:
        return self._maxsize

    @maxsize.setter
    def maxsize(self, size: int) -> None:
        HeaderTable.maxsize.fset(self, min(size, LARGEST_TABLE))  # type: ignore[attr-defined]


class _Direction:
    """The blocks that one side of a connection sends."""

    def __init__(self) -> None:
        self._next = 0
        self._decoder = self._new()

    @property
    def entries(self) -> int:
        return len(self._decoder.header_table.dynamic_entries)

    def decode(self, block: FieldBlock, raw: bytes) -> list[tuple[bytes, bytes]]:
        """Return the fields of the next block, as far as they are known."""
        if block.order != self._next:
            self._decoder = self._new()
        self._next = block.order + 1
        try:
            if not block.cut:
                return [(bytes(name), bytes(value)) for name, value in self._decoder.decode(raw, raw=True)]
        except (HPACKError, IndexError, ValueError):
            pass  # whatever a stranger sent
        self._decoder = self._new()
        return []

    @staticmethod
    def _new() -> Decoder:
        decoder = Decoder()
        decoder.header_table = _Table()
        decoder.max_allowed_table_size = 1 << 31
        return decoder


class _Connection:
    def __init__(self) -> None:
        self.request, self.answer = _Direction(), _Direction()
        self.streams: OrderedDict[int, Fields] = OrderedDict()
        self.entries = 0
        """In the tables of both directions, when they were counted last."""


class Streams:
    """The fields of streams that have not ended, by connection. One thread at a time."""

    def __init__(self) -> None:
        self._connections: OrderedDict[int, _Connection] = OrderedDict()
        self._entries = 0

    def take(self, block: FieldBlock) -> None:
        """Decode a block, or forget the connection of which it is the end."""
        if block.kind == CONNECTION_ENDED:
            ended = self._connections.pop(block.connection, None)
            self._entries -= ended.entries if ended else 0
            return
        connection = self._connections.setdefault(block.connection, _Connection())
        self._connections.move_to_end(block.connection)
        direction = connection.request if block.kind == REQUEST_FIELDS else connection.answer
        decoded = direction.decode(block, _raw(block))
        if block.stream:
            fields = connection.streams.setdefault(block.stream, Fields())
            _keep(fields, decoded, block.kind)
        if len(connection.streams) > MOST_STREAMS:
            connection.streams.popitem(last=False)
        self._bound(connection)

    def _bound(self, newest: _Connection) -> None:
        """Forget the connections without blocks for longest, if there are too many or if they have too many fields."""
        entries = newest.request.entries + newest.answer.entries
        self._entries += entries - newest.entries
        newest.entries = entries
        while len(self._connections) > MOST_CONNECTIONS or self._entries > MOST_ENTRIES:
            _, oldest = self._connections.popitem(last=False)
            self._entries -= oldest.entries

    def pop(self, connection: int, stream: int) -> Fields | None:
        """Return the fields of a stream that has ended; None where there are none."""
        found = self._connections.get(connection)
        return found.streams.pop(stream, None) if found else None


def _keep(fields: Fields, decoded: list[tuple[bytes, bytes]], kind: int) -> None:
    for name, value in decoded:
        kept = _KEPT.get(name)
        of_request = kept in ("method", "path", "traceparent")
        if kept and of_request is (kind == REQUEST_FIELDS):
            if (of_request or kept in ("content_type", "encoding")) and getattr(fields, kept):
                continue  # trailers change nothing
            setattr(fields, kept, value[:LONGEST_FIELD])


def _raw(block: FieldBlock) -> bytes:
    field = type(block).block
    return bytes(block)[field.offset : field.offset + block.size]  # type: ignore[attr-defined, call-overload, no-any-return]
