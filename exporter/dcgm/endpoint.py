"""A dcgm-exporter that runs already: its page, read in the background and passed on with what we know of each GPU."""

from __future__ import annotations

import http.client
import logging
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from exporter.dcgm.aliases import Aliases
from exporter.dcgm.exposition import Read, read
from exporter.dcgm.series import Owner, Place, Target
from exporter.model import Labels, Metric, Sample
from exporter.nvml.snapshot import Gpu, Mig, Snapshot
from exporter.options import SettingsError

MOST_BYTES = 16 << 20
STALE = 3
"""A page counts for so many intervals."""
_UUID_LABELS = ("UUID", "gpu_uuid", "uuid")
"""Of GPUs, of NVLinks, and in the names of release 1."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    """What a page said, when it was read (CLOCK_MONOTONIC)."""

    at: float
    series: tuple[Read, ...]
    refused: int


def check(url: str) -> str:
    """The URL if it is one that can be read. Raises SettingsError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"dcgm.url: {url!r} is not a URL such as http://localhost:9400/metrics")
    if parts.username is not None:
        raise SettingsError("dcgm.url: a URL with a password would stand in the list of processes; leave it out")
    return url


class Endpoint:
    """Reads the page each `interval` seconds in a thread of its own. A page that hangs costs nobody else anything."""

    def __init__(self, url: str, interval: float, now: Callable[[], float] = time.monotonic) -> None:
        self._url, self._interval, self._now = url, interval, now
        self._timeout = min(interval, 10.0)
        # Proxies of the environment are for the world outside; a redirect leads away from what was asked for.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
        self._page: Page | None = None
        self.failure = "it has not been read yet"
        """Why the last reading failed; empty when it did not."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dcgm endpoint", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(1)

    def page(self) -> Page | None:
        """The last page, None when there is none or it is too old."""
        page = self._page
        return page if page and self._now() - page.at <= STALE * self._interval else None

    def age(self) -> float | None:
        """Seconds since a page was read; None before the first."""
        page = self._page
        return self._now() - page.at if page else None

    def _run(self) -> None:
        while not self._closing.is_set():
            began, said = self._now(), self.failure
            try:
                text = self._fetch(began + self._timeout)
                series, refused = read(text)
                self._page, self.failure = Page(self._now(), tuple(series), refused), ""
            except (OSError, ValueError, http.client.HTTPException) as error:
                self.failure = f"{self._url}: {str(error) or type(error).__name__}"
            if self.failure and self.failure != said:
                log.warning("dcgm-exporter cannot be read: %s", self.failure)
            self._closing.wait(max(0.0, began + self._interval - self._now()))

    def _fetch(self, deadline: float) -> str:
        """Raises OSError, ValueError when it is too long or no UTF-8."""
        request = urllib.request.Request(self._url, headers={"Accept": "text/plain;version=0.0.4"})
        with self._opener.open(request, timeout=self._timeout) as answer:
            parts: list[bytes] = []
            size = 0
            while part := answer.read1(1 << 16):
                parts.append(part)
                size += len(part)
                if size > MOST_BYTES:
                    raise ValueError(f"more than {MOST_BYTES} bytes")
                if self._now() > deadline:
                    raise ValueError(f"it was not whole after {self._timeout:.0f} s")
            return b"".join(parts).decode("utf-8")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


class Passed:
    """Turns pages into samples: each series gets gpu_uuid, and the owner's labels where it has none of its own."""

    def __init__(self) -> None:
        self._aliases = Aliases()
        self._metrics: dict[tuple[str, str, str], Metric] = {}

    def samples(self, page: Page, snapshot: Snapshot, owner: Owner) -> Iterator[Sample]:
        """The page's series; owners are looked for once for each GPU and instance."""
        places = _places(snapshot)
        owners: dict[tuple[str, str], Labels] = {}
        metrics, self._metrics = self._metrics, {}
        for it in page.series:
            key = it.name, it.kind.value, it.help
            metric = metrics.get(key) or self._metrics.get(key) or Metric(it.name, it.help, it.kind, literal=True)
            self._metrics[key] = metric
            uuid, instance = _uuid(it.labels), it.labels.get("GPU_I_ID", "")
            if uuid and (uuid, instance) not in owners:
                target = places.get((uuid, instance))
                owners[uuid, instance] = owner(target) if target else {}
            more = owners.get((uuid, instance), {})
            yield metric.sample(it.value, {**more, "gpu_uuid": uuid, **{k: v for k, v in it.labels.items() if v}})

    def given(self, page: Page) -> frozenset[Place]:
        """What the page shows, so that nobody else need."""
        return frozenset(
            (self._aliases.old(it.name), uuid, it.labels.get("GPU_I_ID", ""))
            for it in page.series
            if (uuid := _uuid(it.labels))
        )


def _uuid(labels: Labels) -> str:
    return next((labels[name] for name in _UUID_LABELS if labels.get(name)), "")


def _places(snapshot: Snapshot) -> dict[tuple[str, str], Target]:
    places: dict[tuple[str, str], Target] = {}
    for gpu in snapshot.gpus:
        places[gpu.uuid, ""] = Target(gpu)
        for instance in {mig.gpu_instance for mig in gpu.identity.migs}:
            places[gpu.uuid, str(instance)] = Target(gpu, _migs(gpu, instance))
    return places


def _migs(gpu: Gpu, instance: int) -> tuple[Mig, ...]:
    return tuple(mig for mig in gpu.identity.migs if mig.gpu_instance == instance)
