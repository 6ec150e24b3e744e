"""The page /flamegraph in headless Chromium: what it shows, and that no name in a profile becomes markup."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.stack_profiles.frozen import FailedAllocation
from exporter.stack_profiles.growth import Growth
from exporter.stack_profiles.model import StackProfile
from exporter.stack_profiles.published import StackProfiles
from tests import made_up_profiles as made_up
from tests.e2e.browser import PROGRAM, Browser
from tests.standins.served import Served
from tests.support import until

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium; Debian's package chromium is enough"),
    pytest.mark.evidence(feature="profiles of stacks", on="stand-in"),
]
FAILED = FailedAllocation(made_up.KV_CACHE, made_up.SERVE, 3 << 30, None, "cuMemAlloc_v2")


class Steady(made_up.Source):
    """A source that gives the same memory in use until `factor` changes."""

    factor = 1

    def inuse(self) -> StackProfile:
        return made_up.hostile() if self.factor < 0 else made_up.inuse(self.factor)


@pytest.fixture(scope="module")
def source() -> Steady:
    return Steady()


@pytest.fixture(scope="module")
def served(source: Steady) -> Iterator[Served]:
    published = StackProfiles()
    published.publish(source)
    growth = Growth(published, 600)
    for source.factor in (1, 2, 3, 4):
        growth.look()
    source.factor = 1
    published.frozen.freeze(made_up.inuse(5), FAILED, 1_700_000_000 * 10**9)
    with Served([], profiles=published, growth=growth, enable_profiles=True) as running:
        yield running


class FlameGraph(Browser):
    """The page, once it has its profile."""

    def show(self, served: Served, link: str = "") -> None:
        self.open(f"http://127.0.0.1:{served.port}/flamegraph{link}")
        until(lambda: self.run("document.getElementById('growing-note').textContent !== ''"), "the page has loaded")

    def run(self, script: str) -> Any:
        """Return the value of an expression, after its promises."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def choose(self, control: str, value: str) -> None:
        self.run(
            f"(e => {{ e.value = {json.dumps(value)}; e.dispatchEvent(new Event('change')); "
            f"e.dispatchEvent(new Event('input')); }})(document.getElementById('{control}'))"
        )

    def click(self, control: str) -> None:
        self.run(f"document.getElementById('{control}').click()")

    def text(self, control: str) -> str:
        return str(self.run(f"document.getElementById('{control}').textContent"))

    def boxes(self, kind: str = "") -> dict[str, float]:
        """The names of the frames that are shown, and the width of each in percent."""
        rows = self.run(
            f"[...document.querySelectorAll('#graph div{kind}')].map(e => [e.title.split('\\n')[0], "
            "parseFloat(e.style.width)])"
        )
        return dict(rows)


def test_widths_are_shares(served: Served) -> None:
    """Each frame is as wide as its share of 1,630 bytes, and the browser has nothing to complain about."""
    with FlameGraph() as page:
        page.show(served)
        boxes = page.boxes()
        status = page.text("status")

        assert [] == page.complaints
    assert [100, 98.16, 61.35, 36.81] == [
        round(boxes[name], 2) for name in ("total", "main", "load_weights", "allocate_kv_cache")
    ]
    assert {"[unknown stack]", "do_syscall_64", "libc10_cuda.so+0x5e10"} <= set(boxes)
    assert status.startswith("1.6 KiB in 4 stacks at ")
    assert "2 stacks were dropped" in status


def test_zoom_search_groups_filters(served: Served) -> None:
    """A click makes a frame as wide as the page; a search marks frames; groups and filters divide and leave out."""
    with FlameGraph() as page:
        page.show(served)
        page.run("[...document.querySelectorAll('#graph div')].find(e => e.title.startsWith('load_weights')).click()")
        zoomed = page.boxes()
        assert (100, 100, False) == (zoomed["main"], zoomed["load_weights"], "allocate_kv_cache" in zoomed)
        page.click("reset")
        assert 36.81 == round(page.boxes()["allocate_kv_cache"], 2)

        page.choose("search", "ENGINE.py")
        assert ["allocate_kv_cache"] == [*page.boxes(".hit")]
        assert "36.8 % match" in page.text("status")
        page.choose("search", "")

        page.choose("by", "process")
        assert {"serve (4711)": 98.16, "train (815)": 1.84} == {
            name: round(width, 2) for name, width in page.boxes(".group").items() if name != "total"
        }
        page.choose("gpu_uuid", "GPU-bbbb")
        assert page.text("status").startswith("30 B in ")
        assert "pid" not in page.run("location.hash")
        assert "gpu_uuid=GPU-bbbb" in page.run("document.getElementById('collapsed').href")

        page.choose("gpu_uuid", "")
        page.choose("value", "inuse_objects")
        assert page.text("status").startswith("7 in ")
        assert [] == page.complaints


