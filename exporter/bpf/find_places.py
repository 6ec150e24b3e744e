"""Places of probes in the functions of one library."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exporter.bpf.elf import Elf, Function
from exporter.bpf.file_worker import WORKER, ChildError
from exporter.bpf.library import Library, file_of
from exporter.bpf.placement import Placement, place

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Placed:
    """Places by symbol, and why others have none."""

    found: Mapping[str, Placement]
    problems: Mapping[str, str]


@dataclass(frozen=True)
class Places:
    """Places of probes for the symbols of one library."""

    found: Mapping[str, Placement]
    problems: Mapping[str, str]
    """Symbols without a place, and why."""
    same: Mapping[str, str]
    """Symbols that are another name of the code of one in `found`, which is probed once."""


def find_places(library: Library, symbols: Sequence[str]) -> Places:
    """Places every symbol that the library has; what cannot be read is a problem of its symbols, not an error."""
    same: dict[str, str] = {}
    first: dict[int, str] = {}
    functions: dict[str, Function] = {}
    for symbol in symbols:
        if function := library.functions.get(symbol):
            named = first.setdefault(function.offset, symbol)
            if named == symbol:
                functions[symbol] = function
            else:
                same[symbol] = named
    if not functions:
        return Places({}, {}, {})
    try:
        placed: Placed = WORKER.call(place_all, file_of(library), functions)
    except ChildError as error:  # the symbol is always right
        log.warning(
            "probes are at the first instruction, not at the cheapest: %s",
            error,
            extra={"library": library.path},
        )
        placed = Placed({it: Placement(found.offset, "stepped", moved=False) for it, found in functions.items()}, {})
    except (OSError, ValueError) as error:
        reason = f"cannot read the library: {error}"
        return Places({}, dict.fromkeys([*functions, *same], reason), {})
    return Places(placed.found, placed.problems, same)


def place_all(elf: Elf, functions: Mapping[str, Function]) -> Placed:
    """Return where each function is probed; called in the process that reads files."""
    found: dict[str, Placement] = {}
    problems: dict[str, str] = {}
    for symbol, function in functions.items():
        try:
            found[symbol] = place(elf, function)
        except (OSError, ValueError) as error:
            problems[symbol] = f"no place for a probe: {error}"
    return Placed(found, problems)
