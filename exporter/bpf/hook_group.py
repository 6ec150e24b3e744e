"""The hooks of one library that may be detached together while the others stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from exporter.bpf import uprobe
from exporter.bpf.gaps import Gaps
from exporter.bpf.hook import SAMPLED, SAMPLED_RETURNS, WINDOW, Hook
from exporter.bpf.libbpf import Link
from exporter.bpf.process_links import LinkedProcesses, ProcessLinks
from exporter.bpf.return_switches import Switch

RETURN_SECONDS, _PAUSE = 0.25, 0.002
"""Time that calls have to return before what waits for their return is detached. Most waits take less."""


class Waiting(Protocol):
    """Calls that wait for return probes: exporter.cuda.standing has those of CUDA."""

    def of(self, library: int, linked: bool) -> Collection[int]:
        """Return the processes with such calls in the library of this number, of links for one process or for all."""

    def incomplete(self, group: str, pids: Collection[int]) -> None:
        """Take note that returns of some calls of these processes are not seen."""


class HookGroup:
    """Hooks that are attached by `Hook.sampled`; with `window`, others are attached in windows.

    `attach` makes the links of a condition, `attach_to` those of one process. `switch` is the group's own, None where
    it uses the library's, which `turn` turns too. Its library's lock is held in all calls.
    """

    def __init__(
        self,
        name: str,
        hooks: Sequence[Hook],
        attach: Callable[[str], list[Link]],
        attach_to: Callable[[int], Link],
        turn: Callable[[bool], None],
        switch: Switch | None = None,
        linked: LinkedProcesses | None = None,
        gaps: Gaps | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        self.name, self.switch, self._gaps = name, switch, gaps
        self.has_returns = any(it.returns for it in hooks)
        self._has_window = any(it.window for it in hooks)
        self._numbered = any(it.numbered for it in hooks)
        self._attach, self._turn, self._waiting = attach, turn, waiting
        self._linked = ProcessLinks(linked, attach_to, self._wait_for_own) if linked else None
        self._allowed = False
        self._entries, self._returns, self._window = attach(SAMPLED), list[Link](), list[Link]()
        self._in_window = False
        self.whole = bool(self._entries)
        """True while all hooks are attached, as far as they are allowed."""

    @property
    def may_sample(self) -> bool:
        """Return whether these may be detached: programs of those with a number have to know when they were."""
        return not self._numbered or self._gaps is not None or self.switch is not None

    @property
    def on(self) -> bool:
        """Return whether returns of calls are seen, where return probes are allowed."""
        return self.whole or not self.has_returns

    @property
    def returned(self) -> bool:
        return bool(self._returns)

    @property
    def pids(self) -> Collection[int]:
        """The processes that have links of their own."""
        return self._linked.pids if self._linked else ()

    @property
    def links(self) -> list[Link]:
        return [*self._window, *self._entries, *self._returns]

    def allow(self) -> None:
        """Attach return probes, unless all are detached. The switch is turned afterwards."""
        self._allowed = True
        self._returns = self._attach(SAMPLED_RETURNS) if self.whole else []
        self._link_again()

    def forbid(self) -> None:
        """Detach return probes, as the switch is off."""
        changed, self._allowed = self._allowed, False
        uprobe.close_all(self._returns)
        self._returns = []
        if changed:
            self._link_again()

    def sample(self, on: bool) -> None:
        """Attach what is attached in windows, or detach all; harmless where that is so already."""
        if on == (self.whole or self._in_window):
            return
        if on and self._has_window:
            self._window = self._attach(WINDOW)
            self._in_window = bool(self._window)
        elif on:
            self._attach_all()
        elif self.whole:
            self._detach()
        else:
            self._close_window()

    def restore(self) -> None:
        """Attach all again, as windows have ended."""
        if not self.whole:
            self._close_window()
            self._attach_all()

    def _close_window(self) -> None:
        uprobe.close_all(self._window)
        self._window, self._in_window = [], False

    def _attach_all(self) -> None:
        self._entries = self._attach(SAMPLED)  # first: they end calls that were begun before the gap
        self._returns = self._attach(SAMPLED_RETURNS) if self._allowed else []
        self.whole = bool(self._entries)
        if self.has_returns and self._allowed:
            self._turn(True)
        if self._gaps:
            self._gaps.end()

    def _detach(self) -> None:
        if self._gaps:
            self._gaps.begin()
        if pids := set(self.pids):
            self._wait(pids, linked=False)  # for calls that they began before they had links
        if self.has_returns:
            self._turn(False)  # no further call waits for its return
        self.whole = False
        uprobe.close_all([*self._entries, *self._returns])
        self._entries, self._returns = [], []

    def _wait_for_own(self, pids: Collection[int]) -> None:
        if self.whole:  # else calls of these processes are not seen from now on
            self._wait(set(pids), linked=True)

    def _wait(self, pids: set[int], linked: bool) -> None:
        if not self.switch or not self._waiting:
            return
        end = time.monotonic() + RETURN_SECONDS
        while left := pids.intersection(self._waiting.of(self.switch.library, linked)):
            if time.monotonic() > end:
                self._waiting.incomplete(self.name, left)
                return
            time.sleep(_PAUSE)

    def keep(self, pids: Collection[int]) -> Collection[int]:
        """Keep these hooks in just these processes, whatever `sample` does. Return those where they are."""
        seen = self._allowed or not self.has_returns
        return self._linked.keep(pids, self._gaps.of_link() if self._gaps else int(seen)) if self._linked else ()

    def _link_again(self) -> None:
        """Give processes with links of their own those that return probes are part of, or are no more."""
        if self._linked and (pids := self._linked.pids):
            self._linked.keep(())
            self.keep(pids)

    def leave(self, pids: Collection[int]) -> None:
        """Forget processes that have ended."""
        if self._linked:
            self._linked.leave(pids)
