"""Profiles that are kept because an allocation failed for want of memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from exporter.stack_profiles.bounds import bounded, labels, printable
from exporter.stack_profiles.kept import Kept
from exporter.stack_profiles.model import INUSE, Stack, StackProfile, StackSample, ValueType

MOST_SHOWN = 64
"""Frames of a failed request's stack in a list of them."""
TYPES: tuple[ValueType, ...] = (*INUSE, ("failed_space", "bytes"), ("failed_objects", "count"))
"""The values of a frozen profile: memory in use, and the request that failed."""


class FreeMemory(NamedTuple):
    """Bytes of a GPU that were free, as `source` reported them so many seconds before an allocation failed."""

    bytes: int
    seconds: float
    source: str


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """A request for memory that failed.

    `size` is in bytes. `free` is None where it is not known. `labels` are those of a sample (model.LABELS), `stack`
    that of the failed call.
    """

    stack: Stack
    labels: Mapping[str, str]
    size: int
    free: FreeMemory | None = None
    api: str = ""
    """The function that failed, such as cuMemAlloc_v2."""

    def sentence(self) -> str:
        """Return the request in words; what is not known is left out."""
        words = [f"failed: {self.api or 'an allocation'} of {self.size} bytes"]
        if self.free:
            words.append(
                f"{self.free.bytes} bytes of the GPU were free {self.free.seconds:.1f} s before ({self.free.source})"
            )
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Frozen:
    """A kept profile: what was in use on that GPU, by all processes, when the allocation failed.

    `number` counts from 1 since the exporter's start; `time_ns` is wall time.
    """

    number: int
    time_ns: int
    profile: StackProfile
    failed: FailedAllocation

    def with_failed(self) -> StackProfile:
        """Return the profile with the failed request as a sample of two further values (TYPES)."""
        failed = StackSample(self.failed.stack, self.failed.labels, (0, 0, self.failed.size, 1))
        samples = (replace(sample, values=(*sample.values, 0, 0)) for sample in self.profile.samples)
        comments = (*self.profile.comments, self.failed.sentence())
        return replace(self.profile, sample_types=TYPES, samples=(*samples, failed), comments=comments)

    def document(self) -> dict[str, Any]:
        """Return number, time in seconds, bytes in use and the failed request, for JSON; names are printable."""
        failed = self.failed
        return {
            "n": self.number,
            "time": self.time_ns / 1e9,
            "in_use": self.profile.total(),
            "size": failed.size,
            "api": printable(failed.api),
            "stack": [printable(frame.name) for frame in failed.stack[:MOST_SHOWN]],
            "labels": dict(labels(StackSample(failed.stack, failed.labels, ()))),
            **({"free": failed.free._asdict()} if failed.free else {}),
        }


class FrozenProfiles(Kept[Frozen]):
    """The last frozen profiles. Safe from any thread."""

    def freeze(self, profile: StackProfile, failed: FailedAllocation, time_ns: int) -> Frozen:
        """Keep the in-use profile (model.INUSE) of the moment `time_ns` at which an allocation failed."""
        profile = bounded(profile)
        return self.keep(lambda number: Frozen(number, time_ns, profile, failed))
