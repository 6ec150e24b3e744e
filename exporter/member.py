"""A series that is part of a sum, and the rule by which series of a process are one series with changed labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from exporter import values
from exporter.model import Sample, Value

LATER = frozenset(("comm", "container_id", "pod", "namespace", "container", "slurm_job_id"))
"""Labels of a process that may become known after its start: the kubelet names the pod of a container a while later."""
GPU = frozenset(("gpu", "gpu_uuid", "card", "pci_bus_id"))
"""Labels of the only GPU of a process: known after its start, and unknown once the process uses a second GPU."""


@dataclass(slots=True)
class Member:
    """A series that is part of a sum, `into`."""

    into: str | None
    last: Value
    start: float | None
    vanished: float = 0.0
    elsewhere: dict[str, Value] = field(default_factory=dict)
    """Parts of `last` that other sums have, by the keys of the sums, because the series had other labels before."""
    same: int | None = None
    """Hash of the parts of the series that stay when its labels change (`same`); None if it is not known yet."""

    def parts(self) -> Iterator[tuple[str | None, Value]]:
        """Yield the sums that have counts of the series, and these counts."""
        own = self.last
        for part in self.elsewhere.values():
            own = values.minus(own, part)
        yield from self.elsewhere.items()
        yield self.into, own

    def stays(self, key: str) -> int:
        """Return the hash of the parts of the series that stay; 0 where it is not known."""
        if self.same is None:
            self.same = 0 if self.start is None else same(key, self.start)
        return self.same


def rise_of(member: Member, sample: Sample) -> Value | None:
    """Return what a member has counted since `last`; None if it has counted nothing, or fell without a new start.

    For a member with other buckets than before, the result is 0, because its counts cannot be compared.
    """
    if sample.value == member.last and sample.start == member.start:
        return None
    if not values.alike(sample.value, member.last):
        return values.zero(sample.value)
    if later(member, sample):
        return sample.value
    if values.count(sample.value) < values.count(member.last):
        return None if sample.start is not None and member.start is not None else sample.value
    return values.minus(sample.value, member.last)


def later(member: Member, sample: Sample) -> bool:
    """Return whether a series began later than the member with its key, and is therefore another series."""
    return sample.start is not None and member.start is not None and sample.start > member.start


def same(key: str, start: float) -> int:
    """Return a hash of the parts of a process's series that stay when LATER or GPU change; 0 for other series."""
    parts = tuple(key.split("\0"))
    stay = _staying(parts[1 : len(parts) // 2 + 1])
    return hash((start, parts[0], *(parts[at] for at in stay))) if stay else 0


@lru_cache(4096)
def _staying(names: tuple[str, ...]) -> tuple[int, ...]:
    """Return the places in a key of the labels that do not change, and of their values; none without a process."""
    places = [at for at, name in enumerate(names, 1) if name not in LATER and name not in GPU]
    return (*places, *(at + len(names) for at in places)) if "pid" in names else ()


def gpus_agree(key: str, other: str) -> bool:
    """Return whether two series are of the same GPU, or one of them names no GPU."""
    gpus = {(of.get("gpu") or of.get("card")) or None for of in map(_labels, (key, other))}
    return len(gpus) == 1 or None in gpus


def _labels(key: str) -> dict[str, str]:
    """Return the labels of a series by its key (values.key)."""
    _, *rest = key.split("\0")
    return dict(zip(rest[: len(rest) // 2], rest[len(rest) // 2 :], strict=True))
