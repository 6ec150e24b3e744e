"""One observed process, as the child that unwinds sees it: its mapped code, and its Python interpreter."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from exporter.stacks import interpreter
from exporter.stacks.files import CodeFile, is_interpreter
from exporter.stacks.interpreter import FIRST_VERSION, InterpreterLayout, UnknownInterpreter
from exporter.stacks.libdw import UnwindRule
from exporter.stacks.memory import Memory, Unreadable
from exporter.stacks.perf_map import PerfMap
from exporter.stacks.python_code import PythonCode
from exporter.stacks.unwind import ModuleOffset, NativeFrame

_SYMBOLS = ("_PyRuntime", "Py_Version", "PyCode_Type", "PyExc_EncodingWarning")
"""The last one is in CPython 3.10 and newer, Py_Version in 3.11 and newer."""
_SECTION = ".PyRuntime"


class MappedModule(NamedTuple):
    """One executable mapping; `offset` is that of its start in the file of the number `file`."""

    start: int
    end: int
    offset: int
    file: int


class Python(NamedTuple):
    """The interpreter of a process: `runtime` is the address of _PyRuntime, `file` the number of its file; `embedded`:
    that is another program than Python.
    """

    runtime: int
    layout: InterpreterLayout
    file: int
    embedded: bool


class ProcessCode:
    """The code of one process. `files` are those of all processes by number; nothing here closes them."""

    def __init__(self, memory: Memory, files: Mapping[int, CodeFile]) -> None:
        self.memory, self._files = memory, files
        self._mappings: Sequence[MappedModule] = ()
        self._starts: list[int] = []
        self._looked_at: set[MappedModule] = set()
        self._batch = 0
        self._unlike: set[MappedModule] = set()
        """Mappings with another begin than their file, which the process has written to."""
        self.python: Python | None = None
        self.names: PythonCode | None = None
        self.made = PerfMap()
        """Names of code that no file has."""
        self.problem = ""
        """Why its interpreter's frames cannot be read, if it has one."""

    def update(self, mappings: Sequence[MappedModule]) -> None:
        """Take the mappings as they are now, and look for an interpreter where none was found."""
        self._mappings = sorted(mappings)
        self._starts = [it.start for it in self._mappings]
        self._looked_at.clear()
        self._unlike.intersection_update(self._mappings)
        if self.python is None:
            self._find_python()

    def replaced(self, frames: Iterable[NativeFrame], batch: int) -> Iterator[MappedModule]:
        """Yield the mappings of frames that another file has the place of by now: the process has unloaded a library,
        and loaded another one. Each mapping is looked at once in a batch of stacks.
        """
        if batch != self._batch:
            self._batch = batch
            self._looked_at.clear()
        for mapped in {it for frame in frames if (it := self._mapped(frame.pc - 1))} - self._looked_at - self._unlike:
            self._looked_at.add(mapped)
            if not self._is_as_its_file(mapped):
                yield mapped

    def trust(self, mapped: Iterable[MappedModule]) -> None:
        """Take these mappings for those of their files, whatever their memory is: the kernel has just listed them."""
        self._unlike.update(mapped)

    def _is_as_its_file(self, mapped: MappedModule) -> bool:
        """Return whether a mapping begins as its file; True where that is not known, as of what is not mapped now."""
        file = self._files.get(mapped.file)
        address = file.address_of(mapped.offset) if file else None
        if file is None or file.head is None or address is None:
            return True
        at, head = file.head
        try:
            return self.memory.read(mapped.start - address + at, len(head)) == head
        except Unreadable:
            return True

    def _mapped(self, pc: int) -> MappedModule | None:
        at = bisect_right(self._starts, pc) - 1
        return self._mappings[at] if at >= 0 and pc < self._mappings[at].end else None

    def place(self, pc: int) -> ModuleOffset | None:
        mapped = self._mapped(pc)
        if mapped is None:
            return None
        file = self._files.get(mapped.file)
        address = file.address_of(pc - mapped.start + mapped.offset) if file else None
        return None if address is None else ModuleOffset(mapped.file, address)

    def rule(self, place: ModuleOffset) -> UnwindRule | None:
        file = self._files.get(place.module)
        return file.rule(place.address) if file else None

    def is_code(self, pc: int) -> bool:
        return self.place(pc) is not None or bool(self.made.name(pc))

    def close(self) -> None:
        self.memory.close()

    def _find_python(self) -> None:
        looked_at: set[int] = set()
        for n, mapped in enumerate(self._mappings):
            file = self._files.get(mapped.file)
            if file is None or mapped.file in looked_at or not is_interpreter(file.path, n == 0):
                continue
            looked_at.add(mapped.file)
            address = file.address_of(mapped.offset)
            if address is not None and self._take_python(mapped.file, file, mapped.start - address):
                return

    def _take_python(self, number: int, file: CodeFile, base: int) -> bool:
        data = file.data(_SYMBOLS)
        runtime = data.get("_PyRuntime") or file.section(_SECTION)
        if runtime is None:
            return False
        try:
            version = FIRST_VERSION if "PyExc_EncodingWarning" in data else 0
            if at := data.get("Py_Version"):
                version = int.from_bytes(self.memory.read(base + at, 4), "little")
            layout = interpreter.layout(self.memory, base + runtime, version)
        except (Unreadable, UnknownInterpreter) as error:
            self.problem = str(error)
            return False
        self.problem = ""
        self.python = Python(base + runtime, layout, number, not is_interpreter(file.path, False))
        code_type = data.get("PyCode_Type", 0)
        self.names = PythonCode(self.memory, layout, base + code_type if code_type else 0)
        return True
