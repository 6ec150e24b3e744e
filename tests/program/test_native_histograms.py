"""Debian's Prometheus takes durations as native histograms where it wants them, and a few classic buckets elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests import native_histograms as native
from tests.e2e.backend import Prometheus
from tests.support import until

pytestmark = [
    pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed"),
    pytest.mark.evidence(feature="native histograms", on="real software"),
]

JOB = "accel-exporter"


class Native(Prometheus):
    flags = (native.FLAG,)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, Prometheus]]:
    """Two that scrape one exporter: with native histograms, and without."""
    folders = [tmp_path_factory.mktemp(name) for name in ("native", "classic")]
    with native.served() as exporter:
        target = f"127.0.0.1:{exporter.port}"
        with Native(folders[0], target, []) as natively, Prometheus(folders[1], target, []) as classically:
            for each in (natively, classically):
                until(lambda each=each: each.query("count_over_time(up[1m]) > 12"), "a dozen scrapes")
            yield natively, classically


def test_native_histograms(servers: tuple[Prometheus, Prometheus]) -> None:
    """Each count is in its bucket of schema 0, up to infinity, and quantiles are in the bucket of the true ones."""
    native.natively(servers[0], JOB)


def test_classic_buckets(servers: tuple[Prometheus, Prometheus]) -> None:
    """Without the feature there are classic buckets alone, at most eight, each of them an exact sum."""
    native.classically(servers[1], JOB)
    assert {} == servers[1].query("test_wait_seconds")


def test_native_ones_replace_the_classic_ones_of_the_message(servers: tuple[Prometheus, Prometheus]) -> None:
    """Prometheus 2.42 keeps of a family with both the native one; what has other bounds stays classic."""
    assert {} == servers[0].query('{__name__=~"test_wait_seconds_.*"}')
    for each in servers:
        native.of_convention(each, JOB)
