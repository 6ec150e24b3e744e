"""Finds the functions that a verbs provider (libmlx5, librxe-rdmav34 ...) gives to libibverbs, in stripped files too.

Applications call them through pointers (ibv_post_send and ibv_poll_cq are inline), so no symbol helps. A provider hands
a table of pointers to verbs_set_ops; see tables.py for where it is and ops.py for what is where in it. A function is
found only if what is known of it from different sides agrees; else it is refused, with the reason.

The extended calls (ibv_wr_start, ibv_start_poll ...) go through pointers in the objects that create_qp_ex and
create_cq_ex return. No table has those: extended.py learns them from the objects.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from exporter.bpf.elf import Elf, ElfError, Function
from exporter.verbs.code import ops, relocations, tables
from exporter.verbs.code.eh_frame import Frames
from exporter.verbs.code.ops import POINTER, OpsLayout
from exporter.verbs.code.relocations import Relocations
from exporter.verbs.code.tables import Tables

OPS = (
    "post_send",
    "post_recv",
    "post_srq_recv",
    "poll_cq",
    "req_notify_cq",
    "create_qp",
    "create_qp_ex",
    "modify_qp",
    "destroy_qp",
    "create_cq",
    "create_cq_ex",
    "destroy_cq",
)
"""The functions that are searched, by the names of struct verbs_context_ops."""

_MANDATORY = frozenset(
    {"alloc_pd", "dealloc_pd", "reg_mr", "dereg_mr", "create_cq", "destroy_cq", "poll_cq", "query_port"}
    | {"create_qp", "modify_qp", "destroy_qp", "post_send", "post_recv"}
)
"""Functions that every provider implements."""
_ALWAYS_COMMON = frozenset({"alloc_pd", "dealloc_pd", "reg_mr"})
"""Functions of _MANDATORY that do not differ between the devices of one provider."""
_LOCAL = 0
_ROOT = 0


@dataclass(frozen=True, slots=True)
class ProviderNames:
    """Names of the files, links resolved: libmlx5.so.1.24.44.0, libibverbs.so.1.14.44.0. The names have the release.

    A name is empty where whoever shows it may have made it up.
    """

    provider: str = ""
    verbs: str = ""


@dataclass(frozen=True, slots=True)
class ProviderFunctions:
    """The functions of a provider by the names in OPS, and why others are not known."""

    functions: Mapping[str, tuple[Function, ...]]
    """Every version of a function in this library; several may be in use at once. Named as the operation."""
    refused: Mapping[str, str]
    """Operation to a sentence. An operation in neither mapping is not implemented by the provider."""
    release_unknown: bool = False
    """True if functions were refused that would be known if the release of rdma-core were."""
    incomplete: str = ""
    """A sentence where the library may have further versions of functions, known only when they are set."""


class UncertainProvider(Exception):
    """Nothing about this provider is certain; the text is a sentence."""


def find(provider: Elf, verbs: Elf | None, names: ProviderNames) -> ProviderFunctions:
    """Return the functions of a provider. `verbs` is the libibverbs that the same process has mapped.

    It counts only where it belongs to root or to the owner of the provider: what is found holds for all processes that
    use the provider, and a process may map a libibverbs of its own.

    Raises nothing for any contents of the files: functions that are not certain are refused.
    """
    try:
        return _find(provider, verbs if verbs and may_describe(verbs, provider) else None, names)
    except UncertainProvider as refusal:
        return ProviderFunctions({}, dict.fromkeys(OPS, str(refusal)))
    except ElfError as error:
        return ProviderFunctions({}, dict.fromkeys(OPS, f"The file cannot be understood: {error}."))


def may_describe(verbs: Elf, provider: Elf) -> bool:
    """Return whether a libibverbs belongs to root or to the owner of the provider."""
    return os.fstat(verbs.fileno()).st_uid in (_ROOT, os.fstat(provider.fileno()).st_uid)


def _find(provider: Elf, verbs: Elf | None, names: ProviderNames) -> ProviderFunctions:
    relocated = relocations.read(provider)
    if tables.SET_OPS not in relocated.imported.values():
        raise UncertainProvider(f"It does not call {tables.SET_OPS} of libibverbs, so it is no provider.")
    slots = _Slots(provider, relocated, Frames(provider))
    given = tables.find(provider, relocated, slots.frames)
    if not given.addresses:
        raise UncertainProvider(f"Which table it gives to {tables.SET_OPS} is decided only when it runs.")
    layouts = [layout for layout in _layouts(provider, verbs, names) if slots.fit(layout, given)]
    if not layouts:
        raise UncertainProvider(
            "Its table does not look like that of any release of rdma-core that it could belong to."
        )
    found: dict[str, tuple[Function, ...]] = {}
    refused: dict[str, str] = {}
    unknown = False
    for op in OPS:
        offsets = {layout.offsets.get(op) for layout in layouts}
        offset = offsets.pop()
        if offset is None or offsets:
            unknown = unknown or bool(offsets)
            refused[op] = "Where it is in the table depends on the release of rdma-core, which is not known."
            continue
        places = [table + offset for table in given.addresses]
        if functions := slots.functions(op, places):
            found[op] = functions
        elif others := slots.imported(places):
            refused[op] = f"It is {' or '.join(others)} of another library."
        elif given.unresolved:
            refused[op] = "It is in a table that is chosen only when the provider runs."
    more = f"{len(given.unresolved)} of its calls of {tables.SET_OPS} take a table chosen only when it runs."
    return ProviderFunctions(found, refused, unknown, more if given.unresolved else "")


def _layouts(provider: Elf, verbs: Elf | None, names: ProviderNames) -> list[OpsLayout]:
    """Return the layouts that the provider's table may have. Raises Refused where the files contradict each other."""
    needed = relocations.private_abi(provider)
    release = ops.release(names.provider)
    by_release = ops.of_release(release)
    calibrated = None
    if verbs is not None:
        if relocations.private_abi(verbs) != needed:
            raise UncertainProvider("The libibverbs of the process has another private ABI than this provider needs.")
        with suppress(ElfError):
            calibrated = ops.complete(ops.calibrate(verbs))
    if calibrated is None:
        return [by_release] if by_release else ops.of_abi(needed)
    if by_release and not by_release.agrees(calibrated) and release != ops.release(names.verbs):
        raise UncertainProvider("The libibverbs of the process is of another release than this provider.")
    return [calibrated]  # where both are of a release that should differ from it, they are a vendor's


