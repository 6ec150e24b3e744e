"""Attachment of probes to files with wanted functions: once for each inode, whatever its paths."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from exporter import descriptors
from exporter.bpf import multi, places, uprobe
from exporter.bpf.attached import Attached
from exporter.bpf.file_worker import WORKER
from exporter.bpf.library import Closeable, Examined, Interest, KeepingInterest, Library, Wait, imports_of, usdt_of
from exporter.bpf.mappings import MappedFile, Mapping
from exporter.bpf.overwrites import UNFOLLOWED, Overwrites
from exporter.bpf.shares import NOBODY, Shares, User
from exporter.bpf.verdicts import Verdicts

MAX_LIBRARIES = 256
FOR_ROOT = 64
"""Places among these that only files get which belong to root, as those of the system and of images do."""
ROUND_SECONDS = 0.5
"""Time of an ordinary processor for reading files in a round of looks at processes."""
LONGEST_SHALLOW = 8
"""Rounds without a second try of a file that takes long, at most."""
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

_OVERWRITTEN = "a library was overwritten in place"
_GIVEN_UP = "its user has more than others of all places, which are taken"

log = logging.getLogger(__name__)


class Attachments:
    """The attached libraries. Each stays until `grace` seconds after the end of the last process that used it."""

    def __init__(self, interests: Sequence[Interest], proc: Path, grace: float) -> None:
        self._interests, self.grace = interests, grace
        self.verdicts = Verdicts(interests, proc)
        self.overwrites = Overwrites()
        self._by_inode: dict[tuple[int, ...], Attached] = {}
        self.shares = Shares(proc)
        self._pid, self._user = 0, NOBODY
        self._round = float("inf")
        self._contended = self._late = False
        self._shallow = 1
        self.failed = 0
        self.refused: Counter[str] = Counter()
        """Libraries that there was no place for, by reason."""

    def __iter__(self) -> Iterator[Attached]:
        return iter(self._by_inode.values())

    def __len__(self) -> int:
        return len(self._by_inode)

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
                self.shares.spend(self._payer(), spent)
            self._pid, self._user = 0, NOBODY

    def begin_round(self, pids: Iterable[int], *, shallow: bool = False) -> list[int]:
        """Begin a round of looks at processes, and return them in the order in which they are to be looked at.

        When files have taken ROUND_SECONDS of a round, those of other processes are left for the next one. In that one
        processes of users who have spent least are first, so that files of many users delay no newcomer for long. Files
        that take long have their second try when all others have had their first one, or LONGEST_SHALLOW rounds later;
        none in a `shallow` round.
        """
        contended, self._round, self._contended = self._contended, ROUND_SECONDS, False
        self._shallow = (self._shallow + 1) % LONGEST_SHALLOW if self._late else int(shallow)
        self._late = False
        if not contended:
            return list(pids)
        return sorted(pids, key=lambda pid: self.shares.left(self.shares.user(pid)), reverse=True)

    @property
    def contended(self) -> bool:
        """Return whether files were left for the next round."""
        return self._contended

    def _payer(self) -> User:
        if self._pid:
            self._pid, self._user = 0, self.shares.user(self._pid)
        return self._user

    def of(self, mapping: Mapping) -> Attached | None:
        """Return what is attached to the mapped file, attaching first if it is new; None if it is of no interest.

        Raises Vanished when the mapping vanished before its file was seen, and Wait when its user's time is used up.
        """
        file = mapping.file
        if self.verdicts.is_open(file, self._payer):
            if not self.shares.may_spend(self._payer()):
                self.verdicts.unsearched["share"] += 1
                raise Wait(_WAIT_SECONDS)
            long = self.verdicts.is_long(file)
            if self._round <= 0 or (long and self._shallow):
                self._contended, self._late = True, self._late or not long
                raise Wait(0.0)
            try:
                self.verdicts[file] = self._judge(mapping, file)
            except Wait:
                self._contended = True
                raise
        return self.verdicts[file]

    def release_idle(self) -> float:
        """Detaches from libraries without users for long enough. Returns when the next is due, on time.monotonic."""
        now, next_due = time.monotonic(), float("inf")
        for attached in [attached for attached in self._by_inode.values() if not attached.users]:
            due = attached.idle_since + self.grace
            if due <= now:
                self._detach(attached)
            else:
                next_due = min(next_due, due)
        return next_due

    def leave_overwritten(self) -> Collection[int]:
        """Detaches from files that were written to. Returns the processes that use them, which are to be looked at.

        Probes in code that changed would run instructions that are not there any more.
        """
        written = self.overwrites.drain()
        users = set[int]()
        for attached in [it for it in self if it.watch in written]:
            log.info(_OVERWRITTEN, extra={"library": attached.library.path})
            users |= attached.users
            self._withdraw(attached)
        return users

    def close(self) -> None:
        """Detaches from everything, side by side: each waits for the kernel."""
        everything = list(self._by_inode.values())
        if everything:
            with ThreadPoolExecutor(min(len(everything), _CLOSERS), "detach") as pool:
                list(pool.map(self._detach, everything))
        self.overwrites.close()

    def _judge(self, mapping: Mapping, file: MappedFile) -> Attached | None:
        before = self._by_inode.get(file.unchanging)
        found = self.verdicts.examine(mapping)
        if before is not None:
            unknown = found is None and self.verdicts.is_doubtful(file) and file == before.file
            if unknown or (found and _same_code(found.library, before.library)):
                if found:
                    os.close(found.held.descriptor)
                    self._complete(before, file)
                self.verdicts.forget(before.file)
                before.file = file
                return before
            log.info(_OVERWRITTEN, extra={"library": before.library.path})
            self._detach(before)
        return self._attach(found, file) if found else None

    def _attach(self, found: Examined, file: MappedFile) -> Attached | None:
        library, links = found.library, list[tuple[Interest, Closeable]]()
        watch, full = UNFOLLOWED, self._full(found)
        if full:
            self.refused[full] += 1
            log.warning("library is not probed: %s", _REFUSALS[full], extra={"library": library.path})
            if full != "descriptors":
                self.verdicts.turn_away(file, self._user)
        else:
            self.verdicts.admit(file)
            watch = self.overwrites.follow(library.open_path, file.device)  # first, so that no write is missed
            links = self._links(library, file)
        if not links:
            self.overwrites.forget(watch)
            os.close(found.held.descriptor)
            self.verdicts.doubt(file)
            if not full:
                self.shares.give_place(self._user)
            return None
        idle_since = time.monotonic()
        made_ns = time.monotonic_ns()
        attached = Attached(library, file, found.held, self._user, links, made_ns, idle_since=idle_since, watch=watch)
        self._by_inode[file.unchanging] = attached
        log.info("attached to a library", extra={"library": library.path, "functions": len(library.functions)})
        return attached

    def _complete(self, attached: Attached, file: MappedFile) -> None:
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
        return "" if self.shares.take_place(self._user) else "share"

    def _find_place(self, owner: int) -> bool:
        """Return whether there is a place for a file of this owner, if need be one that another user gives back."""
        of_users = [it for it in self if it.held.owner != _ROOT]
        if owner != _ROOT and len(of_users) >= MAX_LIBRARIES - FOR_ROOT:
            given = places.to_give_back(of_users, self._user, self.shares)
        elif len(self) >= MAX_LIBRARIES:
            given = places.to_give_back(self, self._user, self.shares)
        else:
            return True
        if given:
            self._give_up(given)
        return given is not None

    def _give_up(self, attached: Attached) -> None:
        self.refused["limit"] += 1
        log.warning("library is no longer probed: %s", _GIVEN_UP, extra={"library": attached.library.path})
        self._withdraw(attached)
        self.verdicts.give_up(attached)

    def _withdraw(self, attached: Attached) -> None:
        """Detaches from a library though processes use it."""
        for interest, _ in attached.links:
            if isinstance(interest, KeepingInterest):
                try:
                    interest.library_given_up(attached.library)
                except Exception:
                    log.exception("a collector failed to handle the removal of a library")
        self._detach(attached)

    def _links(
        self, library: Library, file: MappedFile, linked: Collection[Interest] = ()
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
                    self.verdicts.doubt(file)
                log.warning("cannot attach to %s: %s", library.path, error, exc_info=not isinstance(error, OSError))
        return links

    def _detach(self, attached: Attached) -> None:
        attached.detached = True
        for _, link in attached.links:
            try:
                link.close()
            except Exception:
                log.exception("detaching failed")
        self.overwrites.forget(attached.watch)
        os.close(attached.held.descriptor)
        self.verdicts.forget(attached.file)
        if self._by_inode.pop(attached.file.unchanging, None):
            self.shares.give_place(attached.user)
        log.info("detached from a library", extra={"library": attached.library.path})


def _needed(library: Library) -> int:
    """Descriptors that links to a library may take."""
    if multi.supported():
        return LINKS
    sites = sum(len(sites) for sites in library.usdt.values())
    return uprobe.DESCRIPTORS_OF_POINT * (_HOOKS * (len(library.functions) + len(library.imports)) + sites)


def _same_code(new: Library, old: Library) -> bool:
    return (new.build_id, new.functions, new.imports, new.usdt) == (old.build_id, old.functions, old.imports, old.usdt)
