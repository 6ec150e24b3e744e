"""Verdicts on mapped files: whether a file holds wanted functions, and when it is to be examined again."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from exporter.bpf.attached import Attached
from exporter.bpf.elf import ElfError, TakesLonger
from exporter.bpf.file_worker import ChildError, Stuck, TooLong
from exporter.bpf.library import Examined, Interest, Wait, examine, imports_of, usdt_of
from exporter.bpf.mappings import MappedFile, Mapping
from exporter.bpf.shares import User

MAX_VERDICTS = 1 << 14
MAX_TOO_LONG = MAX_LONG = 1 << 12
SLICE = 0.01
"""Seconds of an ordinary processor for the first try of each file: most libraries take less than half of it."""
TOO_LONG_SECONDS = 600.0
"""So long a file that took too long is not read again, also if it has changed."""

log = logging.getLogger(__name__)


class Verdicts:
    """Result of the search of each examined file, the attached library if any: kept until the file changes.

    A file is doubtful if the next search may yield another result.
    """

    def __init__(self, interests: Sequence[Interest], proc: Path) -> None:
        self._proc = proc
        self._wanted = frozenset(symbol for interest in interests for symbol in interest.symbols)
        self._imported = frozenset(symbol for interest in interests for symbol in imports_of(interest))
        self._traced = frozenset(probe for interest in interests for probe in usdt_of(interest))
        self._verdicts: dict[MappedFile, Attached | None] = {}
        self._doubtful: set[MappedFile] = set()
        self._turned_away: dict[MappedFile, set[User]] = {}
        """The users who had no place for a file: others may have."""
        self._long: set[MappedFile] = set()
        self._too_long: dict[tuple[int, ...], float] = {}
        self.examined = self.unreadable = 0
        self.unsearched: Counter[str] = Counter()
        """Files that were not searched, by reason."""

    def __getitem__(self, file: MappedFile) -> Attached | None:
        return self._verdicts[file]

    def __setitem__(self, file: MappedFile, attached: Attached | None) -> None:
        if len(self._verdicts) >= MAX_VERDICTS:
            self._verdicts = {known: library for known, library in self._verdicts.items() if library}
        self._verdicts[file] = attached

    def is_uninteresting(self, file: MappedFile) -> bool:
        """Return whether the file was searched and holds nothing of interest."""
        return file not in self._doubtful and self._verdicts.get(file, self) is None

    def is_attached(self, file: MappedFile) -> bool:
        """Return whether the file holds something of interest, by what is known of it."""
        return self._verdicts.get(file) is not None

    def is_open(self, file: MappedFile, find_user: Callable[[], User]) -> bool:
        """Return whether there is no verdict on a file yet that holds for this user."""
        turned_away = self._turned_away.get(file)
        return file not in self._verdicts or (turned_away is not None and find_user() not in turned_away)

    def is_long(self, file: MappedFile) -> bool:
        """Return whether the first try of a file, in a slice of time, was too short to search it."""
        return file in self._long

    def is_doubtful(self, file: MappedFile) -> bool:
        return file in self._doubtful

    def doubt(self, file: MappedFile) -> None:
        """Has a file examined again after the next `retry`."""
        self._doubtful.add(file)

    def turn_away(self, file: MappedFile, user: User) -> None:
        """Takes note of a user who has no place for a file."""
        self._turned_away.setdefault(file, set()).add(user)

    def admit(self, file: MappedFile) -> None:
        """Takes note of a place for a file, whoever had none."""
        self._turned_away.pop(file, None)

    def give_up(self, attached: Attached) -> None:
        """Leaves the file of a library that has lost its place to others than the user who had it."""
        self[attached.file] = None
        self._doubtful.add(attached.file)
        self._turned_away[attached.file] = {attached.user}

    def forget(self, file: MappedFile) -> None:
        """Drops the verdict on a file."""
        self._verdicts.pop(file, None)

    def retry(self) -> None:
        """Forgets the verdicts on files that could not be read or attached to, so that they are tried again.

        What is attached to them already stays.
        """
        for file in self._doubtful:
            self.forget(file)
        self._doubtful.clear()
        self._turned_away.clear()

    def examine(self, mapping: Mapping) -> Examined | None:
        """The library that is mapped; None if the file holds nothing of interest or cannot be read.

        Raises Vanished when the mapping vanished before its file was seen, and Wait where a first try was too short:
        the next one is given all the time that a file may take.
        """
        file = mapping.file
        self._doubtful.discard(file)
        if self._too_long.get(file.unchanging, 0.0) > time.monotonic():
            self.unsearched["too_long"] += 1
            return None
        within = None if file in self._long else SLICE
        self.examined += within is not None
        try:
            found = examine(self._proc, mapping, self._wanted, self._imported, self._traced, within)
        except (ElfError, OSError) as error:
            if within is not None and isinstance(error, TakesLonger):
                if len(self._long) >= MAX_LONG:
                    self._long.clear()
                self._long.add(file)
                raise Wait(0.0) from error
            self._note(error, mapping)
            found = None
        self._long.discard(file)
        return found

    def _note(self, error: ElfError | OSError, mapping: Mapping) -> None:
        """Counts and logs why a file was not searched, and takes note of when it is to be tried again."""
        file = mapping.file
        if isinstance(error, ElfError):
            log.debug("skipped a mapped file", extra={"pid": mapping.pid, "reason": error})
        elif isinstance(error, TooLong):
            self.unsearched["too_long"] += 1
            if len(self._too_long) >= MAX_TOO_LONG:
                self._too_long.clear()
            self._too_long[file.unchanging] = time.monotonic() + TOO_LONG_SECONDS
            log.warning("a mapped file is not searched: %s", error, extra={"pid": mapping.pid})
        elif isinstance(error, Stuck):
            self.unsearched["stuck"] += 1
            self._doubtful.add(file)
            major, minor = file.device >> 20, file.device & 0xFFFFF
            log.warning("files of device %d:%d are not searched: %s", major, minor, error, extra={"pid": mapping.pid})
        else:
            self.unreadable += 1
            self._doubtful.add(file)
            log.warning("cannot read a mapped file: %s; %s", *_reason(error), extra={"pid": mapping.pid})


def _reason(error: OSError) -> tuple[str, str]:
    """Why a file cannot be read, and what to do."""
    if isinstance(error, PermissionError):
        remedy = "CAP_CHECKPOINT_RESTORE, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH permit it"
    elif isinstance(error, ChildError) and error.errno:
        remedy = "the limits on this service's processes and memory have to leave room for two small ones"
    else:
        remedy = "the file is read again at the next look at all processes"
    return error.strerror or str(error), remedy
