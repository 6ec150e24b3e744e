"""Compiled BPF objects: open, set, load, attach, close. Nothing here knows what a probe counts."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

from exporter.bpf import multi as multi_link
from exporter.bpf import sessions, sizing
from exporter.bpf.btf import Btf, CType, Variable
from exporter.bpf.events import Events
from exporter.bpf.maps import RINGBUF, Map
from exporter.bpf.native import BpfError, TestRunOptions, check, library, require_descriptors
from exporter.bpf.stale import Named, StaleObject, remedy, stale

__all__ = ["BpfError", "Events", "Link", "Map", "Object", "Program", "run_time_statistics"]

_UPROBES = ("uprobe", "uretprobe")
_AT_RETURN = "uretprobe/session"
"""Section of AT_RETURN() programs (bpf/returns.bpf.h)."""
_RUN_TIME = 0  # BPF_STATS_RUN_TIME
_BESIDES = 8
"""Descriptors of an object besides its maps and programs: types, and what waits for events."""


class Link:
    """Something attached, until closed. Closing twice is harmless."""

    def __init__(self, close: Callable[[], object]) -> None:
        self._close: Callable[[], object] | None = close

    def close(self) -> None:
        close, self._close = self._close, None
        if close:
            close()


class _ProgramInfo(ctypes.Structure):
    """The part of the kernel's struct bpf_prog_info up to what is read, which Linux has since 5.1."""

    _fields_ = (("before", ctypes.c_char * 192), ("run_time_ns", ctypes.c_uint64), ("run_cnt", ctypes.c_uint64))


class Program:
    """One program of a loaded object."""

    def __init__(self, handle: int, name: str, section: str, multi: bool, session: bool = False) -> None:
        self.handle, self.name, self.section = handle, name, section
        self.multi = multi
        """Loaded for multi-uprobe links; the kernel refuses to attach such a program any other way."""
        self.session = session
        """Loaded for links that also run it at calls, to choose which returns are probed (bpf/returns.bpf.h)."""
        self.fd: int = library().bpf_program__fd(handle)

    def attach(self) -> Link:
        """Attaches to what its SEC() names, a tracepoint or a kernel function. For uprobes see uprobe.attach."""
        bpf = library()
        bpf.forget_messages()
        link = bpf.bpf_program__attach(self.handle)
        check(link, f"attach {self.name} ({self.section})", bpf.messages)
        return Link(lambda: bpf.bpf_link__destroy(link))

    def run(self, context: bytes = b"") -> int:
        """Runs a SEC("syscall") program once with this context and gives what it returned."""
        size = ctypes.sizeof(TestRunOptions)
        copy = ctypes.create_string_buffer(context, len(context)) if context else None
        options = TestRunOptions(sz=size, ctx_in=ctypes.addressof(copy) if copy else None, ctx_size_in=len(context))
        check(library().bpf_prog_test_run_opts(self.fd, ctypes.byref(options)), f"run {self.name}")
        return ctypes.c_int32(options.retval).value

    def stats(self) -> tuple[int, int]:
        """Nanoseconds spent in the program and runs counted, while run_time_statistics() or its sysctl was on."""
        info, size = _ProgramInfo(), ctypes.c_uint32(ctypes.sizeof(_ProgramInfo))
        check(library().bpf_obj_get_info_by_fd(self.fd, ctypes.byref(info), ctypes.byref(size)), f"read {self.name}")
        return info.run_time_ns, info.run_cnt


def lacks_tracepoint(error: BpfError) -> bool:
    """Return whether an object failed to load because the kernel has no such tracepoint: it is older."""
    return error.errno == errno.ESRCH and "failed to find kernel BTF type ID" in str(error)


