"""The place where a collector that captures stacks publishes its profiles, and where the HTTP server finds them."""

from __future__ import annotations

import threading
from typing import NoReturn

from exporter.stack_profiles.frozen import FrozenProfiles
from exporter.stack_profiles.hangs import HangProfiles, StandingCalls
from exporter.stack_profiles.model import ProfileSource, StackProfile

NOBODY = "no collector that captures stacks is switched on"


class StackProfiles:
    """The source of profiles, if there is one, and those that were kept. Safe from any thread.

    Kept profiles stay when a source is withdrawn, as at a reload of the settings.
    """

    def __init__(self, wanted: bool = False) -> None:
        self.wanted = wanted
        """True if profiles are shown: collectors then take stacks."""
        self._lock = threading.Lock()
        self._source: ProfileSource = _Nothing()
        self.frozen = FrozenProfiles()
        self.hangs = HangProfiles()
        self.standing = StandingCalls()

    @property
    def source(self) -> ProfileSource:
        """The published source; without any, one with the problem NOBODY."""
        with self._lock:
            return self._source

    def publish(self, source: ProfileSource) -> None:
        """Make a source that of this exporter, in place of another; for `start` of a collector."""
        with self._lock:
            self._source = source

    def withdraw(self, source: ProfileSource) -> None:
        """Take a source back, unless another has been published since; for `close` of a collector."""
        with self._lock:
            if self._source is source:
                self._source = _Nothing()


class _Nothing:
    """No source."""

    def inuse(self) -> StackProfile:
        self._refuse()

    def alloc(self) -> StackProfile:
        self._refuse()

    def launches(self) -> StackProfile:
        self._refuse()

    def problem(self) -> str:
        return NOBODY

    def _refuse(self) -> NoReturn:
        raise RuntimeError(NOBODY)
