"""The two machines, with an exporter in each: started once for all tests, as it takes a minute."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporter import discover
from tests.rdma import rig
from tests.rdma.rig import DEVICE, PORT, REPOSITORY, Command, Host, Limit, RigError

ADDRESS = "127.0.0.1:19445"
START_SECONDS = 120.0
INTERVAL = 1.0
"""Between two readings of the counters."""


@dataclass(frozen=True)
class Page:
    """A page of /metrics: values by name and labels."""

    values: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    def get(self, name: str, **labels: str) -> dict[frozenset[tuple[str, str]], float]:
        """Return the series of a name that have these labels; of a program, those of its newest process."""
        wanted = set(labels.items())
        if "comm" in labels:
            wanted.add(("pid", self._newest(labels["comm"])))
        return {found: value for (series, found), value in self.values.items() if series == name and wanted <= found}

    def _newest(self, comm: str) -> str:
        """Return the newest pid of a program: other tests may have run it before, and pids grow."""
        pids = {dict(labels).get("pid", "") for _, labels in self.values if ("comm", comm) in labels}
        return max(pids, key=int, default="")

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of these series. Raises AssertionError when there is none."""
        found = self.get(name, **labels)
        assert found, f"there is no {name} with {labels}"
        return sum(found.values())


@dataclass(frozen=True)
class Side:
    """A machine and the exporter in it."""

    host: Host
    exporter: Command

    def scrape(self) -> Page:
        samples = (sample for it in text_string_to_metric_families(self.host.get(ADDRESS)) for sample in it.samples)
        return Page({(it.name, frozenset(it.labels.items())): it.value for it in samples})

    def await_attached(self, *symbols: str) -> None:
        """Until these functions of soft-RoCE's provider are probed, which a program has to have mapped."""
        limit = Limit(self.host, START_SECONDS)
        while True:
            page = self.scrape()
            found = [page.get("accel_exporter_probe_attached", probe="verbs", symbol=it) for it in symbols]
            if all(any(value and "librxe" in dict(to)["library"] for to, value in its.items()) for its in found):
                return
            if limit.passed:
                raise RigError(f"{self.host.name}: not attached after {START_SECONDS:.0f} s: {found}")
            time.sleep(1)

    def settled(self) -> tuple[Page, dict[str, int]]:
        """Return the exporter's page once it has the kernel's counts, and these: nothing moves now."""
        limit = Limit(self.host, 60)
        while True:
            time.sleep(INTERVAL)
            before, page, after = self.host.counters(), self.scrape(), self.host.counters()
            if _moving(before) == _moving(after) == _shown(page) or limit.passed:
                return page, after


def _moving(counters: Mapping[str, int]) -> dict[str, float]:
    return {name: value for name, value in counters.items() if name != "lifespan"}


def _shown(page: Page) -> dict[str, float]:
    found = page.get("rdma_port_hw_counter_total", device=DEVICE, port=PORT)
    return {dict(labels)["counter"]: value for labels, value in found.items()}


@pytest.fixture(scope="session")
def sides() -> Iterator[tuple[Side, Side]]:
    if missing := rig.missing():
        if os.environ.get("REQUIRE_RDMA") == "1":
            pytest.fail(f"REQUIRE_RDMA=1, but {missing}")
        pytest.skip(f"{missing}; make test-rdma gets it")
    with rig.hosts() as both:
        sides = tuple(Side(host, _exporter(host)) for host in both)
        for side in sides:
            _await(side)
            side.host.begin(f"exec ib_write_bw --ib-dev={rig.DEVICE} --port=20000")
        for side in sides if "verbs" in discover.collectors() else ():
            side.await_attached("post_send")
        yield sides[0], sides[1]


@pytest.fixture
def sender(sides: tuple[Side, Side]) -> Side:
    return sides[0]


@pytest.fixture
def receiver(sides: tuple[Side, Side]) -> Side:
    return sides[1]


@pytest.fixture(scope="session")
def late_receiver() -> Path:
    return _built("late_receiver")


@pytest.fixture(scope="session")
def extended_calls() -> Path:
    return _built("extended_calls")


def _built(name: str) -> Path:
    """A program, built here and run there."""
    program, source = rig.BUILD / name, Path(__file__).with_name(f"{name}.c")
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, source, "-libverbs"], check=True)
    return program


def _exporter(host: Host) -> Command:
    wanted = [f"--collector.{name}" for name in ("infiniband", "verbs") if name in discover.collectors()]
    flags = [
        "--profile=debug",
        "--collector.disable-defaults",
        "--overhead.max-ratio=0",  # every call counts: none is estimated, however slow the machine
        *wanted,
        f"--collector.infiniband.interval={INTERVAL:g}s",
        "--collector.infiniband.all-counters",
    ]
    if "--collector.verbs" in wanted:
        flags += ["--collector.verbs.poll-window-seconds=1", "--collector.verbs.poll-interval-seconds=1"]  # always
    return host.begin(
        f"cd {REPOSITORY}; exec .venv/bin/accel-exporter --web.listen-address={ADDRESS} --compat.node-exporter "
        + " ".join(flags)
    )


def _await(side: Side) -> None:
    limit = Limit(side.host, START_SECONDS)
    while "ready" not in side.exporter.printed:
        if side.exporter.done or limit.passed:
            raise RigError(f"{side.host.name}: the exporter did not start:\n{side.exporter.printed}")
        time.sleep(0.5)
