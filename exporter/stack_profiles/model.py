"""Stacks with values: what captures stacks gives, and what encoders, the flame graph and the frozen profiles take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

FrameKind = Literal["python", "native", "kernel"]
ValueType = tuple[str, str]
"""Name and unit of a value, such as ("inuse_space", "bytes")."""

INUSE: tuple[ValueType, ...] = (("inuse_space", "bytes"), ("inuse_objects", "count"))
ALLOC: tuple[ValueType, ...] = (("alloc_space", "bytes"), ("alloc_objects", "count"))
LAUNCHES: tuple[ValueType, ...] = (("launches", "count"),)
LABELS = ("pid", "comm", "workload", "pod", "gpu_uuid", "kind", "rank")
"""Labels of a sample; one that is not known is missing or empty."""
KINDS = ("device", "pool", "vmm", "managed", "pinned_host")
"""Values of the label `kind`: how the memory was allocated."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One function on a stack.

    `function` is demangled; empty where no symbol is known: `module`, `build_id` and `address` identify the place then.
    `file` and `line` are those of the source; empty and 0 where they are not known. `module` is the path of the mapped
    file, empty for Python and for the kernel itself. `build_id` is lower-case hex. `address` is that of the instruction
    as the module's ELF headers number addresses (what addr2line takes), 0 for Python and for addresses that the kernel
    hides. A function that the compiler inlined is a frame of its own before its caller, with the same address.
    """

    function: str
    file: str = ""
    line: int = 0
    kind: FrameKind = "native"
    module: str = ""
    build_id: str = ""
    address: int = 0

    @property
    def name(self) -> str:
        """The function, or module and address of one without a symbol, such as libc10.so+0x1f30."""
        if self.function:
            return self.function
        module = self.module.rpartition("/")[2]
        return f"{module}+{self.address:#x}" if module else f"{self.address:#x}" if self.address else "?"


Stack = tuple[Frame, ...]
"""Frames of one thread, the leaf first; empty where the stack is not known."""


@dataclass(frozen=True, slots=True)
class StackSample:
    """The values of one stack with one set of labels (LABELS), in the order of the profile's sample types."""

    stack: Stack
    labels: Mapping[str, str]
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StackProfile:
    """Samples of one moment or span of time.

    `period` is the mean distance of two samples in `period_type`, 1 where every event is in the profile. `time_ns` is
    the wall time at which counting began, `duration_ns` the time from then on. Raises ValueError where a sample has
    not one value for each of `sample_types`.
    """

    sample_types: tuple[ValueType, ...]
    samples: tuple[StackSample, ...]
    period_type: ValueType
    period: int = 1
    time_ns: int = 0
    duration_ns: int = 0
    comments: tuple[str, ...] = field(default=())
    """Notes on the profile for readers, such as what was dropped."""

    def __post_init__(self) -> None:
        if any(len(sample.values) != len(self.sample_types) for sample in self.samples):
            raise ValueError(f"a sample has not {len(self.sample_types)} values")

    def total(self, index: int = 0) -> int:
        """Return the sum of a value over all samples."""
        return sum(sample.values[index] for sample in self.samples)


class ProfileSource(Protocol):
    """A source of stack profiles. Methods are called from any thread, return within a second or so, on a busy machine
    within half a minute, and keep no reference to their results. They raise OSError or RuntimeError with a sentence
    when a profile cannot be made at present.
    """

    def inuse(self) -> StackProfile:
        """Return the memory of GPUs that is allocated now (INUSE), by the stack that allocated it."""
        ...

    def alloc(self) -> StackProfile:
        """Return all that was allocated since the start (ALLOC), also what has been freed since."""
        ...

    def launches(self) -> StackProfile:
        """Return the launches of kernels since the start (LAUNCHES)."""
        ...

    def problem(self) -> str:
        """Return why there are no profiles, as a sentence without a full stop; empty if there are."""
        ...
