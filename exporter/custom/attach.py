"""Attachment of a custom probe to libraries, which outlasts the worker that loaded the programs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from exporter.bpf.calibrate import Costs
from exporter.bpf.libbpf import Link
from exporter.bpf.library import Library
from exporter.bpf.probe import Hook, HookState, Probes
from exporter.bpf.probe_metrics import ATTACHED, OVERHEAD, RUN
from exporter.bpf.safety import Protection
from exporter.custom import metrics, usdt
from exporter.custom.definition import Definition
from exporter.custom.programs import CompiledPrograms
from exporter.custom.usdt import UsdtProbes
from exporter.model import Sample


@dataclass
class _Known:
    library: Library
    users: dict[int, bool] = field(default_factory=dict)
    """By pid: true if the process was observed from its first call."""
    link: Link | None = None
    usdt: UsdtProbes | None = None


class Attacher:
    """An Interest for Targets: keeps libraries and their users, and attaches the programs of each worker to them."""

    def __init__(
        self,
        definition: Definition,
        *,
        protection: Callable[[int], Protection | None],
        returns_allowed: Callable[[Collection[Protection]], tuple[bool, str]],
        costs: Callable[[], Costs | None],
        started: Callable[[int], object],
    ) -> None:
        self.symbols = frozenset(uprobe.symbol for uprobe in definition.uprobes)
        self.usdt = frozenset(point.probe for point in definition.usdt)
        self._definition, self._started = definition, started
        self._protection, self._returns_allowed, self._costs = protection, returns_allowed, costs
        self._patterns = {uprobe.symbol: uprobe.library for uprobe in definition.uprobes}
        self._lock = threading.RLock()
        self._known: dict[int, _Known] = {}  # by id() of the library: its (dev, ino) may be used again
        self.programs: CompiledPrograms | None = None
        self._probes: Probes | None = None
        self._before: dict[str, tuple[int, int]] = {}

    # Called by Targets (exporter.bpf.library.Interest).

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
        self._started(pid)  # now, while its labels can be read

    def processes_ended(self, pids: Collection[int]) -> None:
        with self._lock:
            for known in self._known.values():
                for pid in pids:
                    known.users.pop(pid, None)
            if self._probes:
                self._probes.processes_ended(pids)

    def processes_replaced(self, pids: Collection[int]) -> Collection[int]:
        self.processes_ended(pids)
        return pids

    # Called by the supervisor of the worker.

    def use(self, programs: CompiledPrograms) -> None:
        """Attach the worker's programs to all known libraries."""
        with self._lock:
            self.programs = programs
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
        """Detach and close the programs of a worker that ended."""
        with self._lock:
            for known in self._known.values():
                _unhook(known)
            if self.programs:
                self._before = self._runs()
                self.programs.close()
            self.programs = self._probes = None

    def states(self) -> list[HookState]:
        """Return the state of each probe point in each library."""
        with self._lock:
            states = self._probes.states() if self._probes else []
            return states + self._usdt_states()

    def collect(self) -> Iterator[Sample]:
        """Yield the metrics of the probe points and the programs."""
        with self._lock:
            probes, runs = self._probes, self._runs()
            samples = [*probes.collect()] if probes else []
            states = self._usdt_states()
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
        if self.programs and usdt.wanted(self._definition, known.library):
            known.usdt = UsdtProbes(self._definition, known.library, self.programs)
        known.link = self._probes.attach(known.library)
        for pid, from_first_call in known.users.items():
            self._probes.process_started(pid, known.library, from_first_call)

    def _usdt_states(self) -> list[HookState]:
        return [state for known in self._known.values() if known.usdt for state in known.usdt.states]

    def _hooks(self, library: Library) -> Mapping[str, Sequence[Hook]]:
        """Return the hooks for this file, by symbol. Patterns apply to the path of the file's first user."""
        hooks: dict[str, list[Hook]] = {}
        for uprobe in self._definition.uprobes:
            if uprobe.symbol in library.functions and usdt.matches(library.path, uprobe.library):
                hook = Hook(uprobe.program, 0, uprobe.returns, uprobe.paired)
                hooks.setdefault(uprobe.symbol, []).append(hook)
        return hooks

    def _release(self, library: Library) -> None:
        with self._lock:
            known = self._known.pop(id(library), None)
            if known:
                _unhook(known)

    def _runs(self) -> dict[str, tuple[int, int]]:
        """Return nanoseconds and runs of each program, those of earlier workers included."""
        runs = dict(self._before)
        for name, program in (self.programs.programs if self.programs else {}).items():
            nanoseconds, count = program.stats()
            before_nanoseconds, before = self._before.get(name, (0, 0))
            runs[name] = (before_nanoseconds + nanoseconds, before + count)
        return runs

    def _cost(self, program: str) -> float:
        """Return the seconds that a run of the program costs: the most where the placements of its functions differ."""
        costs, kinds = self._costs(), {state.symbol: state.placement for state in self.states()}
        found = [0.0]
        points = [(uprobe.symbol, uprobe.program, uprobe.returns) for uprobe in self._definition.uprobes]
        points += [(point.probe, point.program, False) for point in self._definition.usdt]
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
