"""One custom probe's side of the search for libraries: what is attached where, whichever child has the programs."""

from __future__ import annotations

import fnmatch
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from exporter.bpf.calibrate import Costs
from exporter.bpf.libbpf import Link
from exporter.bpf.library import Library
from exporter.bpf.probe import OVERHEAD, RUN, Hook, Probes, State
from exporter.bpf.safety import Protection
from exporter.custom import metrics
from exporter.custom.definition import Definition
from exporter.custom.programs import Programs
from exporter.model import Sample


@dataclass
class _Known:
    library: Library
    users: dict[int, bool] = field(default_factory=dict)
    """Pids, and whether they were seen from their first call."""
    link: Link | None = None


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
            if self._hooks(library):
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

    def process_ended(self, pid: int) -> None:
        with self._lock:
            for known in self._known.values():
                known.users.pop(pid, None)
            if self._probes:
                self._probes.process_ended(pid)

    def process_replaced(self, pid: int) -> None:
        self.process_ended(pid)

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
                if known.link:
                    known.link.close()
                    known.link = None
            if self._programs:
                self._before = self._runs()
                self._programs.close()
            self._programs = self._probes = None

    def states(self) -> list[State]:
        with self._lock:
            return self._probes.states() if self._probes else []

    def waiting(self) -> bool:
        """Whether no process uses any file that this probe is for."""
        with self._lock:
            return bool(self.symbols) and not self._known

    def collect(self) -> Iterator[Sample]:
        with self._lock:
            probes, runs = self._probes, self._runs()
            samples = [*probes.collect()] if probes else []
        probe = self._definition.name
        yield from (sample for sample in samples if sample.metric is not RUN)
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
        known.link = self._probes.attach(known.library)
        for pid, from_first_call in known.users.items():
            self._probes.process_started(pid, known.library, from_first_call)

    def _hooks(self, library: Library) -> Mapping[str, Sequence[Hook]]:
        """Those for this file, by the names that its first user knows it by."""
        hooks: dict[str, list[Hook]] = {}
        for it in self._definition.hooks:
            if it.symbol in library.functions and matches(library.path, it.library):
                hooks.setdefault(it.symbol, []).append(Hook(it.program, 0, it.returns, it.paired))
        return hooks

    def _release(self, library: Library) -> None:
        with self._lock:
            known = self._known.pop(id(library), None)
            if known and known.link:
                known.link.close()

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
        for hook in self._definition.hooks:
            placement = kinds.get(hook.symbol)
            if costs and hook.program == program and placement in ("emulated", "stepped"):
                kind = "emulated" if placement == "emulated" else "stepped"
                found.append(costs.of(kind, hook.returns) or 0.0)  # type: ignore[arg-type]
        return max(found)


def matches(path: str, pattern: str) -> bool:
    """Whether a file is meant: a pattern with a slash is of the whole path, any other of the file's name."""
    return fnmatch.fnmatchcase(path if "/" in pattern else PurePath(path).name, pattern)
