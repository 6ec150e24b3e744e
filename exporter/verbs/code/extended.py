"""The calls of the extended API (ibv_wr_start, ibv_start_poll and their like): inline jumps through pointers that a
provider's code puts into each queue pair and completion queue.

No table in the file has these pointers, so only the objects of processes show which functions they are, and a process
may have written anything there. Two checks make sure that only real calls count: an address is probed only if a
function of a provider begins there, and a call counts only if the very object of the call has that function in the
pointer of the call (is_call in bpf/verbs/extended.h). A process with false pointers falsifies its own counts alone, and
its user has a share of the versions of a call that are probed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from exporter.bpf.elf import Elf, Function
from exporter.bpf.file_worker import WORKER
from exporter.bpf.library import Library, file_of
from exporter.verbs.code import live
from exporter.verbs.code.eh_frame import Frames
from exporter.verbs.code.providers import ProviderFunctions
from exporter.verbs.functions import POLLED, extended_hooks

_PROBED = frozenset({*extended_hooks(), *POLLED})
_ALWAYS = (frozenset({"wr_start", "wr_complete", "wr_abort"}), frozenset({"start_poll", "next_poll", "end_poll"}))
"""Calls that every object of the extended API has, a queue pair or a completion queue."""
_LOCAL = 0


def offsets_in(library: Library, pid: int, addresses: Mapping[str, int], proc: Path = Path("/proc")) -> dict[str, int]:
    """Return the offsets in a library's file of the calls that an object of a process points to.

    Calls are named as in QP_CALLS or CQ_CALLS.

    Returns nothing where the calls that every such object has are not in the file: most queue pairs and completion
    queues are plain ones, with any bytes in place of the pointers. Raises OSError where the process or the library
    cannot be read.
    """
    probed = {call: address for call, address in addresses.items() if call in _PROBED and address}
    offsets = live.offsets_in(library, pid, probed, proc)
    return offsets if any(always <= offsets.keys() for always in _ALWAYS) else {}


def learn(library: Library, offsets: Mapping[str, int]) -> ProviderFunctions:
    """Return the functions at these offsets of a library's file, and why others are not certain.

    Raises OSError and ElfError.
    """
    return cast(ProviderFunctions, WORKER.call(confirm, file_of(library), dict(offsets)))


def confirm(elf: Elf, offsets: Mapping[str, int]) -> ProviderFunctions:
    """Return the calls that are functions of the file, each of one call only, and why others are not."""
    frames, shared = Frames(elf), Counter(offsets.values())
    functions: dict[str, tuple[Function, ...]] = {}
    refused: dict[str, str] = {}
    for call, offset in offsets.items():
        address = live.address_of(elf, offset)
        size = frames.size(address) if address is not None else 0
        if address is None or not size:
            refused[call] = f"A process calls offset {offset:#x} for it, where no function begins."
        elif shared[offset] > 1:
            refused[call] = f"The function at offset {offset:#x} is several of the calls."
        else:
            functions[call] = (Function(call, offset, size, address, _LOCAL),)
    return ProviderFunctions(functions, refused)