class _Slots:
    """The contents of a provider's tables, by the address of a word."""

    def __init__(self, provider: Elf, relocated: Relocations, frames: Frames) -> None:
        self.frames = frames
        self._provider, self._relocated = provider, relocated

    def fit(self, layout: OpsLayout, given: Tables) -> bool:
        """Return whether each table has nothing but functions, and the tables have all that a provider implements."""
        present = {
            name
            for name, offset in layout.offsets.items()
            if any(not self._is_empty(table + offset) for table in given.addresses)
        }
        mandatory = _ALWAYS_COMMON if given.unresolved else _MANDATORY
        return present >= mandatory & layout.offsets.keys() and all(
            self._is_empty(word) or word in self._relocated.imported or self._function(word)
            for table in given.addresses
            for word in range(table, table + layout.size, POINTER)
        )

    def functions(self, op: str, words: Iterable[int]) -> tuple[Function, ...]:
        """Return the functions that the words point to, each once."""
        found = {self._relocated.pointers[word]: self._function(word) for word in words if self._function(word)}
        offset = self._provider.offset
        return tuple(Function(op, offset(start), size, start, _LOCAL) for start, size in sorted(found.items()))

    def imported(self, words: Iterable[int]) -> list[str]:
        """Return the symbols of other libraries that the words point to."""
        return sorted({name for word in words if (name := self._relocated.imported.get(word))})

    def _is_empty(self, word: int) -> bool:
        if word in self._relocated.pointers or word in self._relocated.imported:
            return False
        try:
            return not any(self._provider.read(word, POINTER))
        except ElfError:
            return False

    def _function(self, word: int) -> int:
        """Return the size in bytes of the function that a word points to, 0 if it points to none."""
        address = self._relocated.pointers.get(word)
        if address is None or not any(0 <= address - part.address < part.size for part in self._provider.code_parts):
            return 0
        return self.frames.size(address)
