"""Profiles of stacks in the whole program: off, on with nothing that captures stacks, and what is loaded for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from exporter.web import stack_profiles
from tests.program.process import ROOT, Exporter
from tests.support import until

pytestmark = pytest.mark.timeout(200)
NOTHING = ("--collector.disable-defaults",)


@pytest.mark.parametrize("enabled", [False, True], ids=["off", "on"])
def test_whole_program(tmp_path: Path, enabled: bool) -> None:
    """Off, each path is a 404 that names the flag; on, a profile is a 503 with the reason, and the page is there."""
    exporter = Exporter(tmp_path, *NOTHING, *(["--web.enable-profiles"] if enabled else []))
    try:
        until(lambda: "ready" in exporter.log, lambda: exporter.log)
        found = {path: exporter.get(path) for path in stack_profiles.PATHS}
        landing = exporter.get("/")[1]
    finally:
        exporter.process.terminate()
        assert 0 == exporter.process.wait(30)

    assert enabled == ('href="/flamegraph"' in landing)
    if not enabled:
        assert {404} == {status for status, _ in found.values()}
        assert all("--web.enable-profiles" in text for _, text in found.values())
        return
    profiles = {text for path, (status, text) in found.items() if path.startswith("/debug/") and status == 503}
    assert {"there is no profile: no collector that captures stacks is switched on\n"} == profiles
    assert (200, True) == (found["/flamegraph"][0], "<script>" in found["/flamegraph"][1])
    assert (200, "[]") == found["/api/failed-allocations"]
    assert '"problem": "no collector that captures stacks' in found["/api/growing-stacks"][1]


def test_nothing_is_loaded_for_them_before_a_request() -> None:
    """The writers of profiles, the page and its script are not imported by the program that serves metrics."""
    code = (
        "import sys, exporter.app, exporter.doctor; print(*(it for it in sys.modules if 'views.stack_profiles' in it))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    assert "\n" == done.stdout
