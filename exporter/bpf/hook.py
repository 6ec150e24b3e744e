"""Hooks: a BPF program that runs at a function, its cookie, and the condition under which the program is attached."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.bpf.elf import Function
from exporter.bpf.placement import Placement
from exporter.bpf.uprobe import Point

ALWAYS, ALLOWED, SAMPLED, SAMPLED_RETURNS, WINDOW = "always", "allowed", "sampled", "sampled if allowed", "in windows"
OWN_RETURN = 2
"""The bit in the cookie of an entry in a link for one process: its returns are probed by such a link, too."""
_LIBRARY = 8
"""The bit of a cookie at which the number of the library begins."""


@dataclass(frozen=True, slots=True)
class Hook:
    """A BPF program of the object that runs at a function, and the cookie that bpf_get_attach_cookie() returns."""

    program: str
    cookie: int = 0
    returns: bool = False
    """Runs when the function returns instead of when it is called."""
    paired: bool = False
    """An entry probe that only serves a return probe: attached while return probes may be."""
    numbered: bool = False
    """The cookie's second byte is the library's number, the key into the map `returning`."""
    gated: bool = False
    """The same, for the map `passing` only: which processes do not count in this library."""
    placed: bool = False
    """The cookie's upper 32 bits are the offset in bytes of the probe in the function."""

    sampled: str = ""
    """The functions with which it may be detached for a part of the time, as their counts may be estimates."""
    window: str = ""
    """The program that runs instead at the entry in windows and only counts calls: others are back at their end."""
    of_one: str = ""
    """The program that runs in its place in a process that stays probed meanwhile."""

    @property
    def attached(self) -> str:
        """Condition for attaching: always, only while return probes are allowed, or unless left out for its cost."""
        if self.sampled:
            return SAMPLED_RETURNS if self.returns else SAMPLED
        return ALLOWED if self.returns or self.paired else ALWAYS

    def point(self, function: Function, placement: Placement, library: int = 0) -> Point:
        """Return where the hook runs, for a function that is probed at this place in the library of this number."""
        behind = placement.offset - function.offset if self.placed else 0
        number = library << _LIBRARY if self.numbered or self.gated else 0
        return Point(placement.offset, self.cookie | behind << 32 | number)
