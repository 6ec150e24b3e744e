"""Which files hold wanted functions, and what is attached to them: once for each real file, however it is reached."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from exporter import descriptors
from exporter.bpf import multi, places, uprobe
from exporter.bpf.elf import ElfError
from exporter.bpf.file_worker import WORKER, ChildError, Held, Stuck, TooLong
from exporter.bpf.library import (
    Closeable,
    Examined,
    Interest,
    KeepingInterest,
    Library,
    Wait,
    examine,
    imports_of,
    usdt_of,
)
from exporter.bpf.mappings import File, Mapping
from exporter.bpf.shares import NOBODY, Shares, User

MAX_LIBRARIES = 256
FOR_ROOT = 64
"""Places among these that only files get which belong to root, as those of the system and of images do."""
MAX_VERDICTS = 1 << 14
MAX_REFUSED = 1 << 12
REFUSED_SECONDS = 600.0
"""So long a file that took too long is not read again, also if it has changed."""
ROUND_SECONDS = 0.5
"""Time of an ordinary processor for reading files in a round of looks at processes."""
LINKS = 32
"""Descriptors of one library's multi-uprobe links, at most: one for each program that is attached to it."""
_HOOKS = 2
"""Points of a function: its call and its return."""
_ROOT = 0
_CLOSERS = 16
_WAIT_SECONDS = 2.0
"""Time after which the credit of a user is looked at again."""

_REFUSALS = {
    "limit": "too many different libraries are in use",
    "share": "too many different libraries of its user are in use",
    "descriptors": descriptors.RAISE,
}

_GIVEN_UP = "its user has more than others of all places, which are taken"

_Inode = tuple[int, ...]

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Attached:
    """A library that at least one interest is attached to, and the processes that use it. Links are only added."""

    library: Library
    file: File
    held: Held
    user: User
    """Who the place is counted to."""
    links: list[tuple[Interest, Closeable]]
    complete_ns: int
    """When the last link was attached, CLOCK_MONOTONIC."""
    users: set[int] = field(default_factory=set)
    idle_since: float = 0.0
    detached: bool = False
    """Whether it is attached to no more, though processes may have it mapped: it was overwritten."""


