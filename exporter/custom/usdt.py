"""USDT probes of one file: every site attached, each with a number by which the program finds its arguments."""

from __future__ import annotations

import fnmatch
import itertools
from pathlib import PurePath

from exporter.bpf import uprobe
from exporter.bpf.libbpf import BpfError, Link
from exporter.bpf.library import Library
from exporter.bpf.native import check, library
from exporter.bpf.probe import HookState
from exporter.bpf.uprobe import Point
from exporter.custom import arguments
from exporter.custom.definition import Definition, Usdt
from exporter.custom.programs import CompiledPrograms

MOST_SITES = 256
"""Entries of the map of arguments (compiler.py): sites that a probe is attached to at once, in all files."""


class UsdtProbes:
    """The attached USDT probes of a definition in one file; `states` has the failures too."""

    def __init__(self, definition: Definition, file: Library, programs: CompiledPrograms) -> None:
        self._programs = programs
        self._links: list[Link] = []
        self._taken: list[int] = []
        self.states = [self._attach(probe, file) for probe in wanted(definition, file)]

    def close(self) -> None:
        uprobe.close_all(self._links)
        self._programs.taken.difference_update(self._taken)
        self._links, self._taken = [], []

    def _attach(self, probe: Usdt, file: Library) -> HookState:
        sites = file.usdt[probe.probe]
        placement = "emulated" if all(site.emulated for site in sites) else "stepped"
        try:
            points = [Point(site.offset, self._number(site.arguments, file.machine), site.semaphore) for site in sites]
            self._links.append(uprobe.attach(self._programs.programs[probe.program], file.open_path, points))
        except BpfError as error:
            return HookState(probe.probe, file.path, placement, False, str(error))
        except LookupError:
            return HookState(
                probe.probe, file.path, placement, False, f"more than {MOST_SITES} places have USDT probes"
            )
        return HookState(probe.probe, file.path, placement, True, "")

    def _number(self, text: str, machine: int) -> int:
        """Return the number of a site with these arguments. Raises LookupError when all numbers are in use."""
        taken = self._programs.taken
        number = next((free for free in itertools.count() if free not in taken), 0)
        if number >= MOST_SITES:
            raise LookupError
        taken.add(number)
        self._taken.append(number)
        key, value = number.to_bytes(4, "little"), arguments.encode(text, machine)
        check(
            library().bpf_map_update_elem(self._programs.arguments, key, value, 0),
            "store the locations of a probe's arguments",
        )
        return number


def wanted(definition: Definition, file: Library) -> list[Usdt]:
    """Return the definition's USDT probes that match the file and exist in it."""
    return [usdt for usdt in definition.usdt if usdt.probe in file.usdt and matches(file.path, usdt.library)]


def matches(path: str, pattern: str) -> bool:
    """Return whether a file matches: a pattern with a slash applies to the path, any other to the file's name."""
    return fnmatch.fnmatchcase(path if "/" in pattern else PurePath(path).name, pattern)
