"""One custom probe's side of the search for libraries: what is attached where, whichever child has the programs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from exporter.bpf.calibrate import Costs
from exporter.bpf.libbpf import Link
from exporter.bpf.library import Library
from exporter.bpf.probe import ATTACHED, OVERHEAD, RUN, Hook, Probes, State
from exporter.bpf.safety import Protection
from exporter.custom import metrics, usdt
from exporter.custom.definition import Definition
from exporter.custom.programs import Programs
from exporter.custom.usdt import UsdtProbes
from exporter.model import Sample


@dataclass
class _Known:
    library: Library
    users: dict[int, bool] = field(default_factory=dict)
    """Pids, and whether they were seen from their first call."""
    link: Link | None = None
    usdt: UsdtProbes | None = None


class Attacher:
    """An Interest for Targets. It remembers libraries and users, and attaches whenever there are programs."""

    def __init__(
        self,
        definition: Definition,
        *,
        protection: Callable[[int], Protection | None],
        returns_allowed: Callable[[Collection[Protection]], tuple[bool, str]],
        costs: Callable[[], Costs | None],
        started: Callable[[int], object],
    ) -> None:
        self.symbols = frozenset(hook.symbol for hook in definition.hooks)
        self.usdt = frozenset(it.probe for it in definition.usdt)
        self._definition, self._started = definition, started
        self._protection, self._returns_allowed, self._costs = protection, returns_allowed, costs
        self._patterns = {hook.symbol: hook.library for hook in definition.hooks}
        self._lock = threading.RLock()
        self._known: dict[int, _Known] = {}  # by id() of the library, whose (dev, ino) may be used again
        self._programs: Programs | None = None
        self._probes: Probes | None = None
        self._before: dict[str, tuple[int, int]] = {}

    # What Targets tells (exporter.bpf.library.Interest).

    def attach(self, library: Library) -> Link:
        with self._lock:
            known = _Known(library)
            if self._hooks(library) or usdt.wanted(self._definition, library):
                self._known[id(library)] = known
                self._hook(known)
        return Link(lambda: self._release(library))

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        with self._lock:
            known = self._known.get(id(library))
            if known is None:
                return
            known.users[pid] = from_first_call
            if self._probes:
                self._probes.process_started(pid, library, from_first_call)
        self._started(pid)  # now, while it can be asked who it is

    def processes_ended(self, pids: Collection[int]) -> None:
        with self._lock:
            for known in self._known.values():
                for pid in pids:
                    known.users.pop(pid, None)
            if self._probes:
                self._probes.processes_ended(pids)

    def processes_replaced(self, pids: Collection[int]) -> None:
        self.processes_ended(pids)

    # What the supervisor of the child tells.

    def use(self, programs: Programs) -> None:
        """Attaches these, the child's, to all that is known."""
        with self._lock:
            self._programs = programs
            self._probes = Probes(
                f"custom_{self._definition.name}",
                programs,
                {symbol: () for symbol in self.symbols},
                hits=dict,
                protection=self._protection,
                returns_allowed=self._returns_allowed,
                family=lambda symbol: self._patterns[symbol],
                hooks_of=self._hooks,
            )
            for known in self._known.values():
                self._hook(known)

    def drop(self) -> None:
        """Detaches: the child is gone."""
        with self._lock:
            for known in self._known.values():
                _unhook(known)
            if self._programs:
                self._before = self._runs()
                self._programs.close()
            self._programs = self._probes = None

    def states(self) -> list[State]:
        with self._lock:
            states = self._probes.states() if self._probes else []
            return states + self._built_in()

    def collect(self) -> Iterator[Sample]:
        with self._lock:
            probes, runs = self._probes, self._runs()
            samples = [*probes.collect()] if probes else []
            states = self._built_in()
        probe = self._definition.name
        yield from (sample for sample in samples if sample.metric is not RUN)
        for state in states:
            place = {"symbol": state.symbol, "library": state.library, "placement": state.placement}
            yield ATTACHED.sample(int(state.attached), {"probe": f"custom_{probe}", **place})
        if not any(count for _, count in runs.values()):
            return
        yield RUN.sample(sum(nanoseconds for nanoseconds, _ in runs.values()) / 1e9, {"probe": f"custom_{probe}"})
        for program, (_, count) in runs.items():
            yield metrics.RUNS.sample(count, {"probe": probe, "program": program})
        if self._costs():
            taken = sum(self._cost(program) * count for program, (_, count) in runs.items())
            yield OVERHEAD.sample(taken, {"probe": f"custom_{probe}"})

    def _hook(self, known: _Known) -> None:
        if self._probes is None:
            return
        if self._programs and usdt.wanted(self._definition, known.library):
            known.usdt = UsdtProbes(self._definition, known.library, self._programs)
        known.link = self._probes.attach(known.library)
        for pid, from_first_call in known.users.items():
            self._probes.process_started(pid, known.library, from_first_call)

    def _built_in(self) -> list[State]:
        return [state for known in self._known.values() if known.usdt for state in known.usdt.states]

    def _hooks(self, library: Library) -> Mapping[str, Sequence[Hook]]:
        """Those for this file, by the names that its first user knows it by."""
        hooks: dict[str, list[Hook]] = {}
        for it in self._definition.hooks:
            if it.symbol in library.functions and usdt.matches(library.path, it.library):
                hooks.setdefault(it.symbol, []).append(Hook(it.program, 0, it.returns, it.paired))
        return hooks

    def _release(self, library: Library) -> None:
        with self._lock:
            known = self._known.pop(id(library), None)
            if known:
                _unhook(known)

    def _runs(self) -> dict[str, tuple[int, int]]:
        """Nanoseconds and runs of each program, those of children before this one included."""
        runs = dict(self._before)
        for name, program in (self._programs.programs if self._programs else {}).items():
            nanoseconds, count = program.stats()
            before_nanoseconds, before = self._before.get(name, (0, 0))
            runs[name] = (before_nanoseconds + nanoseconds, before + count)
        return runs

    def _cost(self, program: str) -> float:
        """Seconds of a hit, where its functions differ the dearest."""
        costs, kinds = self._costs(), {state.symbol: state.placement for state in self.states()}
        found = [0.0]
        points = [(hook.symbol, hook.program, hook.returns) for hook in self._definition.hooks]
        points += [(it.probe, it.program, False) for it in self._definition.usdt]
        for at, name, returns in points:
            if costs and name == program and kinds.get(at):
                found.append(costs.of("emulated" if kinds[at] == "emulated" else "stepped", returns) or 0.0)
        return max(found)


def _unhook(known: _Known) -> None:
    if known.link:
        known.link.close()
    if known.usdt:
        known.usdt.close()
    known.link = known.usdt = None
