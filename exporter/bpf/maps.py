"""BPF maps: read in batches where the kernel can, with the types their C declarations gave them."""

from __future__ import annotations

import ctypes
import errno
import struct
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, cached_property
from operator import add
from typing import Any

from exporter.bpf.btf import CType
from exporter.bpf.native import BpfError, check, failure, library
from exporter.bpf.percpu import Combiner
from exporter.bpf.rows import field_format, tgid_at, unpacker
from exporter.model import Kind, Metric

MAP_FULL = Metric(
    "accel_exporter.map.full",
    "Keys for which a BPF map had no room. Their events are not counted.",
    Kind.COUNTER,
    labels=("map",),
)
RINGBUF = 27
_PER_CPU = {5, 6, 10}  # PERCPU_HASH, PERCPU_ARRAY, LRU_PERCPU_HASH (enum bpf_map_type)
_NEVER_FULL = {2, 3, 6, RINGBUF}  # ARRAY, PROG_ARRAY, PERCPU_ARRAY; a ring buffer loses records, not keys
_FIRST_BATCH_BYTES, _BATCH_BYTES = 1 << 14, 1 << 20
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
        self._key_at = _reader(key)

    @property
    def can_be_full(self) -> bool:
        """Return whether the map may have no room for a key."""
        return self.kind not in _NEVER_FULL

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Every key once, with its value, as of now. BpfError if the object is closed."""
        with self._lock:
            try:
                rows = [self._row_at(keys, values, i) for keys, values, count in self.batches() for i in range(count)]
            except BpfError as error:
                if error.errno not in _NO_BATCH:
                    raise
                rows = list(self.one_by_one())
        return iter(rows)

    def sums(self, by: str = "", of: str = "") -> Counter[int]:
        """The integer field `of` of all values, added up by the field `by` of their keys: cheaper than `items`.

        Without a name the key or value is an integer itself.
        """
        sums = Counter[int]()
        key, value = field_format(self.key, by), field_format(self.value, of, self._row // self._copies) * self._copies
        keys_of, values_of = struct.Struct(f"={key}"), struct.Struct(f"={value}")
        with self._lock:
            try:
                for keys, values, count in self.batches():
                    added = values_of.iter_unpack(memoryview(values)[: count * self._row])
                    for (at,), copies in zip(
                        keys_of.iter_unpack(memoryview(keys)[: count * keys_of.size]), added, strict=True
                    ):
                        sums[at] += sum(copies)
            except BpfError as error:
                if error.errno not in _NO_BATCH:
                    raise
                for one, it in self.one_by_one():
                    sums[getattr(one, by) if by else one] += getattr(it, of) if of else it
        return sums

    def rows(self, of_key: Sequence[str], of_value: Sequence[str]) -> Iterator[tuple[int, ...]]:
        """Fields of every key and its value, as of now, as Map.items has them; not of a per-CPU map. BpfError."""
        if self.kind in _PER_CPU:
            raise TypeError(f"map {self.name} has rows for each processor")
        keys, values = unpacker(self.key, of_key), unpacker(self.value, of_value)
        with self._lock:
            found: list[tuple[Any, Any, int]]
            try:
                found = list(self.batches())
            except BpfError as error:
                if error.errno not in _NO_BATCH:
                    raise
                found = [(bytes(key), bytes(value), 1) for key, value in self.one_by_one()]
        for raw_keys, raw_values, count in found:
            first = keys.iter_unpack(memoryview(raw_keys)[: count * keys.size])
            yield from map(add, first, values.iter_unpack(memoryview(raw_values)[: count * values.size]))

    def take(self, pids: Collection[int]) -> list[tuple[Any, Any]]:
        """Removes the rows of these processes, with their `tgid` in the key or as the key, and returns them.

        One walk over the map for any number of processes; of other rows only the pid is looked at. A row is read by the
        call that removes it: what a process that runs on (exec) counts meanwhile is in it, or in its next row. Only a
        program that has just looked the row up adds in vain.
        """
        with self._lock:
            try:
                keys = list(self._keys_of(pids))
            except BpfError as error:
                if error.errno not in _NO_BATCH:
                    raise
                raw = [self._raw(key) for key, _ in self.one_by_one()]
                keys = [key for key in raw if self._pids.unpack(key)[0] in pids]
            return [row for row in map(self._take_one, keys) if row]

    def remove(self, keys: Collection[Any]) -> None:
        """Deletes many keys; that one of them is gone is no error."""
        with self._lock:
            self._remove([self._raw(key) for key in keys])

    def get(self, key: Any) -> Any | None:
        """The value of a key, or None if the map has no such key."""
        with self._lock:
            return self._lookup(self._as(self.key, key))

    def set(self, key: Any, value: Any) -> None:
        """Writes one key; in a per-CPU map the first CPU's copy gets the value, the others zero."""
        raw = bytes(self._as(self.value, value)).ljust(self._row, b"\0")
        with self._lock:
            result = library().bpf_map_update_elem(self.fd, ctypes.byref(self._as(self.key, key)), raw, 0)
        check(result, f"write map {self.name}")

    def fill(self, keys: Collection[Any], value: Any) -> None:
        """Writes many keys, all with one value, not in a per-CPU map; BpfError where one of them cannot be."""
        rows, one = b"".join(map(self._raw, keys)), bytes(self._as(self.value, value))
        count = ctypes.c_uint32(len(keys))
        with self._lock:
            result = library().bpf_map_update_batch(self.fd, rows, one * len(keys), ctypes.byref(count), None)
        if -result in _NO_BATCH:
            for key in keys:
                self.set(key, value)
        else:
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
    def _found(self) -> ctypes.Array[ctypes.c_char]:
        """Return where looked-up values are put, under the lock."""
        return _buffer(self._row)()

    @cached_property
    def _value_at(self) -> Callable[[Any, int], Any]:
        """Reads a value from its place among raw ones."""
        if self.kind not in _PER_CPU:
            return _reader(self.value)
        combine, size, plain = (
            Combiner(self.value, self._copies),
            self._row,
            issubclass(self.value, ctypes._SimpleCData),
        )

        def combined(raw: Any, at: int) -> Any:
            value = combine(memoryview(raw).cast("B")[at : at + size])
            return value.value if plain else value

        return combined

    @cached_property
    def _pids(self) -> struct.Struct:
        """Finds the pid in a raw key."""
        size, at = ctypes.sizeof(self.key), tgid_at(self.key)
        if at is None:
            raise TypeError(f"keys of map {self.name} name no process")
        return struct.Struct(f"={at}xI{size - at - 4}x")

    def _raw(self, key: Any) -> bytes:
        return bytes(self._as(self.key, key))

    def _keys_of(self, pids: Collection[int]) -> Iterator[bytes]:
        """The raw keys of the rows of these processes."""
        size = self._pids.size
        for keys, _, count in self.batches():
            raw = memoryview(keys)[: count * size]
            for i, (pid,) in enumerate(self._pids.iter_unpack(raw)):
                if pid in pids:
                    yield bytes(raw[i * size : (i + 1) * size])

    def _take_one(self, key: bytes) -> tuple[Any, Any] | None:
        result = library().bpf_map_lookup_and_delete_elem(self.fd, key, self._found)
        if result == -errno.ENOENT:
            return None
        check(result, f"take from map {self.name}")
        return self._key_at(key, 0), self._value_at(self._found, 0)

    def _row_at(self, keys: ctypes.Array[ctypes.c_char], values: ctypes.Array[ctypes.c_char], i: int) -> Any:
        return self._key_at(keys, i * ctypes.sizeof(self.key)), self._value_at(values, i * self._row)

    def _remove(self, keys: list[bytes]) -> None:
        """Deletes many keys; that one of them is gone is no error."""
        while keys:
            count = ctypes.c_uint32(len(keys))
            result = library().bpf_map_delete_batch(self.fd, b"".join(keys), ctypes.byref(count), None)
            if -result in _NO_BATCH:
                count.value, result = 0, library().bpf_map_delete_elem(self.fd, keys[0])
            if result != -errno.ENOENT:  # which ends a batch at the key that was gone
                check(result, f"delete from map {self.name}")
            keys = keys[count.value + 1 :]

    def _as(self, ctype: CType, value: Any) -> Any:
        return value if isinstance(value, ctype) else ctype(value)

    def _lookup(self, key: Any) -> Any | None:
        result = library().bpf_map_lookup_elem(self.fd, ctypes.byref(key), self._found)
        if result == -errno.ENOENT:
            return None
        check(result, f"read map {self.name}")
        return self._value_at(self._found, 0)

    def batches(self) -> Iterator[tuple[ctypes.Array[ctypes.c_char], ctypes.Array[ctypes.c_char], int]]:
        """Raw keys, raw values and the number of them, batch by batch."""
        key_size = ctypes.sizeof(self.key)
        most = max(16, min(self.max_entries, _BATCH_BYTES // (key_size + self._row)))
        room = max(16, min(self.max_entries, _FIRST_BATCH_BYTES // (key_size + self._row)))  # most maps hold little
        here, following = None, _buffer(max(key_size, 4))()
        more = True
        while more:
            keys, values = _buffer(room * key_size)(), _buffer(room * self._row)()
            count = ctypes.c_uint32(room)
            result = library().bpf_map_lookup_batch(self.fd, here, following, keys, values, ctypes.byref(count), None)
            # One hash bucket may hold more than there is room for.
            if result == -errno.ENOSPC and room <= self.max_entries:
                room *= 2
                continue
            more = result != -errno.ENOENT
            if result < 0 and more:
                raise failure(-result, f"read map {self.name}")
            yield keys, values, count.value
            here = _buffer(len(following)).from_buffer_copy(following)
            room = max(room, min(4 * room, most))

    def one_by_one(self) -> Iterator[tuple[Any, Any]]:
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
                yield self._key_at(following, 0), value


@cache
def _buffer(size: int) -> type[ctypes.Array[ctypes.c_char]]:
    """The type of a buffer, kept because making one takes longer than reading most maps."""
    return ctypes.c_char * size


def _reader(ctype: CType) -> Callable[[Any, int], Any]:
    """Reads a value of this type from its place in a buffer: an int for a plain integer, else a ctypes object."""
    copy = ctype.from_buffer_copy
    return (lambda raw, at: copy(raw, at).value) if issubclass(ctype, ctypes._SimpleCData) else copy
