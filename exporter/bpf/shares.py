"""Nobody's files may take all the places for libraries, or all the time for reading files.

Users are as process_user.py distinguishes them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from exporter.bpf.file_worker import WORKER
from exporter.bpf.process_user import NOBODY, User, user_of

__all__ = ["NOBODY", "Shares", "User"]

CREDIT, REFILL = 10.0, 0.1
"""Seconds of the processor's time for reading one user's files: at once, and in each second from then on."""
PLACES = 64
"""Libraries of one user that are attached to at a time."""
MAX_USERS = 1 << 12


@dataclass(slots=True)
class _Credit:
    left: float
    at: float


class Shares:
    """The time and the places that each user has had. Safe from any thread."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._lock = threading.Lock()
        self._credits: dict[User, _Credit] = {}
        self._places: Counter[User] = Counter()

    def user(self, pid: int) -> User:
        """The user that a process counts to."""
        return user_of(self._proc, pid)

    def may_spend(self, user: User) -> bool:
        """Return whether there is time left for a file of this user."""
        return self.left(user) > 0

    def left(self, user: User) -> float:
        """Seconds that are left; negative when the last file took more."""
        with self._lock:
            return self._credit(user).left

    def spend(self, user: User, seconds: float) -> None:
        with self._lock:
            self._credit(user).left -= seconds

    @contextmanager
    def charge(self, user: User) -> Iterator[None]:
        """Counts the time that this thread has files read meanwhile."""
        before = WORKER.spent()
        try:
            yield
        finally:
            self.spend(user, WORKER.spent() - before)

    def take_place(self, user: User) -> bool:
        """Takes a place for a library, for `give_place` to give back; False where the user has as many as each may."""
        with self._lock:
            if self._places[user] >= PLACES:
                return False
            self._places[user] += 1
            return True

    def places(self, user: User) -> int:
        """Return how many places a user has."""
        return self._places.get(user, 0)

    def give_place(self, user: User) -> None:
        with self._lock:
            self._places[user] -= 1
            if not self._places[user]:
                del self._places[user]

    def _credit(self, user: User) -> _Credit:
        now = time.monotonic()
        credit = self._credits.get(user)
        if credit is None:
            if len(self._credits) >= MAX_USERS:
                self._forget(now)
            credit = self._credits[user] = _Credit(CREDIT, now)
        credit.left = min(CREDIT, credit.left + (now - credit.at) * REFILL)
        credit.at = now
        return credit

    def _forget(self, now: float) -> None:
        """Forgets the users that would have all of their credit again; without such a user, all of them."""
        kept = {
            user: credit for user, credit in self._credits.items() if credit.left + (now - credit.at) * REFILL < CREDIT
        }
        self._credits = kept if len(kept) < MAX_USERS else {}
