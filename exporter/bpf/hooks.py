"""The hooks of one probe in one library: placed, attached in few links, and known symbol by symbol."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from exporter.bpf import uprobe
from exporter.bpf.elf import Elf, Function
from exporter.bpf.file_worker import WORKER, ChildError
from exporter.bpf.libbpf import Link, Program
from exporter.bpf.library import Library, file_of
from exporter.bpf.placement import Placement, place
from exporter.bpf.process_links import LinkedProcesses, ProcessLinks
from exporter.bpf.return_switches import NO_SWITCH, Switch
from exporter.bpf.uprobe import AttachError, Point

_ALWAYS, _ALLOWED, _SAMPLED = "always", "allowed", "sampled"
_LIBRARY = 8
"""The bit of a cookie at which the number of the library begins."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hook:
    """What runs at a function: a program of the object, with the number it gets from bpf_get_attach_cookie."""

    program: str
    cookie: int = 0
    returns: bool = False
    """Runs when the function returns instead of when it is called."""
    paired: bool = False
    """An entry probe that only serves a return probe: attached while return probes may be."""
    numbered: bool = False
    """The cookie's second byte is the library's number, the key into the map `returning`."""
    placed: bool = False
    """The cookie's upper 32 bits are the offset in bytes of the probe in the function."""

    sampled: bool = False
    """May be detached for a part of the time, as its counts may be estimates; an entry probe without a return probe."""
    of_one: str = ""
    """The program that runs in its place in a process that stays probed meanwhile."""

    @property
    def attached(self) -> str:
        """When it is attached: always, only while return probes are allowed, or unless it is left out for its cost."""
        if self.sampled:
            return _SAMPLED
        return _ALLOWED if self.returns or self.paired else _ALWAYS

    def point(self, function: Function, placement: Placement, library: int = 0) -> Point:
        """Where the hook runs, for a function that is probed at this place in the library of this number."""
        behind = placement.offset - function.offset if self.placed else 0
        number = library << _LIBRARY if self.numbered else 0
        return Point(placement.offset, self.cookie | behind << 32 | number)


@dataclass(frozen=True, slots=True)
class State:
    """How one symbol of one library is observed."""

    symbol: str
    library: str
    placement: str
    """emulated or stepped; empty if no place was found."""
    attached: bool
    """Whether every hook of the symbol is attached."""
    reason: str
    """Why not. If attached: empty, or that another symbol's hooks see its calls."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Places by symbol, and why others have none."""

    found: Mapping[str, Placement]
    problems: Mapping[str, str]


@dataclass(frozen=True)
class Places:
    """Where the symbols of one library are to be probed."""

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
    """Where each function is probed; called in the process that reads files."""
    found: dict[str, Placement] = {}
    problems: dict[str, str] = {}
    for symbol, function in functions.items():
        try:
            found[symbol] = place(elf, function)
        except (OSError, ValueError) as error:
            problems[symbol] = f"no place for a probe: {error}"
    return Placed(found, problems)