class Object:
    """A compiled BPF object, loaded into the kernel; a context manager.

    `constants` set its `const volatile` variables, `entries` the sizes of its maps, both by name; LRU maps get more
    rows where there are many processors (exporter.bpf.sizing). `shared` are maps of another object that stand in
    place of those with these names; programs `without` are not loaded. Uprobe programs are loaded for multi-uprobe
    links where the kernel has them, unless `multi` forbids or demands it. BpfError on any failure, with nothing
    left behind.
    """

    types: Btf
    """The C types of the object: types.struct("name") and types.enum("name")."""

    def __init__(
        self,
        path: Path,
        *,
        constants: Mapping[str, int] = MappingProxyType({}),
        entries: Mapping[str, int] = MappingProxyType({}),
        multi: bool | None = None,
        shared: Mapping[str, Map] = MappingProxyType({}),
        without: Collection[str] = (),
    ) -> None:
        self._bpf, self._path, self._handle = library(), path, 0
        self.without = without
        self._multi = multi_link.supported() if multi is None else multi
        self._sessions = sessions.places() if self._multi else {}
        self.maps = Named[Map](path.name, "map")
        self.programs = Named[Program](path.name, "program")
        self._globals: dict[str, Variable] = {}
        self._data: Map | None = None
        try:
            self._bpf.forget_messages()
            self._load(constants, entries, shared)
        except StaleObject:
            self.close()
            raise
        except (ValueError, TypeError, KeyError) as error:
            self.close()
            raise BpfError(errno.EINVAL, f"load {path}: {error.args[0]}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees maps and programs. Close links first; readers in other threads get BpfError from then on."""
        for one in (*self.maps.values(), *([self._data] if self._data else [])):
            one.close()
        for program in self.programs.values():
            program.fd = -1
        handle, self._handle = self._handle, 0
        if handle:
            self._bpf.bpf_object__close(handle)

    def globals(self) -> dict[str, int]:
        """The object's global integers that start at zero, by name, as they are now: what it counts apart from maps."""
        data = bytes(self._data.get(0) or b"") if self._data else b""
        return {
            name: int.from_bytes(data[at.offset : at.offset + at.size], "little")
            for name, at in self._globals.items()
            if at.size <= 8
        }

    def _load(self, constants: Mapping[str, int], entries: Mapping[str, int], shared: Mapping[str, Map]) -> None:
        bpf, path = self._bpf, self._path
        if not path.is_file():
            raise BpfError(errno.ENOENT, f"open {path}: no such object; {remedy()}")
        self._handle = bpf.bpf_object__open_file(os.fsencode(path), None)
        check(self._handle, f"open {path}", bpf.messages)
        self.types = self._read_types()
        maps, programs = self._each("map"), self._each("program")
        if not self._sessions.keys() <= self.types.variables(".rodata").keys():
            self._sessions = {}  # made without bpf/returns.bpf.h
        self._set_constants(maps, {**constants, **self._sessions})
        for name, count in entries.items():
            if name not in maps:
                raise stale(path.name, f"map {name} to size")
            check(bpf.bpf_map__set_max_entries(maps[name], count), f"size map {name} of {path} to {count}")
        self._size_by_processors(maps)
        for name, other in shared.items():
            if name not in maps:
                raise stale(path.name, f"map {name} to share")
            check(bpf.bpf_map__reuse_fd(maps[name], other.fd), f"share map {name} with {path}")
        for handle in maps.values():
            if bpf.bpf_map__type(handle) == RINGBUF:
                bpf.bpf_map__set_value_size(handle, 0)  # EVENTS() gave the record's, for Python only
        for name in self.without:
            if name not in programs:
                raise stale(path.name, f"program {name} to leave out")
            check(bpf.bpf_program__set_autoload(programs.pop(name), False), f"leave {name} of {path} out")
        for handle in programs.values() if self._multi else ():
            if self._section(handle).startswith(_UPROBES):
                kind = multi_link.SESSION if self._in_session(handle) else multi_link.ATTACH_TYPE
                bpf.bpf_program__set_expected_attach_type(handle, kind)
        require_descriptors(len(maps) + len(programs) + _BESIDES, f"load {path}")
        check(bpf.bpf_object__load(self._handle), f"load {path}", bpf.messages)
        self._take_maps(maps)
        for name, handle in programs.items():
            section = self._section(handle)
            multi = self._multi and section.startswith(_UPROBES)
            self.programs[name] = Program(handle, name, section, multi, self._in_session(handle))

    def _size_by_processors(self, maps: Mapping[str, int]) -> None:
        bpf = self._bpf
        processors = check(bpf.libbpf_num_possible_cpus(), "count the possible processors")
        for name, handle in maps.items():
            declared = bpf.bpf_map__max_entries(handle)
            count = sizing.entries(bpf.bpf_map__type(handle), declared, processors)
            if count != declared:
                check(bpf.bpf_map__set_max_entries(handle, count), f"size map {name} of {self._path} to {count}")

    def _each(self, thing: str) -> dict[str, int]:
        """libbpf's handles of all maps or programs by name."""
        following, named = getattr(self._bpf, f"bpf_object__next_{thing}"), getattr(self._bpf, f"bpf_{thing}__name")
        handles: dict[str, int] = {}
        handle = following(self._handle, None)
        while handle:
            handles[named(handle).decode()] = handle
            handle = following(self._handle, handle)
        return handles

    def _section(self, program: int) -> str:
        name: bytes = self._bpf.bpf_program__section_name(program)
        return name.decode()

    def _in_session(self, program: int) -> bool:
        return bool(self._sessions) and self._section(program) == _AT_RETURN

    def _read_types(self) -> Btf:
        size = ctypes.c_uint32()
        btf = self._bpf.bpf_object__btf(self._handle)
        raw = self._bpf.btf__raw_data(btf, ctypes.byref(size)) if btf else None
        if not raw:
            raise ValueError("it carries no BTF: compile it with -g and do not strip that")
        return Btf(ctypes.string_at(raw, size.value), self._path.name)

    def _set_constants(self, maps: Mapping[str, int], constants: Mapping[str, int]) -> None:
        if not constants:
            return
        variables, size = self.types.variables(".rodata"), ctypes.c_size_t()
        data = next((handle for name, handle in maps.items() if name.endswith(".rodata")), None)
        start = self._bpf.bpf_map__initial_value(data, ctypes.byref(size)) if data else 0
        for name, number in constants.items():
            if name not in variables or not start:
                raise stale(self._path.name, f"constant {name} to set")
            at = variables[name]
            ctype = self.types.ctype(at.type)
            if not issubclass(ctype, ctypes._SimpleCData) or ctype(number).value != number:
                raise ValueError(f"constant {name} cannot be {number}")
            ctypes.memmove(start + at.offset, bytes(ctype(number)), at.size)

    def _take_maps(self, handles: Mapping[str, int]) -> None:
        for name, variable in self.types.variables(".maps").items():
            members = self.types.members(variable.type)
            key, value = (
                self.types.ctype(self.types.pointee(members[part])) if part in members else ctypes.c_uint32
                for part in ("key", "value")
            )
            self.maps[name] = self._map(handles[name], name, key, value)
        self._globals = self.types.variables(".bss")
        if self._globals:
            [(name, handle)] = [(name, handle) for name, handle in handles.items() if name.endswith(".bss")]
            size: int = self._bpf.bpf_map__value_size(handle)
            self._data = self._map(handle, name, ctypes.c_uint32, ctypes.c_uint8 * size)

    def _map(self, handle: int, name: str, key: CType, value: CType) -> Map:
        bpf = self._bpf
        fd, kind, entries = bpf.bpf_map__fd(handle), bpf.bpf_map__type(handle), bpf.bpf_map__max_entries(handle)
        return Map(name, fd, kind, entries, key, value, lambda: self.globals().get(f"{name}_lost"))


def run_time_statistics() -> Link:
    """Makes the kernel measure every BPF program (Program.stats) until closed, for two clock reads a run. BpfError."""
    descriptor = check(library().bpf_enable_stats(_RUN_TIME), "switch on BPF run time statistics")
    return Link(lambda: os.close(descriptor))
