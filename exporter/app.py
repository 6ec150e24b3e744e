"""The exporter as a service: serves and pushes samples, handles signals, reloads settings, ends in order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from exporter import descriptors, log, self_metrics, version
from exporter.bpf import memory
from exporter.collector_state import CollectorState
from exporter.discover import Found
from exporter.log.losses import dropped
from exporter.model import Kind, Metric, Sample
from exporter.observer import Observer
from exporter.options import SettingsError
from exporter.otlp import Plan
from exporter.page import Pages
from exporter.push import Push
from exporter.server import Server
from exporter.settings import Settings
from exporter.stack_profiles.growth import Growth
from exporter.systemd import Notifier
from exporter.views import landing_plots
from exporter.web.config import WebConfigError
from exporter.web.listen import ListenError

RELOAD_SUCCESSFUL = Metric(
    "accel_exporter.config.last_reload_successful",
    "1 when the settings were valid at the last reading; 0 when they were invalid, and the previous settings stay in "
    "force.",
    Kind.GAUGE,
)
RELOAD_TIME = Metric(
    "accel_exporter.config.last_reload_success_timestamp",
    "Unix time at which the settings in force were read.",
    Kind.GAUGE,
    "s",
)
STOP_WITHIN = 4.8
"""Seconds from the signal to the forced end of the process; the kernel then detaches what is still attached."""
LAST_LINE_SECONDS = 0.1
"""For the log line about that, if the log is read."""

logger = logging.getLogger(__name__)


class App:
    """One run of the exporter.

    `reread` returns the settings, read again, or raises SettingsError. The constructor raises SettingsError when no
    OTLP exporter can be made.
    """

    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        found: Mapping[str, Found],
        reread: Callable[[], Settings],
        notifier: Notifier,
    ) -> None:
        self._settings, self._reread, self._notifier = settings, reread, notifier
        self._busy = threading.Lock()
        """Held during start, reload and close, because a signal to reload may come at any time."""
        self._reloaded, self._reload_successful = time.time(), True
        self._push = Push(plan, self._gather, time.time()) if plan else None
        push = self._push if plan.traces else None
        spans, sampled = (push.span, push.sampled) if push else (None, None)
        self._observer = Observer(settings, found, spans, (self._own,), sampled)
        self._history = landing_plots.history()
        self._observer.scraper.subscribe(self._history.add)
        scraper, release = self._observer.scraper, self._observer.gpus.release
        profiles = self._observer.stack_profiles
        self._growth = Growth(profiles, settings.web.growing_stacks_window) if settings.web.enable_profiles else None
        self._server = Server(
            settings.web, scraper, self._page, self.reload, release, settings.profile, profiles, self._growth
        )
        self._profile_push = None
        if plan.profiles:
            if not settings.web.enable_profiles:
                raise SettingsError("otlp.profiles-interval: there are no profiles without web.enable-profiles")
            from exporter.otlp_profiles import ProfilePush

            self._profile_push = ProfilePush(plan.profiles, plan.profiles_interval, profiles, self._observer.resource)
        self._pushed = Pages(0, settings.profile)

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT and return the exit code. SIGHUP reloads the settings."""
        descriptors.raise_limit()
        if (left := descriptors.ceiling()) < descriptors.PROGRAMS:
            left = max(0, left)
            most = descriptors.limit()
            logger.warning("%d open files leave %d to probes, too few for all: %s", most, left, descriptors.RAISE)
        loop, stop, hangup = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, stop)
        self._busy.acquire()
        loop.add_signal_handler(signal.SIGHUP, hangup.set)
        try:
            await self._server.start()
        except (ListenError, WebConfigError) as error:
            logger.error("%s", error)
            return 1
        background = (asyncio.ensure_future(self._stay_alive()), asyncio.ensure_future(self._reload_at(hangup)))
        starting = loop.run_in_executor(None, self._start)
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            starting.result()
            self._notifier.ready()
            logger.info("ready")
        await stopping
        await starting
        _, detached = await asyncio.gather(self._server.stop(), loop.run_in_executor(None, self._close))
        for task in background:
            task.cancel()
        if not detached:
            logger.error("not everything was detached; the kernel detaches the rest")
            return 1
        logger.info("everything is detached")
        return 0

    def reload(self) -> None:
        """Read the settings again and apply them. Raises SettingsError; the previous settings stay in force then."""
        with self._busy:
            self._notifier.reloading()
            try:
                self._observer.apply(self._reread())
            except ValueError as error:
                logger.error("settings were not reloaded, those before stay in force: %s", error)
                self._reload_successful = False
                raise
            finally:
                self._notifier.ready()
            self._reloaded, self._reload_successful = time.time(), True

    async def _reload_at(self, hangup: asyncio.Event) -> None:
        """Reload at each signal; signals during a reload are one further reload."""
        while await hangup.wait():
            hangup.clear()
            with suppress(ValueError):  # reload() has logged it
                await asyncio.to_thread(self.reload)

    def _start(self) -> None:
        try:
            self._observer.start()
            self._history.start(self._observer.scraper.gather)
            if self._growth:
                self._growth.start()
            if self._profile_push:
                self._profile_push.start()
            if self._push:
                self._push.start()
            memory.settle()
        finally:
            self._busy.release()

    def _close(self) -> bool:
        self._history.close()
        if self._growth:
            self._growth.close()
        if self._profile_push:
            self._profile_push.stop()
        with self._busy:
            self._observer.release_spans()
            if self._push:
                self._push.stop()
            return self._observer.close()

    def _stop(self, stop: asyncio.Event) -> None:
        if stop.is_set():
            return
        stop.set()
        self._notifier.stopping()
        threading.Thread(target=_end_at, args=(time.monotonic() + STOP_WITHIN,), daemon=True).start()

    async def _stay_alive(self) -> None:
        while self._notifier.interval:
            self._notifier.alive()
            await asyncio.sleep(self._notifier.interval)

    def _page(self, samples: Sequence[Sample], states: Sequence[CollectorState]) -> str:
        """Return the page at /."""
        from exporter.views import landing  # where somebody looks at it only

        web = self._settings.web
        return landing.LandingPage(web.telemetry_path, self._history, web.enable_profiles).render(samples, states)

    def _gather(self) -> Sequence[Sample]:
        samples = self._observer.scraper.gather()  # by one thread only
        return self._pushed.within(lambda: samples, None, self._settings.profile)

    def _own(self) -> Iterable[Sample]:
        yield from self_metrics.build_info(version.build())
        if not self._settings.web.disable_exporter_metrics:
            yield from self_metrics.process()
        yield from self._server.pages.collect()
        yield RELOAD_SUCCESSFUL.sample(int(self._reload_successful))
        yield RELOAD_TIME.sample(self._reloaded)
        yield from dropped.samples()
        if self._push:
            yield from self._push.samples()
        if self._profile_push:
            yield from self._profile_push.samples()


def _end_at(deadline: float) -> None:
    time.sleep(max(0.0, deadline - time.monotonic()))
    logger.error("not everything was detached within %.1f s; the kernel detaches the rest", STOP_WITHIN)
    log.flush(LAST_LINE_SECONDS)
    os._exit(1)