class Hooked:
    """One library's hooks: attached when made, those that depend on return probes by `review`.

    `switch` is what programs read of whether these are attached. What fails is a reason in `states`, never an error.
    """

    def __init__(
        self,
        programs: Mapping[str, Program],
        library: Library,
        hooks: Mapping[str, Sequence[Hook]],
        places: Places,
        switch: Switch | None = None,
        linked: LinkedProcesses | None = None,
    ) -> None:
        self.library, self.places, self._switch = library, places, switch
        self.returned = False
        """Whether return probes were ever attached."""
        self._programs, self._hooks = programs, hooks
        self._lock = threading.Lock()
        self._failed: dict[tuple[str, str], str] = {}
        self._return_links: list[Link] = []
        self._refusal = "no return probes: no process uses the library yet"
        self._closed = False
        self._linked = ProcessLinks(linked, self._attach_to) if linked else None
        self._links = self._attach(_ALWAYS)
        self._sampled_links = self._attach(_SAMPLED)

    def review(self, allowed: bool, reason: str) -> None:
        """Attaches or detaches return probes, and entries paired with them, as is allowed now.

        Other entries stay, so that each call counts once; their programs are switched to remember calls last, and back
        first.
        """
        with self._lock:
            if self._closed:
                return
            if not allowed:
                self._turn(on=False)
                for link in reversed(self._return_links):  # entries first: none is left waiting for its return
                    link.close()
                self._return_links, self._refusal = [], f"no return probes: {reason}"
            elif self._refusal:
                self._refusal = ""
                self._return_links = self._attach(_ALLOWED)
                self.returned = self.returned or bool(self._return_links)
                self._turn(on=True)

    @property
    def sampled(self) -> frozenset[str]:
        """The symbols with hooks that may be detached for a part of the time."""
        return frozenset(it for it in self.places.found if any(hook.sampled for hook in self._hooks[it]))

    def sample(self, on: bool) -> None:
        """Attaches the `sampled` hooks, or detaches them; harmless where that is so already."""
        with self._lock:
            if self._closed or on == bool(self._sampled_links):
                return
            uprobe.close_all(self._sampled_links)
            self._sampled_links = []
            if on:
                self._failed = {key: why for key, why in self._failed.items() if key[1] != _SAMPLED}
                self._sampled_links = self._attach(_SAMPLED)

    def keep(self, pids: Collection[int]) -> Collection[int]:
        """Keeps the `sampled` hooks in just these processes, whatever `sample` does. Returns those where they are."""
        with self._lock:
            return self._linked.keep(pids) if self._linked and not self._closed else ()

    def leave(self, pids: Collection[int]) -> None:
        """Forgets processes that have ended."""
        with self._lock:
            if self._linked:
                self._linked.leave(pids)

    @property
    def refused(self) -> bool:
        """Whether return probes are wanted and not allowed at present."""
        return bool(self._refusal) and any(self._waits_for_returns(symbol) for symbol in self.places.found)

    def states(self) -> Iterator[State]:
        with self._lock:
            library = self.library.path
            for symbol, reason in self.places.problems.items():
                yield State(symbol, library, "", False, reason)
            reasons = {symbol: self._why_not(symbol) for symbol in self.places.found}
            for symbol, reason in reasons.items():
                yield State(symbol, library, self.places.found[symbol].kind, not reason, reason)
            for symbol, probed in self.places.same.items():
                kind = self.places.found[probed].kind if probed in reasons else ""
                reason = reasons.get(probed) or self.places.problems.get(probed, "")
                yield State(symbol, library, kind, not reason, reason or f"the same code as {probed}")

    def close(self) -> None:
        """Detaches everything; harmless when done before."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._turn(on=False)
            if self._linked:
                self._linked.keep(())
            uprobe.close_all([*self._return_links, *self._sampled_links, *self._links])
            if self._switch:
                self._switch.close()

    def _turn(self, on: bool) -> None:
        if self._switch:
            self._switch.turn(on)

    def _why_not(self, symbol: str) -> str:
        refusal = self._refusal if self._waits_for_returns(symbol) else ""
        failed = (self._failed.get((symbol, when)) for when in (_ALWAYS, _SAMPLED, _ALLOWED))
        return next(filter(None, failed), refusal)

    def _waits_for_returns(self, symbol: str) -> bool:
        return any(hook.returns or hook.paired for hook in self._hooks[symbol])

    def _attach(self, when: str) -> list[Link]:
        """The links of all hooks that are attached then; return probes come first."""
        groups: dict[tuple[bool, str], dict[Point, str]] = {}
        for symbol, placement in self.places.found.items():
            for hook in self._hooks[symbol]:
                if hook.attached == when:
                    points = groups.setdefault((not hook.returns, hook.program), {})
                    number = self._switch.library if self._switch else NO_SWITCH
                    points[hook.point(self.library.functions[symbol], placement, number)] = symbol
        links = []
        for (entry, program), symbols in sorted(groups.items()):
            link, failed = self._attach_group(self._programs[program], symbols, not entry)
            links += [link] if link else []
            self._failed.update({(symbol, when): reason for symbol, reason in failed.items()})
        return links

    def _attach_to(self, pid: int) -> Link:
        """The link of the sampled hooks to one process. They have one program."""
        points: dict[str, list[Point]] = {}
        for symbol, placement in self.places.found.items():
            for hook in self._hooks[symbol]:
                if hook.of_one:
                    made = hook.point(self.library.functions[symbol], placement)
                    points.setdefault(hook.of_one, []).append(made)
        [(program, places)] = points.items()
        return uprobe.attach_to(self._programs[program], self.library.open_path, places, pid)

    def _attach_group(
        self, program: Program, symbols: dict[Point, str], returns: bool
    ) -> tuple[Link | None, dict[str, str]]:
        """Attaches one program at many points. Returns the link, and by symbol why the kernel refused points."""
        failed: dict[str, str] = {}
        while symbols:
            try:
                return uprobe.attach(program, self.library.open_path, [*symbols], returns), failed
            except AttachError as error:
                failed.update({symbols.pop(point): str(error) for point in error.failed})
        return None, failed
