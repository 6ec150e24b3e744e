"""Publication of a resource in the memory of this process, like that of an OpenTelemetry SDK (OTEP 4719)."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from exporter.resolve.process_context import HEADER, SIGNATURE, VERSION

_KINDS = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value", bytes: "bytes_value"}


def resource(attributes: Mapping[str, Any]) -> bytes:
    """The message Resource with these attributes."""
    pairs = [KeyValue(key=key, value=AnyValue(**{_KINDS[type(it)]: it})) for key, it in attributes.items()]
    return Resource(attributes=pairs).SerializeToString()


def process_context(attributes: Mapping[str, Any], **more: Any) -> bytes:
    """The message ProcessContext with this resource, and with `more` in its own attributes."""
    return field(1, resource(attributes)) + b"".join(field(2, resource({key: it})[2:]) for key, it in more.items())


def field(number: int, content: bytes) -> bytes:
    """A field of Protocol Buffers' wire format with bytes."""
    length, size = len(content), bytearray()
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + content


class Published:
    """A header and its payload in the memory of this process."""

    def __init__(self, payload: bytes) -> None:
        descriptor = os.memfd_create("OTEL_CTX", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, mmap.PAGESIZE)
        self.header = mmap.mmap(descriptor, mmap.PAGESIZE, mmap.MAP_SHARED)
        os.close(descriptor)
        self.payload = mmap.mmap(-1, max(len(payload), 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.payload[: len(payload)] = payload
        self.size = len(payload)
        self.write()

    def write(self, **changed: Any) -> None:
        """Write the header with these fields in place of the right ones."""
        fields = {"signature": SIGNATURE, "version": VERSION, "size": self.size, "published": 5}
        fields |= {"payload": address(self.payload)} | changed
        self.header[: HEADER.size] = HEADER.pack(*fields.values())


def address(mapping: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))
