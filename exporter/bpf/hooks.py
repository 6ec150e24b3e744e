"""The hooks of one probe in one library: placed, attached in few links, and known symbol by symbol."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from exporter.bpf import uprobe
from exporter.bpf.find_places import Places
from exporter.bpf.gaps import Gaps
from exporter.bpf.hook import ALLOWED, ALWAYS, OWN_RETURN, SAMPLED, SAMPLED_RETURNS, Hook
from exporter.bpf.libbpf import BpfError, Link, Program
from exporter.bpf.library import Library
from exporter.bpf.process_links import LinkedProcesses, ProcessLinks
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

    `switch` is what programs read of whether these are attached, `gaps` of whether those in windows are. What fails is
    a reason in `states`, never an error.
    """

    def __init__(
        self,
        programs: Mapping[str, Program],
        library: Library,
        hooks: Mapping[str, Sequence[Hook]],
        places: Places,
        switch: Switch | None = None,
        linked: LinkedProcesses | None = None,
        gaps: Gaps | None = None,
    ) -> None:
        self.library, self.places, self._switch, self.gaps = library, places, switch, gaps
        self.returned = False
        """True once return probes have been attached."""
        self._programs, self._hooks = programs, hooks
        self._lock = threading.Lock()
        self._failed: dict[tuple[str, str], str] = {}
        self._return_links: list[Link] = []
        self._sampled_return_links: list[Link] = []
        self._refusal = "no return probes: no process uses the library yet"
        self._closed = False
        self._linked = ProcessLinks(linked, self._attach_to) if linked else None
        self._links = self._attach(ALWAYS)
        self._sampled_links = self._attach(SAMPLED)

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
                uprobe.close_all(self._sampled_return_links)
                changed = not self._refusal
                self._return_links, self._sampled_return_links = [], []
                self._refusal = f"no return probes: {reason}"
                self._link_again(changed)
            elif self._refusal:
                self._refusal = ""
                self._return_links = self._attach(ALLOWED)
                if self._sampled_links:
                    self._sampled_return_links = self._attach(SAMPLED_RETURNS)
                self._link_again(True)
                self.returned = self.returned or bool(self._return_links or self._sampled_return_links)
                self._turn(on=bool(self._sampled_links) or not self._has_sampled_returns)

    @property
    def number(self) -> int | None:
        """The number of the library in cookies; None where none was left, or it was given back."""
        return self._switch.library if self._switch and not self._closed else None

    @property
    def sampled(self) -> frozenset[str]:
        """The symbols with hooks that may be detached for a part of the time."""
        return frozenset(it for it in self.places.found if self._may_sample([h for h in self._hooks[it] if h.sampled]))

    def _may_sample(self, hooks: Sequence[Hook]) -> bool:
        """Return whether these may be detached: programs of those with a number have to know when they were."""
        return bool(hooks) and (self.gaps is not None or not any(it.numbered for it in hooks))

    def sample(self, on: bool) -> None:
        """Attaches the `sampled` hooks, or detaches them; harmless where that is so already."""
        with self._lock:
            if self._closed or on == bool(self._sampled_links):
                return
            if on:
                self._failed = {
                    key: why for key, why in self._failed.items() if key[1] not in (SAMPLED, SAMPLED_RETURNS)
                }
                self._sampled_links = self._attach(SAMPLED)  # first: they end calls that were begun before the gap
                self._sampled_return_links = [] if self._refusal else self._attach(SAMPLED_RETURNS)
                if self._has_sampled_returns and not self._refusal:
                    self._turn(on=True)
                if self.gaps:
                    self.gaps.end()
                return
            if self.gaps:
                self.gaps.begin()
            if self._has_sampled_returns:
                self._turn(on=False)  # no further call waits for its return
            uprobe.close_all([*self._sampled_links, *self._sampled_return_links])
            self._sampled_links, self._sampled_return_links = [], []

    @property
    def _has_sampled_returns(self) -> bool:
        return any(hook.sampled and hook.returns for it in self.places.found for hook in self._hooks[it])

    def keep(self, pids: Collection[int]) -> Collection[int]:
        """Keeps the `sampled` hooks in just these processes, whatever `sample` does. Returns those where they are."""
        with self._lock:
            return () if self._closed else self._keep(pids)

    def _keep(self, pids: Collection[int]) -> Collection[int]:
        since = self.gaps.of_link() if self.gaps else 1
        return self._linked.keep(pids, since) if self._linked else ()

    def _link_again(self, changed: bool) -> None:
        """Give processes with links of their own those that return probes are part of, or are no more."""
        if changed and self._linked and (pids := self._linked.pids):
            self._linked.keep(())
            self._keep(pids)

    def leave(self, pids: Collection[int]) -> None:
        """Forgets processes that have ended."""
        with self._lock:
            if self._linked:
                self._linked.leave(pids)

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
            self._turn(on=False)
            if self._linked:
                self._linked.keep(())
            uprobe.close_all([*self._return_links, *self._sampled_links, *self._links, *self._sampled_return_links])
            if self.gaps:
                self.gaps.forget()
            if self._switch:
                self._switch.close()

    def _turn(self, on: bool) -> None:
        if self._switch:
            self._switch.turn(on)

    def _why_not(self, symbol: str) -> str:
        refusal = self._refusal if self._waits_for_returns(symbol) else ""
        failed = (self._failed.get((symbol, when)) for when in (ALWAYS, SAMPLED, SAMPLED_RETURNS, ALLOWED))
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
        """The links of the sampled hooks to one process, those at returns first."""
        points: dict[tuple[bool, str], list[Point]] = {}
        number = self._switch.library if self._switch else NO_SWITCH
        for symbol, placement in self.places.found.items():
            for hook in self._hooks[symbol]:
                if hook.of_one and not (hook.returns and self._refusal):
                    made = hook.point(self.library.functions[symbol], placement, number)
                    if hook.numbered and not self._refusal:
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
