"""The state of a collector after its last run, and the metrics about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from exporter.model import Kind, Metric, Sample, Unavailable

SUCCESS = Metric(
    "accel_exporter.collector.success",
    "1 when the collector's run for this scrape ended in time and without an error, else 0.",
    Kind.GAUGE,
    labels=("collector",),
)
AVAILABLE = Metric(
    "accel_exporter.collector.available",
    "1 when this node has the hardware, driver and permission that the collector needs, else 0.",
    Kind.GAUGE,
    labels=("collector",),
)
DURATION = Metric(
    "accel_exporter.collector.duration",
    "Duration of the collector's run for this scrape; for a late run, the time so far.",
    Kind.GAUGE,
    "s",
    labels=("collector",),
)
SERIES = Metric(
    "accel_exporter.collector.series",
    "Series of the collector's last run that ended in time and without an error. Each bucket of a histogram is one "
    "series.",
    Kind.GAUGE,
    labels=("collector",),
)


class Health(Enum):
    WAITING = "waiting"
    OK = "ok"
    LATE = "late"
    FAILED = "failed"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class CollectorState:
    """The state of a collector after its last run.

    `seconds` is None before the first run and `series` before the first good one, `reason` and `remedy` are empty for a
    healthy collector. `problems` are sentences about parts of the collector that do not work, from the collector's
    method of that name if there is one.
    """

    name: str
    health: Health
    seconds: float | None = None
    reason: str = ""
    remedy: str = ""
    problems: tuple[str, ...] = ()
    series: int | None = None


def failure(name: str, error: BaseException, seconds: float | None) -> CollectorState:
    """Return the state of a collector with a run that raised an error after `seconds`."""
    if isinstance(error, Unavailable):
        return CollectorState(name, Health.UNAVAILABLE, seconds, error.reason, error.remedy)
    return CollectorState(name, Health.FAILED, seconds, f"{type(error).__name__}: {error}")


def about(state: CollectorState) -> Iterable[Sample]:
    """Yield the samples of a collector's state."""
    labels = {"collector": state.name}
    yield SUCCESS.sample(int(state.health is Health.OK), labels)
    yield AVAILABLE.sample(int(state.health is not Health.UNAVAILABLE), labels)
    if state.seconds is not None:
        yield DURATION.sample(state.seconds, labels)
    if state.series is not None:
        yield SERIES.sample(state.series, labels)
