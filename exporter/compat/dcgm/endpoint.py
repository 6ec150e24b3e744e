"""A running dcgm-exporter: its page is read in the background and passed on with the labels of each GPU."""

from __future__ import annotations

import http.client
import logging
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

from exporter.background.poller import Poller
from exporter.compat.dcgm.aliases import Aliases
from exporter.compat.dcgm.exposition import ParsedSeries, read
from exporter.compat.dcgm.series import OWNER_LABELS, Entity, EntityField, Owner, bounded
from exporter.model import Labels, Metric, Sample
from exporter.nvml.snapshot import Gpu, GpuSnapshot, Mig

MOST_BYTES = 16 << 20
STALE = 3
"""Number of intervals for which a page is valid."""
_UUID_LABELS = ("UUID", "gpu_uuid", "uuid")
"""Labels with a UUID: of GPUs, of NVLinks, and in the names of release 1."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScrapedPage:
    """The series of a page. `refused` counts unreadable lines."""

    series: tuple[ParsedSeries, ...]
    refused: int


class PageReader(Poller[ScrapedPage]):
    """A poller that reads the page each `interval` seconds. A page that hangs delays no scrape."""

    def __init__(self, url: str, interval: float) -> None:
        super().__init__("dcgm endpoint", self._page_now, interval, steady=True, refused=_warn)
        self._url, self._valid, self._timeout = url, STALE * interval, min(interval, 10.0)
        # Proxies of the environment are for other hosts; a redirect would lead to another service.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())

    @property
    def failure(self) -> str:
        """Reason why the last read failed; empty after success."""
        last = self.last
        return str(last.error or "") if last.error or last.value else "it has not been read yet"

    def page(self) -> ScrapedPage | None:
        """Returns the last page; None when no page was read, or the page is too old."""
        last = self.last
        return last.value if last.age is not None and last.age <= self._valid else None

    def age(self) -> float | None:
        """Returns the seconds since a page was read; None before the first page."""
        return self.last.age

    def _page_now(self) -> ScrapedPage:
        """Returns the page. Raises OSError with a sentence, and without the page that could not be read."""
        try:
            series, refused = read(self._fetch(time.monotonic() + self._timeout))
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise OSError(f"{self._url}: {str(error) or type(error).__name__}") from None
        return ScrapedPage(tuple(series), refused)

    def _fetch(self, deadline: float) -> str:
        """Returns the text of the page. Raises OSError, and ValueError for a page that is too long or no UTF-8."""
        request = urllib.request.Request(self._url, headers={"Accept": "text/plain;version=0.0.4"})
        with self._opener.open(request, timeout=self._timeout) as answer:
            parts: list[bytes] = []
            size = 0
            while part := answer.read1(1 << 16):
                parts.append(part)
                size += len(part)
                if size > MOST_BYTES:
                    raise ValueError(f"more than {MOST_BYTES} bytes")
                if time.monotonic() > deadline:
                    raise ValueError(f"incomplete after {self._timeout:.0f} s")
            return b"".join(parts).decode("utf-8")


def _warn(error: Exception) -> None:
    log.warning("dcgm-exporter cannot be read: %s", error)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


class Passthrough:
    """Turns pages into samples: each series gets gpu_uuid, and labels of the owner that the series lacks."""

    def __init__(self) -> None:
        self._aliases = Aliases()
        self._metrics: dict[tuple[str, str, str], Metric] = {}

    def samples(self, page: ScrapedPage, snapshot: GpuSnapshot, owner: Owner) -> Iterator[Sample]:
        """Yields the series of a page; owners are looked up once for each GPU and instance."""
        entities = _entities(snapshot)
        owners: dict[tuple[str, str], Labels] = {}
        metrics, self._metrics = self._metrics, {}
        for series in page.series:
            key = series.name, series.kind.value, series.help
            metric = metrics.get(key) or self._metrics.get(key)
            metric = metric or Metric(series.name, series.help, series.kind, literal=True)
            self._metrics[key] = metric
            uuid, instance = _uuid(series.labels), series.labels.get("GPU_I_ID", "")
            if uuid and (uuid, instance) not in owners:
                entity = entities.get((uuid, instance))
                owners[uuid, instance] = owner(entity) if entity else {}
            more = owners.get((uuid, instance), {})
            own = {name: value for name, value in series.labels.items() if value}
            of_job = {name: value for name, value in more.items() if name in OWNER_LABELS}
            yield metric.sample(series.value, bounded({"gpu_uuid": uuid, **own}, {**of_job, **more}))

    def shown(self, page: ScrapedPage) -> frozenset[EntityField]:
        """Returns the fields on the page, which the exporter itself then leaves out."""
        return frozenset(
            (self._aliases.old(series.name), uuid, series.labels.get("GPU_I_ID", ""))
            for series in page.series
            if (uuid := _uuid(series.labels))
        )


def _uuid(labels: Labels) -> str:
    return next((labels[name] for name in _UUID_LABELS if labels.get(name)), "")


def _entities(snapshot: GpuSnapshot) -> dict[tuple[str, str], Entity]:
    entities: dict[tuple[str, str], Entity] = {}
    for gpu in snapshot.gpus:
        entities[gpu.uuid, ""] = Entity(gpu)
        for instance in {mig.gpu_instance for mig in gpu.identity.migs}:
            entities[gpu.uuid, str(instance)] = Entity(gpu, _migs(gpu, instance))
    return entities


def _migs(gpu: Gpu, instance: int) -> tuple[Mig, ...]:
    return tuple(mig for mig in gpu.identity.migs if mig.gpu_instance == instance)
