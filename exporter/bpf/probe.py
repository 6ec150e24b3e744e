"""A probe: one loaded object and a table of which of its programs run at which function of which libraries.

`Probes` gets from exporter.bpf.targets every library that has one of its symbols and every process that uses
one; it attaches, keeps what is and is not observed, and yields the exporter's own metrics about it.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from exporter.bpf.calibrate import Costs
from exporter.bpf.charges import Charges
from exporter.bpf.find_places import Places, find_places
from exporter.bpf.gaps import Gaps
from exporter.bpf.hook import Hook
from exporter.bpf.hook_group import Waiting
from exporter.bpf.hooks import Hooked, HookState
from exporter.bpf.libbpf import Link, Program
from exporter.bpf.library import Library
from exporter.bpf.passing import Passing
from exporter.bpf.placement import Placement
from exporter.bpf.probe_metrics import HITS, OVERHEAD, RUN
from exporter.bpf.probed_library import ProbedLibrary
from exporter.bpf.probed_samples import named, states, symbols
from exporter.bpf.process_links import LinkedProcesses
from exporter.bpf.rehearsal import Rehearsal
from exporter.bpf.return_switches import Numbers, Switch, Switches
from exporter.bpf.safety import Protection
from exporter.bpf.sampled_file import SampledFile
from exporter.bpf.symbol_coverage import SymbolCoverage, one_family
from exporter.model import Sample

__all__ = ["Hook", "Listener", "Probes", "HookState"]

log = logging.getLogger(__name__)


class Programs(Protocol):
    """Loaded programs by name; an Object is one."""

    @property
    def programs(self) -> Mapping[str, Program]: ...


class Listener(Protocol):
    """Receives the processes that use a probed library; called in the targets' thread, after the probes."""

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None: ...
    def processes_ended(self, pids: Collection[int]) -> None: ...
    def processes_replaced(self, pids: Collection[int]) -> Collection[int]: ...