def test_difference_of_two_moments(served: Served, source: Steady) -> None:
    """The remembered profile is compared with one loaded later: three times as much is a growth by twice as much."""
    with FlameGraph() as page:
        page.show(served)
        page.click("remember")
        source.factor = 3
        page.click("refresh")
        until(lambda: page.text("status").startswith("4.8 KiB"), "the profile is loaded again")
        source.factor = 1
        page.click("compare")

        assert "+3.2 KiB since" in page.text("status")
        assert {"main", "load_weights"} <= set(page.boxes(".more"))
        assert "before 1000 B: +2.0 KiB" in page.run(
            "[...document.querySelectorAll('#graph div')].find(e => e.title.startsWith('load_weights')).title"
        )


def test_failed_allocation_by_its_link(served: Served) -> None:
    """A link to a failed allocation shows the memory in use then, and the request."""
    with FlameGraph() as page:
        page.show(served, "#profile=gpu_oom&n=1")

        assert page.text("status").startswith("8.0 KiB in 5 stacks at ")
        assert "failed: cuMemAlloc_v2 of 3221225472 bytes" in page.text("status")
        page.choose("value", "failed_space")
        assert page.text("status").startswith("3.0 GiB")
        assert "allocate_kv_cache" in page.boxes()


def test_growing_stacks(served: Served) -> None:
    """The table has the stacks that grew with their lines, the fastest first."""
    with FlameGraph() as page:
        page.show(served)
        rows = page.run(
            "[...document.querySelectorAll('#growing tr')].map(e => [...e.children].map(c => c.textContent))"
        )

    assert [
        "serve (4711)",
        "GPU-aaaa",
        "load_weights /app/model.py:120",
        "+2.9 KiB",
        "3.9 KiB",
        "3",
    ] == rows[0]
    assert 4 == len(rows)


def test_hostile_names_are_text(served: Served, source: Steady) -> None:
    """No name becomes markup or runs; the page shows names and is as wide as its window."""
    source.factor = -1
    try:
        with FlameGraph(width=390) as page:
            page.show(served)

            assert 0 == page.run("document.querySelectorAll('#graph img, #graph script').length")
            assert any("onerror=alert(1)" in name for name in page.boxes())
            assert 390 == page.size()[0]
            assert [] == page.complaints
    finally:
        source.factor = 1


def test_no_other_script_runs(served: Served) -> None:
    """The policy holds: a script that gets into the page does not run, and nothing is fetched from elsewhere."""
    with FlameGraph() as page:
        page.show(served)
        page.run(
            "(s => { s.textContent = 'window.ran = 1'; document.body.append(s); })(document.createElement('script'))"
        )
        elsewhere = page.run("fetch('http://127.0.0.2:1/').then(() => 'fetched', () => 'refused')")

        assert (None, "refused") == (page.run("window.ran"), elsewhere)
        assert any("Content Security Policy" in text for text in page.complaints)


def test_reason_is_shown() -> None:
    """Without profiles the page has the server's reason."""
    with (
        Served([], profiles=StackProfiles(), growth=Growth(StackProfiles(), 60), enable_profiles=True) as served,
        FlameGraph() as page,
    ):
        page.show(served)

        assert "no collector that captures stacks is switched on" in page.text("status")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_picture(served: Served, tmp_path: Path, dark: bool) -> None:
    """A picture of the page can be taken, in both colour schemes."""
    picture = Path(os.environ.get("FLAMEGRAPH_PICTURES", tmp_path)) / f"flamegraph{'-dark' * dark}.png"
    with FlameGraph(dark=dark) as page:
        page.show(served)
        page.choose("by", "process")
        page.photograph(picture)

    assert picture.read_bytes().startswith(b"\x89PNG")
