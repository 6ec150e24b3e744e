"""Which files hold wanted functions, and what is attached to them: once for each real file, however it is reached."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from exporter.bpf.elf import ElfError
from exporter.bpf.library import Closeable, Interest, Library, examine, imports_of, usdt_of
from exporter.bpf.mappings import File, Mapping

MAX_LIBRARIES = 256
MAX_VERDICTS = 1 << 14
_CLOSERS = 16

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Attached:
    """A library that at least one interest is attached to, and the processes that use it."""

    library: Library
    file: File
    descriptor: int
    links: list[tuple[Interest, Closeable]]
    complete_ns: int
    """When everything was attached, CLOCK_MONOTONIC."""
    users: set[int] = field(default_factory=set)
    idle_since: float = 0.0


class Attachments:
    """Verdicts on files, kept until the file changes; attachments, kept until `grace` seconds after their last user."""

    def __init__(self, interests: Sequence[Interest], proc: Path, grace: float) -> None:
        self._interests, self._proc, self._grace = interests, proc, grace
        self._wanted = frozenset(symbol for interest in interests for symbol in interest.symbols)
        self._imported = frozenset(symbol for interest in interests for symbol in imports_of(interest))
        self._traced = frozenset(probe for interest in interests for probe in usdt_of(interest))
        self._verdicts: dict[File, Attached | None] = {}
        self._by_inode: dict[tuple[int, ...], Attached] = {}
        self._doubtful: set[File] = set()
        self.examined = self.unreadable = self.refused = self.failed = 0

    def __iter__(self) -> Iterator[Attached]:
        return iter(self._by_inode.values())

    def __len__(self) -> int:
        return len(self._by_inode)

    def is_dull(self, file: File) -> bool:
        """Whether the file was searched and holds nothing of interest."""
        return file not in self._doubtful and self._verdicts.get(file, self) is None

    def of(self, mapping: Mapping) -> Attached | None:
        """What is attached to the mapped file, attaching first if it is new; None if it is of no interest.

        Raises Gone when the mapping vanished before its file was seen.
        """
        file = mapping.file
        if file not in self._verdicts:
            self._make_room()
            self._verdicts[file] = self._judge(mapping, file)
        return self._verdicts[file]

    def retry(self) -> None:
        """Forgets the verdicts on files that could not be read or attached to, so that they are tried again."""
        for file in self._doubtful:
            self._verdicts.pop(file, None)
        self._doubtful.clear()

    def release_idle(self) -> float:
        """Detaches from libraries without users for long enough. Returns when the next is due, on time.monotonic."""
        now, next_due = time.monotonic(), float("inf")
        for attached in [attached for attached in self._by_inode.values() if not attached.users]:
            due = attached.idle_since + self._grace
            if due <= now:
                self._detach(attached)
            else:
                next_due = min(next_due, due)
        return next_due

    def close(self) -> None:
        """Detaches from everything, side by side: each waits for the kernel."""
        everything = list(self._by_inode.values())
        if everything:
            with ThreadPoolExecutor(min(len(everything), _CLOSERS), "detach") as pool:
                list(pool.map(self._detach, everything))

    def _judge(self, mapping: Mapping, file: File) -> Attached | None:
        inode = (file.inode, file.number, file.device, file.generation)
        before = self._by_inode.get(inode)
        self.examined += 1
        try:
            found = examine(self._proc, mapping, self._wanted, self._imported, self._traced)
        except ElfError as error:
            log.debug("skipped a mapped file", extra={"pid": mapping.pid, "reason": error})
            found = None
        except OSError as error:
            self.unreadable += 1
            self._doubtful.add(file)
            log.warning(
                "cannot read files mapped by processes; CAP_CHECKPOINT_RESTORE, CAP_SYS_PTRACE and "
                "CAP_DAC_READ_SEARCH give the right to: %s",
                error.strerror,
                extra={"pid": mapping.pid},
            )
            found = None
        if before is not None:
            if found and _same_code(found[0], before.library):
                os.close(found[1])
                self._verdicts.pop(before.file, None)
                before.file = file
                return before
            log.info("a library was overwritten in place", extra={"library": before.library.path})
            self._detach(before)
        return self._attach(*found, file, inode) if found else None

    def _attach(self, library: Library, descriptor: int, file: File, inode: tuple[int, ...]) -> Attached | None:
        links: list[tuple[Interest, Closeable]] = []
        if len(self._by_inode) >= MAX_LIBRARIES:
            self.refused += 1
            log.warning("more than %d different libraries are in use: the others are not observed", MAX_LIBRARIES)
        else:
            links = list(self._links(library))
        if not links:
            os.close(descriptor)
            self._doubtful.add(file)
            return None
        attached = Attached(library, file, descriptor, links, time.monotonic_ns(), idle_since=time.monotonic())
        self._by_inode[inode] = attached
        log.info("attached to a library", extra={"library": library.path, "functions": len(library.functions)})
        return attached

    def _links(self, library: Library) -> Iterator[tuple[Interest, Closeable]]:
        for interest in self._interests:
            wanted = (interest.symbols, imports_of(interest), usdt_of(interest))
            there = (library.functions.keys(), library.imports, library.usdt.keys())
            if not all(has.isdisjoint(asked) for has, asked in zip(there, wanted, strict=True)):
                try:
                    yield interest, interest.attach(library)
                except Exception as error:
                    self.failed += 1
                    log.warning("cannot attach to %s: %s", library.path, error, exc_info=not isinstance(error, OSError))

    def _detach(self, attached: Attached) -> None:
        for _, link in attached.links:
            try:
                link.close()
            except Exception:
                log.exception("detaching failed")
        os.close(attached.descriptor)
        file = attached.file
        self._verdicts.pop(file, None)
        self._by_inode.pop((file.inode, file.number, file.device, file.generation), None)
        log.info("detached from a library", extra={"library": attached.library.path})

    def _make_room(self) -> None:
        if len(self._verdicts) >= MAX_VERDICTS:
            self._verdicts = {file: attached for file, attached in self._verdicts.items() if attached}


def _same_code(new: Library, old: Library) -> bool:
    return (new.build_id, new.functions, new.imports, new.usdt) == (old.build_id, old.functions, old.imports, old.usdt)
