"""The map `returning` of an object: in which libraries return probes are attached."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

MOST_LIBRARIES = 256
"""As bpf/probe.h has it."""
NO_SWITCH = MOST_LIBRARIES - 1
"""The number of libraries without a switch: programs do not wait for the returns of their calls."""


class Numbers(Protocol):
    """The part of exporter.bpf.libbpf.Map that is needed of `returning`."""

    def set(self, key: int, value: int) -> None: ...


class Switches:
    """The map `returning` of an object, by which its programs know in which libraries return probes are attached."""

    def __init__(self, returning: Numbers) -> None:
        self._returning = returning
        self._lock = threading.Lock()
        self._free = [*range(NO_SWITCH)]
        self._turns = 0

    def take(self) -> Switch | None:
        """Returns a switch for a library, off; None where no number is left."""
        with self._lock:
            return Switch(self, self._free.pop(0)) if self._free else None

    def give(self, library: int) -> None:
        """Takes back the number of a library that is no longer probed."""
        with self._lock:
            self._free.append(library)

    def turn(self, library: int, on: bool) -> None:
        """Makes programs remember the calls of a library for their returns, or stops that.

        Each time it is on has a number of its own: calls that were remembered before are not mistaken for later ones.
        """
        with self._lock:
            self._turns += on
            self._returning.set(library, self._turns if on else 0)


@dataclass(frozen=True, slots=True)
class Switch:
    """The switch of one library: whether programs remember its calls for their returns."""

    switches: Switches
    library: int

    def turn(self, on: bool) -> None:
        self.switches.turn(self.library, on)

    def close(self) -> None:
        self.switches.give(self.library)