class Attachments:
    """Verdicts on files, kept until the file changes; attachments, kept until `grace` seconds after their last user."""

    def __init__(self, interests: Sequence[Interest], proc: Path, grace: float) -> None:
        self._interests, self._proc, self._grace = interests, proc, grace
        self._wanted = frozenset(symbol for interest in interests for symbol in interest.symbols)
        self._imported = frozenset(symbol for interest in interests for symbol in imports_of(interest))
        self._traced = frozenset(probe for interest in interests for probe in usdt_of(interest))
        self._verdicts: dict[File, Attached | None] = {}
        self._by_inode: dict[_Inode, Attached] = {}
        self._doubtful: set[File] = set()
        self._turned_away: dict[File, set[User]] = {}
        """The users who had no place for a file: others may have."""
        self._refused: dict[_Inode, float] = {}
        self._shares = Shares(proc)
        self._pid, self._user = 0, NOBODY
        self._round = float("inf")
        self._contended = False
        self.examined = self.unreadable = self.failed = 0
        self.refused: Counter[str] = Counter()
        """Libraries that there was no place for, by reason."""
        self.unsearched: Counter[str] = Counter()
        """Files that were not searched, by reason."""

    def __iter__(self) -> Iterator[Attached]:
        return iter(self._by_inode.values())

    def __len__(self) -> int:
        return len(self._by_inode)

    def is_dull(self, file: File) -> bool:
        """Whether the file was searched and holds nothing of interest."""
        return file not in self._doubtful and self._verdicts.get(file, self) is None

    @contextmanager
    def on_account_of(self, pid: int) -> Iterator[None]:
        """Counts what is read and attached to meanwhile to the user of this process, looked up where there is any."""
        self._pid, self._user, before = pid, NOBODY, WORKER.spent()
        try:
            yield
        finally:
            spent = WORKER.spent() - before
            self._round -= spent
            if spent:
                self._shares.spend(self._payer(), spent)
            self._pid, self._user = 0, NOBODY

    def begin_round(self, pids: Iterable[int]) -> list[int]:
        """Begin a round of looks at processes, and return them in the order in which they are to be looked at.

        When files have taken ROUND_SECONDS of a round, those of other processes are left for the next one. In that one
        processes of users who have spent least are first, so that files of many users delay no newcomer for long.
        """
        contended, self._round, self._contended = self._contended, ROUND_SECONDS, False
        if not contended:
            return list(pids)
        return sorted(pids, key=lambda pid: self._shares.left(self._shares.user(pid)), reverse=True)

    def _payer(self) -> User:
        if self._pid:
            self._pid, self._user = 0, self._shares.user(self._pid)
        return self._user

    def of(self, mapping: Mapping) -> Attached | None:
        """What is attached to the mapped file, attaching first if it is new; None if it is of no interest.

        Raises Vanished when the mapping vanished before its file was seen, and Wait when its user's time is used up.
        """
        file = mapping.file
        if self._is_open(file):
            if not self._shares.may_spend(self._payer()):
                self.unsearched["share"] += 1
                raise Wait(_WAIT_SECONDS)
            if self._round <= 0:
                self._contended = True
                raise Wait(0.0)
            self._make_room()
            self._verdicts[file] = self._judge(mapping, file)
        return self._verdicts[file]

    def _is_open(self, file: File) -> bool:
        """Whether there is no verdict on a file yet that holds for this user."""
        turned_away = self._turned_away.get(file)
        return file not in self._verdicts or (turned_away is not None and self._payer() not in turned_away)

    def retry(self) -> None:
        """Forgets the verdicts on files that could not be read or attached to, so that they are tried again.

        What is attached to them already stays.
        """
        for file in self._doubtful:
            self._verdicts.pop(file, None)
        self._doubtful.clear()
        self._turned_away.clear()

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
        inode = _inode(file)
        before = self._by_inode.get(inode)
        found = self._examine(mapping, file, inode)
        if before is not None:
            # Probes in code that changed would run instructions that are not there any more.
            unknown = found is None and file in self._doubtful and file == before.file
            if unknown or (found and _same_code(found.library, before.library)):
                if found:
                    os.close(found.held.descriptor)
                    self._complete(before, file)
                self._verdicts.pop(before.file, None)
                before.file = file
                return before
            log.info("a library was overwritten in place", extra={"library": before.library.path})
            self._detach(before)
        return self._attach(found, file, inode) if found else None

    def _examine(self, mapping: Mapping, file: File, inode: _Inode) -> Examined | None:
        self._doubtful.discard(file)
        if self._refused.get(inode, 0.0) > time.monotonic():
            self.unsearched["too_long"] += 1
            return None
        self.examined += 1
        try:
            return examine(self._proc, mapping, self._wanted, self._imported, self._traced)
        except ElfError as error:
            log.debug("skipped a mapped file", extra={"pid": mapping.pid, "reason": error})
        except TooLong as error:
            self.unsearched["too_long"] += 1
            if len(self._refused) >= MAX_REFUSED:
                self._refused.clear()
            self._refused[inode] = time.monotonic() + REFUSED_SECONDS
            log.warning("a mapped file is not searched: %s", error, extra={"pid": mapping.pid})
        except Stuck as error:
            self.unsearched["stuck"] += 1
            self._doubtful.add(file)
            major, minor = file.device >> 20, file.device & 0xFFFFF
            log.warning("files of device %d:%d are not searched: %s", major, minor, error, extra={"pid": mapping.pid})
        except OSError as error:
            self.unreadable += 1
            self._doubtful.add(file)
            log.warning("cannot read a mapped file: %s; %s", *_reason(error), extra={"pid": mapping.pid})
        return None

    def _attach(self, found: Examined, file: File, inode: _Inode) -> Attached | None:
        library, links = found.library, list[tuple[Interest, Closeable]]()
        full = self._full(found)
        if full:
            self.refused[full] += 1
            log.warning("this library is not observed: %s", _REFUSALS[full], extra={"library": library.path})
            if full != "descriptors":
                self._turned_away.setdefault(file, set()).add(self._user)
        else:
            self._turned_away.pop(file, None)
            links = self._links(library, file)
        if not links:
            os.close(found.held.descriptor)
            self._doubtful.add(file)
            if not full:
                self._shares.give_place(self._user)
            return None
        idle_since = time.monotonic()
        attached = Attached(library, file, found.held, self._user, links, time.monotonic_ns(), idle_since=idle_since)
        self._by_inode[inode] = attached
        log.info("attached to a library", extra={"library": library.path, "functions": len(library.functions)})
        return attached

    def _complete(self, attached: Attached, file: File) -> None:
        """Attaches those that failed before."""
        links = self._links(attached.library, file, [interest for interest, _ in attached.links])
        if links:
            attached.links += links
            attached.complete_ns = time.monotonic_ns()

    def _full(self, found: Examined) -> str:
        """Why there is no place for a library; empty when one has been taken."""
        if descriptors.room() < _needed(found.library):
            return "descriptors"
        if not self._find_place(found.held.owner):
            return "limit"
        return "" if self._shares.take_place(self._user) else "share"

    def _find_place(self, owner: int) -> bool:
        """Whether there is a place for a file of this owner, if need be one that another user gives back."""
        of_users = [it for it in self if it.held.owner != _ROOT]
        if owner != _ROOT and len(of_users) >= MAX_LIBRARIES - FOR_ROOT:
            given = places.to_give_back(of_users, self._user, self._shares)
        elif len(self) >= MAX_LIBRARIES:
            given = places.to_give_back(self, self._user, self._shares)
        else:
            return True
        if given:
            self._give_up(given)
        return given is not None

    def _give_up(self, attached: Attached) -> None:
        self.refused["limit"] += 1
        log.warning("this library is no longer observed: %s", _GIVEN_UP, extra={"library": attached.library.path})
        for interest, _ in attached.links:
            if isinstance(interest, KeepingInterest):
                try:
                    interest.library_given_up(attached.library)
                except Exception:
                    log.exception("an interest failed on a library that is given up")
        self._detach(attached)
        self._verdicts[attached.file] = None
        self._doubtful.add(attached.file)
        self._turned_away[attached.file] = {attached.user}

    def _links(
        self, library: Library, file: File, linked: Collection[Interest] = ()
    ) -> list[tuple[Interest, Closeable]]:
        """Attaches each interest in the library but the `linked`; the file is doubtful if the system refuses one."""
        links = []
        for interest in self._interests:
            wanted = (interest.symbols, imports_of(interest), usdt_of(interest))
            there = (library.functions.keys(), library.imports, library.usdt.keys())
            if interest in linked or all(has.isdisjoint(names) for has, names in zip(there, wanted, strict=True)):
                continue
            try:
                links.append((interest, interest.attach(library)))
            except Exception as error:
                self.failed += 1
                if isinstance(error, OSError):
                    self._doubtful.add(file)
                log.warning("cannot attach to %s: %s", library.path, error, exc_info=not isinstance(error, OSError))
        return links

    def _detach(self, attached: Attached) -> None:
        attached.detached = True
        for _, link in attached.links:
            try:
                link.close()
            except Exception:
                log.exception("detaching failed")
        os.close(attached.held.descriptor)
        self._verdicts.pop(attached.file, None)
        if self._by_inode.pop(_inode(attached.file), None):
            self._shares.give_place(attached.user)
        log.info("detached from a library", extra={"library": attached.library.path})

    def _make_room(self) -> None:
        if len(self._verdicts) >= MAX_VERDICTS:
            self._verdicts = {file: attached for file, attached in self._verdicts.items() if attached}


def _needed(library: Library) -> int:
    """Descriptors that links to a library may take."""
    if multi.supported():
        return LINKS
    sites = sum(len(sites) for sites in library.usdt.values())
    return uprobe.DESCRIPTORS_OF_POINT * (_HOOKS * (len(library.functions) + len(library.imports)) + sites)


def _inode(file: File) -> _Inode:
    return file.inode, file.number, file.device, file.generation


def _reason(error: OSError) -> tuple[str, str]:
    """Why a file cannot be read, and what to do."""
    if isinstance(error, PermissionError):
        remedy = "CAP_CHECKPOINT_RESTORE, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH permit it"
    elif isinstance(error, ChildError) and error.errno:
        remedy = "the limits on this service's processes and memory have to leave room for two small ones"
    else:
        remedy = "the file is read again at the next look at all processes"
    return error.strerror or str(error), remedy


def _same_code(new: Library, old: Library) -> bool:
    return (new.build_id, new.functions, new.imports, new.usdt) == (old.build_id, old.functions, old.imports, old.usdt)
