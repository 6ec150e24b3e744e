"""The hooks of one probe in one library: placed, attached in few links, and known symbol by symbol."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from exporter.bpf import uprobe
from exporter.bpf.find_places import Places
from exporter.bpf.gaps import Gaps
from exporter.bpf.hook import ALLOWED, ALWAYS, OWN_RETURN, SAMPLED, SAMPLED_RETURNS, WINDOW, Hook
from exporter.bpf.hook_group import HookGroup, Waiting
from exporter.bpf.libbpf import BpfError, Link, Program
from exporter.bpf.library import Library
from exporter.bpf.process_links import LinkedProcesses
from exporter.bpf.return_switches import NO_SWITCH, Switch
from exporter.bpf.uprobe import AttachError, Point


@dataclass(frozen=True, slots=True)
class HookState:
    """State of the probes of one symbol of one library."""

    symbol: str
    library: str
    placement: str
    """emulated or stepped; empty if no place was found."""
    attached: bool
    """True if every hook of the symbol is attached."""
    reason: str
    """Why not. If attached: empty, or that another symbol's hooks see its calls."""


class Hooked:
    """One library's hooks: attached when made, those that depend on return probes by `review`.

    `switch` is what programs read of whether these are attached, `gaps` of whether those in windows are. Hooks of a
    group that may be detached (Hook.sampled) use a switch of their own if `own` has one, and `linked` for processes
    with links of their own. What fails is a reason in `states`, never an error.
    """

    def __init__(
        self,
        programs: Mapping[str, Program],
        library: Library,
        hooks: Mapping[str, Sequence[Hook]],
        places: Places,
        switch: Switch | None = None,
        linked: Mapping[str, LinkedProcesses] = MappingProxyType({}),
        gaps: Gaps | None = None,
        own: Mapping[str, Switch] = MappingProxyType({}),
        waiting: Waiting | None = None,
    ) -> None:
        self.library, self.places, self._switch, self.gaps = library, places, switch, gaps
        self.returned = False
        """True once return probes have been attached."""
        self._programs, self._hooks = programs, hooks
        self._lock = threading.Lock()
        self._failed: dict[tuple[str, str], str] = {}
        self._return_links: list[Link] = []
        self._own = own
        self._refusal = "no return probes: no process uses the library yet"
        self._closed = False
        self._links = self._attach(ALWAYS)
        found = [hook for it in places.found for hook in hooks[it]]
        self._groups = {
            name: HookGroup(
                name,
                [hook for hook in found if hook.sampled == name],
                partial(self._attach, group=name),
                partial(self._attach_to, group=name),
                own[name].turn if name in own else self._turn,
                own.get(name),
                linked.get(name),
                gaps,
                waiting,
            )
            for name in dict.fromkeys(hook.sampled for hook in found if hook.sampled)
        }

    def review(self, allowed: bool, reason: str) -> None:
        """Attaches or detaches return probes, and entries paired with them, as is allowed now.

        Other entries stay, so that each call counts once; their programs are switched to remember calls last, and back
        first.
        """
        with self._lock:
            if self._closed:
                return
            if not allowed:
                self._turn_all(on=False)
                for link in reversed(self._return_links):  # entries first: none is left waiting for its return
                    link.close()
                self._return_links = []
                self._refusal = f"no return probes: {reason}"
                for group in self._groups.values():
                    group.forbid()
            elif self._refusal:
                self._refusal = ""
                self._return_links = self._attach(ALLOWED)
                for group in self._groups.values():
                    group.allow()
                self.returned |= bool(self._return_links) or any(it.returned for it in self._groups.values())
                self._turn_all(on=True)

    @property
    def number(self) -> int | None:
        """The number of the library in cookies; None where none was left, or it was given back."""
        return self._switch.library if self._switch and not self._closed else None

    @property
    def numbers(self) -> list[int]:
        """All its numbers: those of groups too."""
        own = [it.library for it in self._own.values()]
        return [] if self._closed else [*([self._switch.library] if self._switch else []), *own]

    def sampled(self, group: str) -> frozenset[str]:
        """The symbols with hooks of a group that may be detached for a part of the time."""
        if group not in self._groups or not self._groups[group].may_sample:
            return frozenset()
        return frozenset(it for it in self.places.found if any(hook.sampled == group for hook in self._hooks[it]))

    def is_whole(self, group: str) -> bool:
        """Return whether all hooks of a group are attached."""
        return self._groups[group].whole

    def sample(self, group: str, on: bool) -> None:
        """Attaches what a group has in windows, or detaches all of it; harmless where that is so already."""
        with self._lock:
            if not self._closed:
                self._groups[group].sample(on)

    def restore(self, group: str) -> None:
        """Attaches all hooks of a group again."""
        with self._lock:
            if not self._closed:
                self._groups[group].restore()

    def keep(self, group: str, pids: Collection[int]) -> Collection[int]:
        """Keeps the hooks of a group in just these processes, whatever `sample` does. Returns those where they are."""
        with self._lock:
            return () if self._closed else self._groups[group].keep(pids)

    def leave(self, pids: Collection[int]) -> None:
        """Forgets processes that have ended."""
        with self._lock:
            for group in self._groups.values():
                group.leave(pids)

    @property
    def refused(self) -> bool:
        """Return whether return probes are wanted and not allowed at present."""
        return bool(self._refusal) and any(self._waits_for_returns(symbol) for symbol in self.places.found)

    def states(self) -> Iterator[HookState]:
        with self._lock:
            library = self.library.path
            for symbol, reason in self.places.problems.items():
                yield HookState(symbol, library, "", False, reason)
            reasons = {symbol: self._why_not(symbol) for symbol in self.places.found}
            for symbol, reason in reasons.items():
                yield HookState(symbol, library, self.places.found[symbol].kind, not reason, reason)
            for symbol, probed in self.places.same.items():
                kind = self.places.found[probed].kind if probed in reasons else ""
                reason = reasons.get(probed) or self.places.problems.get(probed, "")
                yield HookState(symbol, library, kind, not reason, reason or f"the same code as {probed}")

    def close(self) -> None:
        """Detaches everything; harmless when done before."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._turn_all(on=False)
            groups = self._groups.values()
            for group in groups:
                group.keep(())
            uprobe.close_all([*self._return_links, *self._links, *(link for it in groups for link in it.links)])
            if self.gaps:
                self.gaps.forget()
            for switch in [*([self._switch] if self._switch else []), *self._own.values()]:
                switch.close()

    def _turn(self, on: bool) -> None:
        if self._switch:
            self._switch.turn(on)

    def _turn_all(self, on: bool) -> None:
        """Have programs wait for returns where the probes for that are attached, or nowhere."""
        self._turn(on and all(it.on for it in self._groups.values() if not it.switch))
        for group in self._groups.values():
            if group.switch:
                group.switch.turn(on and group.whole)

    def _why_not(self, symbol: str) -> str:
        refusal = self._refusal if self._waits_for_returns(symbol) else ""
        conditions = ALWAYS, SAMPLED, SAMPLED_RETURNS, ALLOWED, WINDOW
        failed = (self._failed.get((symbol, when)) for when in conditions)
        return next(filter(None, failed), refusal)

    def _waits_for_returns(self, symbol: str) -> bool:
        return any(hook.returns or hook.paired for hook in self._hooks[symbol])

    def _number(self, group: str) -> int:
        switch = self._own.get(group) or self._switch
        return switch.library if switch else NO_SWITCH

    def _attach(self, when: str, group: str = "") -> list[Link]:
        """The links of all hooks that are attached then; return probes come first."""
        groups: dict[tuple[bool, str], dict[Point, str]] = {}
        for symbol, placement in self.places.found.items():
            for hook in self._hooks[symbol]:
                if hook.sampled == group and (hook.attached == when or (hook.window and when == WINDOW)):
                    self._failed.pop((symbol, when), None)
                    program = hook.window if when == WINDOW else hook.program
                    points = groups.setdefault((not hook.returns, program), {})
                    points[hook.point(self.library.functions[symbol], placement, self._number(group))] = symbol
        links = []
        for (entry, program), symbols in sorted(groups.items()):
            link, failed = self._attach_group(self._programs[program], symbols, not entry)
            links += [link] if link else []
            self._failed.update({(symbol, when): reason for symbol, reason in failed.items()})
        return links

    def _attach_to(self, pid: int, group: str) -> Link:
        """The links of the hooks of a group to one process, those at returns first."""
        points: dict[tuple[bool, str], list[Point]] = {}
        number = self._number(group)
        for symbol, placement in self.places.found.items():
            for hook in self._hooks[symbol]:
                if hook.sampled == group and hook.of_one and not (hook.returns and self._refusal):
                    made = hook.point(self.library.functions[symbol], placement, number)
                    if hook.numbered and self.gaps and not self._refusal:
                        made = replace(made, cookie=made.cookie | OWN_RETURN)
                    points.setdefault((not hook.returns, hook.of_one), []).append(made)
        links: list[Link] = []
        try:
            for (entry, program), places in sorted(points.items()):
                path = self.library.open_path
                links.append(uprobe.attach_to(self._programs[program], path, places, pid, not entry))
        except BpfError:
            uprobe.close_all(links)
            raise
        return Link(partial(_close_in_order, links[::-1]))

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


def _close_in_order(links: Sequence[Link]) -> None:
    for link in links:
        link.close()
