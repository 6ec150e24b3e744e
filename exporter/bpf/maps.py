"""BPF maps: read in batches where the kernel can, with the types their C declarations gave them."""

from __future__ import annotations

import ctypes
import errno
import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from exporter.bpf.btf import CType
from exporter.bpf.native import BpfError, check, failure, library
from exporter.bpf.percpu import Combiner
from exporter.model import Kind, Metric

MAP_FULL = Metric(
    "accel_exporter.map.full",
    "Keys that a BPF map had no room for: what belongs to them is not counted.",
    Kind.COUNTER,
    labels=("map",),
)
RINGBUF = 27
_PER_CPU = {5, 6, 10}  # PERCPU_HASH, PERCPU_ARRAY, LRU_PERCPU_HASH (enum bpf_map_type)
_BATCH_BYTES = 1 << 20
_NO_BATCH = {errno.EINVAL, errno.EOPNOTSUPP, 524}  # 524 is the kernel's own ENOTSUPP


class Map:
    """One BPF map of a loaded object. Keys and values that are plain integers in C are int; structs are ctypes objects.

    A per-CPU value is already one value: every field added up over the CPUs, but the greatest of `last_…` fields.
    """

    def __init__(
        self, name: str, fd: int, kind: int, max_entries: int, key: CType, value: CType, lost: Callable[[], int | None]
    ) -> None:
        self.name, self.fd, self.kind, self.max_entries = name, fd, kind, max_entries
        self.key, self.value, self.lost = key, value, lost
        """`lost()` is how many keys or records the programs found no room for; None if it was not declared to count."""
        self._lock = threading.Lock()
        self._copies = library().libbpf_num_possible_cpus() if kind in _PER_CPU else 1
        size = ctypes.sizeof(value)
        self._row = -(-size // 8) * 8 * self._copies if kind in _PER_CPU else size  # each CPU's copy is padded to 8

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Every key once, with its value, as of now. BpfError if the object is closed."""
        with self._lock:
            try:
                rows = list(self._batches())
            except BpfError as error:
                if error.errno not in _NO_BATCH:
                    raise
                rows = list(self._one_by_one())
        return iter(rows)

    def get(self, key: Any) -> Any | None:
        """The value of a key, or None if the map has no such key."""
        with self._lock:
            return self._lookup(self._as(self.key, key))

    def set(self, key: Any, value: Any) -> None:
        """Writes one key; in a per-CPU map the first CPU's copy gets the value, the others zero."""
        raw = ctypes.create_string_buffer(bytes(self._as(self.value, value)), self._row)
        with self._lock:
            result = library().bpf_map_update_elem(self.fd, ctypes.byref(self._as(self.key, key)), raw, 0)
        check(result, f"write map {self.name}")

    def delete(self, key: Any) -> bool:
        """Removes a key; False if there was none."""
        with self._lock:
            result = library().bpf_map_delete_elem(self.fd, ctypes.byref(self._as(self.key, key)))
        if result == -errno.ENOENT:
            return False
        return check(result, f"delete from map {self.name}") == 0

    def close(self) -> None:
        """Waits for readers of other threads; afterwards every call fails instead of reading a reused descriptor."""
        with self._lock:
            self.fd = -1

    @cached_property
    def _combine(self) -> Combiner:
        return Combiner(self.value, self._copies)

    def _as(self, ctype: CType, value: Any) -> Any:
        return value if isinstance(value, ctype) else ctype(value)

    def _lookup(self, key: Any) -> Any | None:
        raw = ctypes.create_string_buffer(self._row)
        result = library().bpf_map_lookup_elem(self.fd, ctypes.byref(key), raw)
        if result == -errno.ENOENT:
            return None
        check(result, f"read map {self.name}")
        return self._value(raw, 0)

    def _value(self, raw: ctypes.Array[ctypes.c_char], at: int) -> Any:
        if self.kind in _PER_CPU:
            return _plain(self._combine(memoryview(raw).cast("B")[at : at + self._row]))
        return _plain(self.value.from_buffer_copy(raw, at))

    def _batches(self) -> Iterator[tuple[Any, Any]]:
        key_size = ctypes.sizeof(self.key)
        room = max(16, min(self.max_entries, _BATCH_BYTES // (key_size + self._row)))
        here, following = None, ctypes.create_string_buffer(max(key_size, 4))
        more = True
        while more:
            keys, values = ctypes.create_string_buffer(room * key_size), ctypes.create_string_buffer(room * self._row)
            count = ctypes.c_uint32(room)
            result = library().bpf_map_lookup_batch(self.fd, here, following, keys, values, ctypes.byref(count), None)
            if (
                result == -errno.ENOSPC and room <= self.max_entries
            ):  # one hash bucket holds more than there is room for
                room *= 2
                continue
            more = result != -errno.ENOENT
            if result < 0 and more:
                raise failure(-result, f"read map {self.name}")
            for i in range(count.value):
                yield _plain(self.key.from_buffer_copy(keys, i * key_size)), self._value(values, i * self._row)
            here = ctypes.create_string_buffer(following.raw, len(following))

    def _one_by_one(self) -> Iterator[tuple[Any, Any]]:
        """Without batches. A key deleted under our feet makes the kernel start over: skip what was seen, and end."""
        seen: set[bytes] = set()
        here: Any = None
        for _ in range(4 * self.max_entries):
            following = self.key()
            result = library().bpf_map_get_next_key(self.fd, here, ctypes.byref(following))
            if result == -errno.ENOENT:
                return
            check(result, f"read map {self.name}")
            here = ctypes.byref(following)
            if bytes(following) in seen:
                continue
            seen.add(bytes(following))
            value = self._lookup(following)
            if value is not None:
                yield _plain(following), value


def _plain(value: Any) -> Any:
    """An int for a plain integer; ctypes structs and arrays as they are."""
    return value.value if isinstance(value, ctypes._SimpleCData) else value
