"""Programs that another process loaded, held here by their descriptors: what Probes needs of an object."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from exporter.bpf import multi
from exporter.bpf.libbpf import Program


class Loaded(Program):
    """A program of another process. `Programs.close` closes its descriptor."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.handle, self.name, self.section = 0, name, "uprobe"
        self.multi, self.session, self.fd = multi.supported(), False, descriptor


class CompiledPrograms:
    """The programs of one probe, and `arguments`, the descriptor of its map of USDT arguments (-1: it has none)."""

    def __init__(self, names: Iterable[str], descriptors: Iterable[int]) -> None:
        left = [*descriptors]
        self.programs: Mapping[str, Program] = {name: Loaded(name, left.pop(0)) for name in names}
        self.arguments = left.pop() if left else -1
        self.taken: set[int] = set()
        """Indexes of that map's entries that are in use."""

    def close(self) -> None:
        """Close the descriptors. The kernel unloads the programs once nothing is attached and the child has ended."""
        for program in self.programs.values():
            os.close(program.fd)
            program.fd = -1
        if self.arguments >= 0:
            os.close(self.arguments)
            self.arguments = -1
