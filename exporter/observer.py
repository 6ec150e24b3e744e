"""The observing half of the exporter: processes, targets and the enabled collectors, without any server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from exporter import log
from exporter.bpf.targets import Targets
from exporter.discover import Found
from exporter.faults.metrics import FAULTS
from exporter.kmsg.kernel_log import KernelLog
from exporter.linking.linker import Linker
from exporter.model import Collector, Labels, Sample, Span
from exporter.node import Node
from exporter.nvml.gpus import Gpus
from exporter.resolve.process import ProcessTable
from exporter.resolve.process_context import ProcessContexts
from exporter.scrape import Scraper
from exporter.settings import Settings
from exporter.stack_profiles.published import StackProfiles

_FOLLOWED = ("log", "collectors", "kmsg", "moved")
logger = logging.getLogger(__name__)


class Observer:
    """The enabled collectors with their shared state. `own` are further sources of the exporter's own metrics.

    `spans` takes finished spans and returns False for one that is not sent. `sampled` returns whether one may be sent;
    without it each may.
    """

    def __init__(
        self,
        settings: Settings,
        found: Mapping[str, Found],
        spans: Callable[[Span], bool | None] | None,
        own: Sequence[Callable[[], Iterable[Sample]]] = (),
        sampled: Callable[[Span], bool] | None = None,
    ) -> None:
        self._settings, self._found = settings, found
        self._processes = ProcessTable(settings.procfs, settings.logs)
        self._contexts = ProcessContexts(settings.procfs)
        self.targets = Targets(settings.procfs)
        self._node = Node.new(
            self._processes,
            self.targets,
            self._finished if spans else _drop,
            settings.procfs,
            settings.sysfs,
            settings.kmsg,
            spans is not None,
            settings.overhead.max_ratio,
            settings.overhead.max_cores,
            settings.profile,
            settings.web.enable_profiles,
            settings.bpf_return_probes,
        )
        self._linker = self._make_linker(spans or _drop, sampled or _each)
        self.refusal = ""
        """The reason why libraries are not searched for; empty when they are."""
        jobs = partial(self._processes.jobs, self._node.workloads.of)
        shared = (
            lambda: self.targets.collect(),
            self._node.trial.collect,
            self._node.governor.collect,
            self._faults,
            jobs,
        )
        self.scraper = Scraper(self._make_all(), self._disabled(), (*shared, *own), self._search)

    @property
    def gpus(self) -> Gpus:
        """The GPUs that the NVML collector publishes to the others."""
        return self._node.gpus

    @property
    def stack_profiles(self) -> StackProfiles:
        """The profiles of stacks that collectors publish."""
        return self._node.stack_profiles

    def resource(self, pid: int) -> Labels:
        """Return the OpenTelemetry resource attributes of a process that are not labels.

        Those that its SDK publishes are before those of its environment.
        """
        identity = self._processes.identity(pid)
        return {**identity.resource, **self._contexts.attributes(pid, identity.start_time)}

    def start(self) -> None:
        """Start the collectors, then the search for libraries. A failure to start is logged, and the rest runs."""
        self.scraper.start()

    def apply(self, settings: Settings) -> None:
        """Apply changed settings.

        When those of one collector changed, or one failed to start, all restart, because they share one search and one
        reader of the kernel log.
        """
        before, self._settings = self._settings, settings
        log.configure(settings.log.level, settings.log.format)
        settings.warn()
        waiting = [key for key, value in vars(settings).items() if key not in _FOLLOWED and value != vars(before)[key]]
        if waiting:
            logger.warning("settings of %s have changed; they count after a restart", ", ".join(waiting))
        failed = self.scraper.not_started()
        if failed:
            logger.info("all collectors start again, because these failed to start: %s", ", ".join(failed))
        if failed or (settings.collectors, settings.kmsg) != (before.collectors, before.kmsg):
            self.close()
            self.targets = Targets(settings.procfs)
            kernel_log = KernelLog(settings.kmsg, self._node.clock.wall_ns)
            self._node = replace(self._node, targets=self.targets, kernel_log=kernel_log)
            self.scraper.replace(self._make_all(), self._disabled())
            if failed := self.scraper.not_started():
                logger.error("these collectors failed to start: %s", ", ".join(failed))
        elif self.refusal:
            self._search()
        logger.info("settings reloaded; collectors: %s", ", ".join(settings.collectors) or "none")

    def release_spans(self) -> None:
        """Pass on the spans that wait for others to link to; from now on none waits."""
        self._linker.close()

    def close(self) -> bool:
        """Detach all probes, then close the collectors, which own the loaded programs. Returns False if not in time."""
        detached = self.targets.close()
        self.scraper.close()
        return detached

    def _search(self) -> None:
        self.refusal = ""
        try:
            self.targets.start()
        except OSError as error:
            self.refusal = str(error).partition("\n")[0]
            logger.error("no library can be probed: %s; see accel-exporter doctor", self.refusal)

    def _faults(self) -> Iterable[Sample]:
        """Return the faults that collectors have found, unless an enabled collector shows them."""
        ledger = self._node.faults
        shown = any(FAULTS in self._found[name].metrics for name in self._settings.collectors)
        return () if shown or not len(ledger) else ledger.samples()

    def _finished(self, span: Span) -> None:
        """Pass a collector's span on, with the resource of the span's process."""
        pid = span.process.get("pid", "")
        if pid.isdecimal():
            span = replace(span, resource=self.resource(int(pid)))
        self._linker.take(span)

    def _make_linker(self, send: Callable[[Span], bool | None], sampled: Callable[[Span], bool]) -> Linker:
        clock, requests = self._node.clock, self._node.requests
        contexts = Path(self._settings.otlp.trace_contexts)
        return Linker(self._settings.procfs, requests, clock.now_ns, clock.wall_ns, send, sampled, contexts)

    def _make_all(self) -> list[Collector]:
        ordered = sorted(self._settings.collectors.items(), key=lambda item: not self._found[item[0]].first)
        return [self._make(name, flags) for name, flags in ordered]

    def _make(self, name: str, flags: Mapping[str, Any]) -> Collector:
        try:
            return self._found[name].create(self._node.with_settings(flags))
        except Exception as error:
            return _FailedCollector(name, error)

    def _disabled(self) -> dict[str, str]:
        return {name: it.switch for name, it in self._found.items() if name not in self._settings.collectors}


def _each(_: Span) -> bool:
    return True


def _drop(_: Span) -> None:
    """Discard a span."""


class _FailedCollector:
    """Stands for a collector that could not be created; `start` raises the same error."""

    def __init__(self, name: str, error: Exception) -> None:
        self.name, self._error = name, error

    def start(self) -> None:
        raise self._error

    def collect(self) -> Iterable[Sample]:
        return ()

    def close(self) -> None:
        """Do nothing."""
