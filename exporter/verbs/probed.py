"""A provider with probes, and which of its functions are probed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from exporter.bpf.elf import Function
from exporter.bpf.libbpf import Link
from exporter.bpf.library import Library
from exporter.bpf.safety import Protection
from exporter.bpf.shares import User
from exporter.verbs.code.providers import ProviderFunctions
from exporter.verbs.code.tables import SET_OPS
from exporter.verbs.functions import PROVIDED, VERSIONS_OF_A_USER, names, operation


@dataclass
class Provider:
    """A file with functions to probe: a provider, or a program that contains one and libibverbs."""

    library: Library
    found: ProviderFunctions | None = None
    learnt: bool = False
    """True if a process has shown functions that the file does not."""
    parts: list[Library] = field(default_factory=list)
    """The same file with functions found in it, no function twice."""
    links: list[Link] = field(default_factory=list)
    problem: str = ""
    refused: dict[str, str] = field(default_factory=dict)
    """Calls of the extended API that are not certain, and why."""
    attempts: Counter[User] = field(default_factory=Counter)
    """Searches of the file as a process of each user has it."""
    shown: Counter[tuple[User, str]] = field(default_factory=Counter)
    """Versions of an operation that are probed because a process of a user has shown them."""
    users: dict[int, Protection | None] = field(default_factory=dict)

    @property
    def known(self) -> set[tuple[str, int]]:
        """The functions that are probed, by name and offset in the file."""
        return {(operation(name), found.offset) for part in self.parts for name, found in part.functions.items()}

    @property
    def searched(self) -> bool:
        """Return whether nothing more can be found in the file."""
        found = self.found and "post_send" in self.found.functions and not self.found.release_unknown
        return bool(found) or SET_OPS not in self.library.imports

    @property
    def whole(self) -> bool:
        """Return whether every version of the data path's functions is found in the file."""
        return bool(self.found and self.searched and not self.found.incomplete and "poll_cq" in self.found.functions)

    def probes(self, part: Library) -> bool:
        """Return whether a library is one of the parts."""
        return any(own is part for own in self.parts)

    def part(self, found: ProviderFunctions, user: User | None) -> tuple[Library | None, Collection[str]]:
        """Return the file with the functions that are not probed yet, and operations with too many versions to probe.

        `user` is the one of the process that has shown them, None where the file has. A process may show any function,
        so the versions of one user leave some for others. The file is None where all functions are probed. Further
        versions of a function are numbered.
        """
        known, left = self.known, []
        functions: dict[str, Function] = {}
        for op in sorted(found.functions.keys() & PROVIDED):
            new = [function for function in found.functions[op] if (op, function.offset) not in known]
            free = names(op)[sum(probed == op for probed, _ in known) :]
            if user is not None:
                free = free[: max(0, VERSIONS_OF_A_USER - self.shown[user, op])]
                self.shown[user, op] += min(len(free), len(new))
            functions |= {name: replace(function, name=name) for name, function in zip(free, new, strict=False)}
            left += [op] if len(new) > len(free) else []
        part = replace(self.library, functions=functions, imports=frozenset()) if functions else None
        return part, left
