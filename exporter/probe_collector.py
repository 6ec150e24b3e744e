"""Base class of the collectors of probes: one BPF object, its processes, its events and its losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from exporter.bpf import object_path
from exporter.bpf.events import Events
from exporter.bpf.hook import Hook
from exporter.bpf.libbpf import BpfError, Link, Object
from exporter.bpf.library import Interest, Library
from exporter.bpf.maps import MAP_FULL
from exporter.bpf.native import not_started
from exporter.bpf.probe import Probes
from exporter.bpf.probe_metrics import RETURNS_SKIPPED
from exporter.bpf.safety import Protection, protection
from exporter.bpf.status import ENDED_FOLDED
from exporter.governor.governor import Governed
from exporter.governor.payer import Payer
from exporter.governor.subject import Subject
from exporter.ledger import RETENTION, Activity, Ledger, Process
from exporter.model import Sample
from exporter.node import Node, Processes
from exporter.series import SeriesLimit

A = TypeVar("A", bound=Activity)
Table = Mapping[str, Sequence[Hook]]
Receivers = Mapping[str, Callable[[Any], object]]


class ProbeCollector(ABC, Generic[A]):
    """A collector of the BPF object of its name: loads it, has its programs attached to libraries as discovery finds
    them, counts by process, reads its events, and reports what it had no room for.

    A subclass gives `name`, `api`, `_table`, `_read`, `_take`, `_samples`, `_samples_of` and `_hits`; the other methods
    have defaults for a probe without settings, constants, events and return probes' special cases.
    """

    name: ClassVar[str]
    """As in --collector.<name> and bpf/<name>.bpf.c."""
    api: ClassVar[str]
    """The probed API in messages: "CUDA"."""
    gather: ClassVar[float] = 0.0
    """Seconds for which records may gather before they are read."""
    look: ClassVar[float] = 0.0
    """Seconds after which records are looked for that programs announce seldom (exporter.bpf.events)."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._limit = SeriesLimit(self.name, node.settings["series-limit"], profile=node.profile)
        self.returns = False
        self.watches: list[Governed] = []
        self._payer: Payer | None = None
        self._loaded = False

    def load(self) -> None:
        """Load the programs, which takes the kernel long; from any thread, before `start`. Raises as `start` does."""
        try:
            self.object = Object(object_path(self.name), constants=self.constants(), entries=self.entries())
        except BpfError as error:
            raise not_started(f"the {self.api} probes cannot be loaded", error) from error
        self._loaded = True

    def start(self) -> None:
        """Load the programs unless they are; libraries are attached to as discovery finds them.

        Raises Unavailable where the node lacks what the programs need, and BpfError for other failures.
        """
        if not self._loaded:
            self.load()
        self._loaded = False
        self._follow_threads()
        self._prepare()
        self.ledger = Ledger[A](self._read, self._take, self._processes(), self.node.proc, fold=self._fold)
        self.probes = Probes(
            self.name,
            self.object,
            self._table(),
            hits=self._hits,
            protection=partial(protection, self.node.proc),
            returns_allowed=self._returns_allowed,
            costs=self.node.trial.costs,
            listener=self,
            **self._options(),
        )
        watches = [self.node.governor.watch(it) for it in self._subjects()]
        self.watches = [it for it in watches if it]
        self._payer = Payer(self.probes.spent, self.costs)
        self.node.governor.charge(self._payer)
        interest = self._interest()
        self._events = Events()
        for stream, receive in self._receivers().items():
            self._events.add(self.object.maps[stream], receive)
        self._events.start(f"{self.name} events", self.gather, self.look)
        self.node.targets.want(interest)

    def _follow_threads(self) -> None:
        """Attach the programs that are in no library: at ends of threads, and at exec where the object has one."""
        programs = self.object.programs
        self._attached: list[Link] = []
        try:
            for name in ("on_thread_end", *({"on_exec"} & programs.keys())):
                self._attached.append(programs[name].attach())
        except BpfError as error:
            for link in self._attached:
                link.close()
            self.object.close()
            raise not_started("ends of threads cannot be watched", error) from error

    def collect(self) -> Iterator[Sample]:
        """Yield the samples of processes within the series limit, then those about the probe itself.

        Raises Unavailable, or BpfError for other failures, where libraries are not searched for.
        """
        self.node.targets.require()
        with self.ledger.page():
            limited = self._limit.apply(self._samples())
        yield from limited
        yield from self.probes.collect()
        for first, *others in [self.watches] if self.watches else []:
            yield from first.collect(others)
        yield from self._events.collect()
        yield ENDED_FOLDED.sample(self.ledger.folded, {"collector": self.name})
        yield from self._losses()

    def problems(self) -> Iterator[str]:
        """Yield what is not probed, and why, for the landing page."""
        for state in self.probes.states():
            if not state.attached:
                yield f"{state.symbol} in {state.library}: {state.reason}"
        for library, other in self.probes.passed().items():
            yield f"{library}: its calls count where it passes them on to, in {other}"
        for library, names in self.probes.uncovered().items():
            for name in names:
                yield f"{name} in {library}: a function that no probe covers"
        for watch in self.watches:
            yield from watch.problems()

    def close(self) -> None:
        """Unload; discovery has detached before. Nothing else may be called afterwards."""
        self.node.governor.leave(self.watches, self._payer)
        self._events.close()
        for link in self._attached:
            link.close()
        self.object.close()

    # The processes of probed libraries (exporter.bpf.probe.Listener).

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        """Report this process from now on."""
        self.ledger.started(pid)
        self.node.governor.wake()

    def processes_ended(self, pids: Collection[int]) -> None:
        """Keep the last counts of these processes for the ledger's retention."""
        self.ledger.ended(pids)
        self._forget(pids)

    def processes_replaced(self, pids: Collection[int]) -> Collection[int]:
        """Keep the last counts of these processes, and read the labels of the programs that they run now. Return the
        processes that had counts.
        """
        counted = self.ledger.ended(pids, replaced=True)
        self._forget(pids)
        for pid in pids:
            self.node.processes.forget(pid)
        return counted

    # What a probe consists of.

    @abstractmethod
    def _table(self) -> Table:
        """Return the hooks by symbol."""

    @abstractmethod
    def _read(self) -> Mapping[int, A]:
        """Return the counts of processes by pid, as the kernel has them."""

    @abstractmethod
    def _take(self, pids: Collection[int]) -> Mapping[int, A]:
        """Remove all that the kernel has of these processes, and return their counts."""

    @abstractmethod
    def _samples(self) -> Iterator[Sample]:
        """Yield the samples of all processes of the ledger."""

    @abstractmethod
    def _samples_of(self, process: Process[A]) -> Iterator[Sample]:
        """Yield the samples of an ended process. Called from any thread, but by others only between two pages."""

    @abstractmethod
    def _hits(self) -> Mapping[str, int]:
        """Return the calls by symbol, those of ended processes included."""

    def constants(self) -> Mapping[str, int]:
        """Return the values of the object's constants."""
        return {}

    def entries(self) -> Mapping[str, int]:
        """Return the sizes of maps that are not those of the source."""
        return {}

    def _forget(self, pids: Collection[int]) -> None:
        """Drop what is known of processes that have ended or run other programs, besides their counts."""

    def _fold(self, process: Process[A]) -> None:
        self._limit.retire(self._samples_of(process), RETENTION)

    def _prepare(self) -> None:
        """Make what depends on the loaded object."""

    def _processes(self) -> Processes:
        return self.node.processes

    def _options(self) -> Mapping[str, Any]:
        """Return further arguments of Probes."""
        return {}

    def _interest(self) -> Interest:
        """Return what is given the libraries that have a symbol of the table: the probes, or what attaches them."""
        return self.probes

    def _subject(self) -> Subject | None:
        """Return what of the probe may be left out for a part of the time where it costs too much."""
        return None

    def _subjects(self) -> Sequence[Subject]:
        """Return that, and what is left out after it."""
        subject = self._subject()
        return [subject] if subject else []

    @property
    def watch(self) -> Governed | None:
        """Return the watch of the first subject; None without one, or without a bound."""
        return self.watches[0] if self.watches else None

    def costs(self, pids: Collection[int]) -> Mapping[int, float]:
        """Return the seconds that probes took from each of these processes; empty with a subject, which has them."""
        return {}

    def _receivers(self) -> Receivers:
        """Return what receives the records of each ring buffer, in one thread for all."""
        return {}

    def _returns_allowed(self, users: Collection[Protection]) -> tuple[bool, str]:
        """Return whether return probes are safe for these users, and why not. Called just before process_started."""
        self.returns, reason = self.node.trial.returns_allowed(users)
        return self.returns, reason

    def _losses(self) -> Iterator[Sample]:
        """Yield the keys that maps had no room for; records lost by ring buffers are among the events' samples."""
        counted = self.object.globals()
        if "returns_skipped" in counted:
            yield RETURNS_SKIPPED.sample(counted["returns_skipped"], {"probe": self.name})
        for name, rows in self.object.maps.items():
            if f"{name}_lost" in counted and rows.can_be_full:
                yield MAP_FULL.sample(counted[f"{name}_lost"], {"map": f"{self.name}_{name}"})
