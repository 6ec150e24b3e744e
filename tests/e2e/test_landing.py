"""The page at / of a busy node in headless Chromium: whole, without scripts, on a phone, and without complaint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bpf.cuda_node import build_standins
from tests.e2e.browser import PROGRAM, Browser
from tests.e2e.landing_node import busy_node
from tests.program.process import Exporter
from tests.support import PATIENCE, until
from tests.unit.views.test_landing import Reader

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium; Debian's package chromium is enough"),
    pytest.mark.evidence(feature="the page at /", on="real software"),
]
TABLES = {
    "Processes": ("pretrain", "finetune", "kv-transfer", "train-2", "Slurm job 48213"),
    "GPUs": ("NVIDIA H100 80GB HBM3", "ok", "1 (94)"),
    "RDMA queue pairs": ("kv-transfer", "standin0/1", "418 at fe80::8", "RTS"),
    "RDMA ports": ("standin0/1", "active", "400 Gb/s"),
    "NCCL communicators": ("0 of 4", "1 of 4", "2 of 4", "3 of 4"),
    "Faults": ("xid_94",),
    "Collectors": ("cuda", "verbs", "nccl", "infiniband"),
    "Probed libraries": ("cuda", "verbs", "nccl"),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, bpf_refusal: str) -> Iterator[Exporter]:
    """A busy node, once every plot has its first points, and every table its rows."""
    if bpf_refusal:
        pytest.skip(bpf_refusal)
    build_standins()
    with busy_node(tmp_path_factory.mktemp("node")) as exporter:

        def complete() -> bool:
            page = exporter.get("/")[1]
            return page.count('<svg class="p"') >= 16 and not lacking(page)

        until(complete, lambda: f"all is there; {lacking(exporter.get('/')[1])} not yet", 2 * PATIENCE)
        yield exporter


def sections(page: str) -> dict[str, str]:
    """The page by its headings."""
    parts = page.split("<h2")[1:]
    return {Reader("<h2" + part).text.strip().partition("\n")[0]: part for part in parts}


def lacking(page: str) -> dict[str, set[str]]:
    """Return the texts of TABLES that are not in their tables, by the heading."""
    cells = {title: {cell for row in Reader(part).rows for cell in row} for title, part in sections(page).items()}
    return {title: missing for title, texts in TABLES.items() if (missing := set(texts) - cells.get(title, set()))}


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])
def test_tables_are_there(node: Exporter, scripts: bool) -> None:
    """Every table has its rows, also with JavaScript off, and the browser has nothing to complain about."""
    with Browser(scripts=scripts) as browser:
        page = browser.open(f"http://{node.address}/")

        assert [] == browser.complaints
    assert {} == lacking(page)
    found = sections(page)
    assert "<svg" in found["Processes"]
    assert "<svg" in found["RDMA queue pairs"]


def test_late_rank_is_the_one_that_is_late(node: Exporter) -> None:
    """Of four ranks the one that comes 35 ms late has that lag, and the others do not."""

    def late(browser: Browser) -> dict[str, str]:
        rows = Reader(sections(browser.open(f"http://{node.address}/"))["NCCL communicators"]).rows
        return {row[1]: row[rows[0].index("arrives late by (mean)")] for row in rows[1:]}

    def named(lags: dict[str, str]) -> bool:
        """Return whether the late rank is the expected one, on average: a busy machine delays calls of any rank."""
        lag = lags.pop("2 of 4")
        others = all(it.endswith("µs") or float(it.removesuffix(" ms")) < 25 for it in lags.values())
        return others and 25 < float(lag.removesuffix(" ms")) < 60

    with Browser() as browser:
        until(lambda: named(late(browser)), lambda: late(browser))


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (320, True)])
def test_page_fits_its_window(node: Exporter, tmp_path: Path, width: int, dark: bool) -> None:
    """On a desk and on a phone the page is as wide as the window: only tables scroll; its picture can be taken."""
    picture = Path(os.environ.get("LANDING_PICTURES", tmp_path)) / f"landing-{width}{'-dark' * dark}.png"
    with Browser(width=width, dark=dark) as browser:
        browser.open(f"http://{node.address}/")
        browser.photograph(picture)

        assert width == browser.size()[0]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_browser_notices(tmp_path: Path) -> None:
    """A page that is wrong is complained about, and one that is too wide is seen to be: so the tests above can fail."""
    bad = tmp_path / "bad.html"
    bad.write_text('<body style="width:3000px"><script>document.title = "ran"; throw new Error("no")</script>')
    with Browser() as browser:
        assert "<title>ran</title>" in browser.open(bad.as_uri())
        assert ["Uncaught"] == browser.complaints
        assert browser.size()[0] >= 3000
    with Browser(scripts=False) as browser:
        assert "<title>ran</title>" not in browser.open(bad.as_uri())
