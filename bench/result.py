"""The result of a measurement."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """One number. `budget` is its upper limit, None where it is only reported; `note` is how it was measured."""

    name: str
    value: float
    unit: str
    budget: float | None = None
    note: str = ""

    @property
    def within(self) -> bool:
        return self.budget is None or self.value <= self.budget