class Probes:
    """An Interest for Targets, made of one object and a table from symbol to hooks.

    `hits` gives the calls seen by symbol, never falling. `protection` returns what a process runs under, and
    `returns_allowed` whether return probes are safe for such users of one library, and why not (exporter.bpf.safety).
    `coverable` is what names of functions look like that should be in the table. `family` names the API a symbol
    belongs to: a library misses symbols only of families it has some of. `hooks_of` gives a library hooks of its own
    for the same symbols, of the same kinds, where they depend on what is in it. `rehearsal` has what calls cost, and is
    started with the first library. `returning` is the object's map of that name, where it has hooks that are numbered.
    `withdrawn` gets the processes of a library that loses its return probes, or all. `passing` finds symbols of which
    calls do not count, since they arrive in another library of the process. `linked` is what the object has of
    processes that stay probed while others are in windows, for each group of functions (Hook.sampled), and `since` its
    map of when windows began. With `waiting` each group of functions with return probes has a number of its own.
    `windows` gives the hits by cheaper programs (Hook.window), and the seconds that one of these takes.
    """

    def __init__(
        self,
        name: str,
        programs: Programs,
        table: Mapping[str, Sequence[Hook]],
        *,
        hits: Callable[[], Mapping[str, int]],
        protection: Callable[[int], Protection | None],
        returns_allowed: Callable[[Collection[Protection]], tuple[bool, str]],
        costs: Costs | None = None,
        coverable: re.Pattern[str] | None = None,
        family: Callable[[str], str] = one_family,
        listener: Listener | None = None,
        find: Callable[[Library, Sequence[str]], Places] = find_places,
        hooks_of: Callable[[Library], Mapping[str, Sequence[Hook]]] | None = None,
        rehearsal: Rehearsal | None = None,
        returning: Numbers | None = None,
        withdrawn: Callable[[Collection[int]], None] | None = None,
        passing: Passing | None = None,
        linked: Mapping[str, LinkedProcesses] | None = None,
        since: Numbers | None = None,
        waiting: Waiting | None = None,
        windows: Callable[[], tuple[Mapping[str, int], float]] | None = None,
    ) -> None:
        self._windows = windows or (lambda: ({}, 0.0))
        self._linked, self._since, self._rehearsal, self._waiting = linked or {}, since, rehearsal, waiting
        self._hooks_of, self._withdrawn, self._passing = hooks_of, withdrawn, passing
        self._switches = Switches(returning) if returning else None
        self.name, self.symbols = name, frozenset(table)
        self._object, self._table, self._hits = programs, table, hits
        self._protection, self._returns_allowed = protection, returns_allowed
        self._coverage = SymbolCoverage(self.symbols, coverable, family)
        self._listener, self._find = listener, find
        self._lock = threading.Lock()
        self._probed: dict[int, ProbedLibrary] = {}  # by id() of the library: its (dev, ino) may be used again
        timed = {symbol for symbol, hooks in table.items() if any(hook.returns for hook in hooks)}
        self._charges = Charges(costs, rehearsal, timed) if costs else None

    def attach(self, library: Library) -> Link:
        """Attaches to all the library has of the table; what cannot be is in `states`. Close the result to detach."""
        beside = self._beside(library.found_in)
        left_out = self._passing.at_first(library, beside) if self._passing else frozenset[str]()
        hooked = self._hook(library, left_out)
        probed = ProbedLibrary(hooked, self._coverage.find_uncovered(library), left_out=left_out)
        with self._lock:
            self._probed[id(library)] = probed
        self._remember_costs(hooked)
        if self._rehearsal and hooked.places.found:
            self._rehearsal.start()
        return Link(lambda: self._release(library))

    def _hook(self, library: Library, left_out: Collection[str], passing: Collection[int] = ()) -> Hooked:
        table = self._hooks_of(library) if self._hooks_of else self._table
        table = {symbol: hooks for symbol, hooks in table.items() if symbol not in left_out}
        places = self._find(library, [*table])
        switch = self._switches.take() if self._switches else None
        own = self._own_switches([hook for it in places.found for hook in table[it]]) if switch else {}
        self._leave_out([it.library for it in (switch, *own.values()) if it], passing)  # before there are probes
        gaps = Gaps(self._since, switch.library) if self._since and switch else None
        linked, waiting = self._linked, self._waiting
        return Hooked(self._object.programs, library, table, places, switch, linked, gaps, own, waiting)

    def _own_switches(self, hooks: Collection[Hook]) -> dict[str, Switch]:
        """Return switches for the groups with return probes, as far as there are some left."""
        assert self._switches
        groups = {it.sampled for it in hooks if it.returns and it.sampled} if self._waiting else set[str]()
        switches = {group: self._switches.take() for group in sorted(groups)}
        return {group: it for group, it in switches.items() if it}

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        probed, protection = self._probed.get(id(library)), self._protection(pid)
        whole = not (probed and probed.left_out)
        if probed and protection:
            probed.users[pid] = protection
            if self._passing:
                self._compare(pid, self._passing)
            self._review(probed)
        if self._listener:
            seen = from_first_call and whole and not (probed and probed.left_out)
            self._listener.process_started(pid, library, seen)

    def _beside(self, pid: int) -> list[ProbedLibrary]:
        return [it for it in self.present() if pid in it.users]

    def _compare(self, pid: int, passing: Passing) -> None:
        """Take calls of the process out of what passes them on to another library of the process."""
        for probed in self._beside(pid):
            library, left_out = probed.hooked.library, passing.left_out(probed, pid, self.present())
            if left_out != probed.left_out:
                done = "removed" if left_out else "attached again for processes that use it alone"
                log.info("library forwards its calls, probes %s", done, extra={"library": library.path})
                self._unhook(probed.hooked)
                probed.hooked, probed.left_out = self._hook(library, left_out, probed.passing), left_out
                self._review(probed)
            self._leave_out(probed.hooked.numbers, probed.passing)

    def library_given_up(self, library: Library) -> None:
        probed = self._probed.get(id(library))
        if self._withdrawn and probed:
            self._withdrawn([*probed.users])

    def processes_ended(self, pids: Collection[int]) -> None:
        self._forget(pids)
        if self._listener:
            self._listener.processes_ended(pids)

    def processes_replaced(self, pids: Collection[int]) -> Collection[int]:
        self._forget(pids)
        return self._listener.processes_replaced(pids) if self._listener else ()

    def states(self) -> list[HookState]:
        """Return how each symbol of each library is observed, and why not; for people to read."""
        return [state for probed in self.present() for state in probed.hooked.states()]

    def uncovered(self) -> dict[str, tuple[str, ...]]:
        """The names behind accel_exporter_probe_symbols_uncovered, by library."""
        return {it.hooked.library.path: it.uncovered for it in self.present() if not it.passing}

    def passed(self) -> dict[str, str]:
        """The libraries in which calls do not count because they pass them on, with the one that these go to."""
        found = [it.hooked.library for it in self.present() if it.passing or it.left_out]
        return {it.path: self._passing.of(it).to for it in found} if self._passing else {}

    def passed_by(self, pid: int) -> set[str]:
        """The libraries in which calls of a process do not count for that reason."""
        return {it.hooked.library.path for it in self.present() if pid in it.passing}

    def sampled_files(self, group: str) -> dict[int, SampledFile]:
        """The libraries with symbols of a group that may be probed in windows, by a key that stays."""
        return {
            id(it.hooked.library): SampledFile(
                name,
                functions,
                [*it.users],
                partial(it.sample, group),
                partial(self._keep, it, group),
                partial(it.restore, group),
            )
            for it, name in named(self.present())
            if (functions := it.hooked.sampled(group))
        }

    def _keep(self, probed: ProbedLibrary, group: str, pids: Collection[int]) -> Collection[int]:
        """Without processes that use another such file too: which of both a call was in is not known."""
        others = [it for it in self.present() if it is not probed and it.hooked.sampled(group)]
        return probed.hooked.keep(group, [pid for pid in pids if not any(pid in it.users for it in others)])

    def price(self, symbol: str) -> float | None:
        """The seconds that a call of the symbol takes longer; None while that is not known."""
        return self._charges.each(symbol) if self._charges and self._charges.known else None

    def spent(self) -> float | None:
        """The seconds that all calls so far took longer; None while that is not known."""
        return self._charge(self._charges, self._hits()) if self._charges and self._charges.known else None

    def _charge(self, charges: Charges, hits: Mapping[str, int]) -> float:
        cheaper, price = self._windows()
        whole = {symbol: calls - cheaper.get(symbol, 0) for symbol, calls in hits.items()}
        return charges.charge(whole) + sum(cheaper.values()) * price

    def collect(self) -> Iterator[Sample]:
        """The exporter's own metrics about this probe."""
        present = named(self.present())
        yield from states(self.name, present)
        yield from symbols(self.name, present, self._coverage)
        probe = {"probe": self.name}
        hits = self._hits()
        for symbol, calls in hits.items():
            yield HITS.sample(calls, probe | {"symbol": symbol})
        if self._charges and self._charges.known:
            yield OVERHEAD.sample(self._charge(self._charges, hits), probe)
        measured = [program.stats() for program in self._object.programs.values()]
        if any(runs for _, runs in measured):
            yield RUN.sample(sum(nanoseconds for nanoseconds, _ in measured) / 1e9, probe)

    def account(self, symbol: str, placement: Placement, returns: bool) -> None:
        """Counts calls of a symbol at what they cost at this place, also where someone else attaches to it."""
        if self._charges:
            self._charges.price(symbol, placement, returns, self._hits())

    def _remember_costs(self, hooked: Hooked) -> None:
        for symbol, placement in hooked.places.found.items():
            returns = hooked.returned and any(hook.returns for hook in self._table[symbol])
            self.account(symbol, placement, returns)

    def present(self) -> list[ProbedLibrary]:
        with self._lock:
            return [*self._probed.values()]

    def _review(self, probed: ProbedLibrary) -> None:
        allowed, reason = self._returns_allowed(probed.users.values())
        if self._withdrawn and not allowed and not probed.hooked.refused:
            self._withdrawn([*probed.users])
        returned = probed.hooked.returned
        probed.hooked.review(allowed, reason)
        if probed.hooked.returned != returned:
            self._remember_costs(probed.hooked)

    def _forget(self, pids: Collection[int]) -> None:
        for probed in self.present():
            known = [pid for pid in pids if probed.users.pop(pid, None)]
            probed.hooked.leave(known)
            if self._passing:
                self._passing.leave(probed, known)
            if known and probed.users:
                self._review(probed)

    def _release(self, library: Library) -> None:
        with self._lock:
            probed = self._probed.pop(id(library), None)
        if probed:
            self._unhook(probed.hooked)

    def _unhook(self, hooked: Hooked) -> None:
        numbers = hooked.numbers
        hooked.close()
        self._leave_out(numbers, ())  # in this thread, so that they are no other library's yet

    def _leave_out(self, numbers: Collection[int], pids: Collection[int]) -> None:
        """Leave out the calls of processes that a library of these numbers passes on."""
        for number in numbers:
            if self._passing:
                self._passing.keep(number, pids)
