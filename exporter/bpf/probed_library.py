"""A library with probes, and the processes that use it."""

from __future__ import annotations

from dataclasses import dataclass, field

from exporter.bpf.hooks import Hooked
from exporter.bpf.safety import Protection


@dataclass
class ProbedLibrary:
    """`hooked` is another one when some symbols of the library are not probed any more, or are again.

    `passing` are the users in which it passes calls on to another library, `left_out` the symbols without probes since
    it does in all of them (exporter.bpf.passing).
    """

    hooked: Hooked
    uncovered: tuple[str, ...]
    users: dict[int, Protection] = field(default_factory=dict)
    passing: set[int] = field(default_factory=set)
    left_out: frozenset[str] = frozenset()

    def sample(self, group: str, on: bool) -> None:
        """Attach what is probed in windows of a group of functions, or detach it."""
        self.hooked.sample(group, on)

    def restore(self, group: str) -> None:
        """Attach all hooks of a group of functions again."""
        self.hooked.restore(group)
