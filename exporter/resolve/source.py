"""An external source of items that is read periodically, and the items of the last successful reading."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


MOST_INVALID = 16
"""The most reasons of invalid items that are kept of one reading."""


class Listed(list[T]):
    """The valid items of a reading. `invalid` is the number of omitted items, and `reasons` has the first reasons."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        super().__init__(items)
        self.invalid = 0
        self.reasons: list[str] = []

    def leave_out(self, reason: str) -> None:
        """Count an invalid item."""
        self.invalid += 1
        if len(self.reasons) < MOST_INVALID:
            self.reasons.append(reason)


class Source(Generic[T]):
    """A source at the path or URL `location`, or no source where that is empty.

    Items count for `keep` seconds by the clock `now`. One thread reads; the other methods are safe from any thread.
    """

    def __init__(
        self,
        name: str,
        location: str,
        read: Callable[[], Sequence[T]],
        keep: float,
        now: Callable[[], float],
        what: str = "",
    ) -> None:
        """`what` names in a failure what is not known; empty: the allocations of this source."""
        self.name, self.location, self._what = name, location, what or f"allocations of {name}"
        self._read, self._keep, self._now = read, keep, now
        self.exists = bool(location)
        """True if there is a source, readable or not."""
        self.failure = ""
        """The reason why the last reading failed; empty after a success and before the first reading."""
        self.invalid = 0
        """The number of invalid items that the last successful reading omitted."""
        self.reasons: tuple[str, ...] = ()
        """The reasons for the first of these items."""
        self._last: tuple[float, Sequence[T]] | None = None

    def read(self, may_be_absent: bool = False) -> bool:
        """Read the source now. Returns True when the reading failed for a new reason, which should be logged.

        With `may_be_absent` a missing file is not a failure, unless it was read within the last `keep` seconds.
        """
        if not self.location:
            return False
        last_failure = self.failure
        try:
            items = self._read()
        except (OSError, ValueError) as error:
            # A file that existed a moment ago is about to come back: a restarted kubelet replaces its socket.
            self.exists = not (may_be_absent and isinstance(error, FileNotFoundError)) or self.fresh
            self.failure = self._sentence(error)
            return self.exists and self.failure != last_failure
        self._last, self.exists, self.failure = (self._now(), items), True, ""
        self.invalid, self.reasons = (items.invalid, tuple(items.reasons)) if isinstance(items, Listed) else (0, ())
        return False

    @property
    def age(self) -> float | None:
        """Seconds since the last successful reading; None before the first."""
        last = self._last
        return self._now() - last[0] if last else None

    @property
    def fresh(self) -> bool:
        age = self.age
        return age is not None and age <= self._keep

    def items(self) -> Sequence[T]:
        """Return the items of the last successful reading; none when it is older than `keep` seconds."""
        last = self._last
        return last[1] if last and self.fresh else ()

    def _sentence(self, error: Exception) -> str:
        if isinstance(error, PermissionError):
            return f"{self.location} may not be used by this user: run as root, or grant access to it"
        verb = "are" if self._what.startswith("allocations") else "is"
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"{self._what} {verb} not known, {self.location}: {reason}"
