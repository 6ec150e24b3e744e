"""Something outside that is read now and then, and what was read of it last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Source(Generic[T]):
    """`where` is a path or URL, for people; empty: there is none. What was read counts for `keep` seconds of `now`.

    One thread reads, any may ask.
    """

    def __init__(
        self,
        name: str,
        where: str,
        read: Callable[[], Sequence[T]],
        keep: float,
        now: Callable[[], float],
    ) -> None:
        self.name, self.where = name, where
        self._read, self._keep, self._now = read, keep, now
        self.there = bool(where)
        """Whether there is anything to read, even if it cannot be."""
        self.failure = ""
        """Why it could not be read when it last was; empty when it could, or was not tried yet."""
        self._last: tuple[float, Sequence[T]] | None = None

    def read(self, may_be_absent: bool = False) -> bool:
        """Reads it now; True when that failed for another reason than before, which is worth a line in the log."""
        if not self.where:
            return False
        said = self.failure
        try:
            items = self._read()
        except (OSError, ValueError) as error:
            # What was there a moment ago is about to come back: the kubelet makes its socket anew when it starts.
            self.there = not (may_be_absent and isinstance(error, FileNotFoundError)) or self.fresh
            self.failure = self._sentence(error)
            return self.there and self.failure != said
        self._last, self.there, self.failure = (self._now(), items), True, ""
        return False

    @property
    def age(self) -> float | None:
        """Seconds since it was read; None before the first time."""
        last = self._last
        return self._now() - last[0] if last else None

    @property
    def fresh(self) -> bool:
        age = self.age
        return age is not None and age <= self._keep

    def items(self) -> Sequence[T]:
        """What was read, unless that is too long ago."""
        last = self._last
        return last[1] if last and self.fresh else ()

    def _sentence(self, error: Exception) -> str:
        if isinstance(error, PermissionError):
            return f"{self.where} may not be used by this user: run as root, or grant access to it"
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"allocations of {self.name} are not known, {self.where}: {reason}"
