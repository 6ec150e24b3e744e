"""The files of a release: each alert of the plain rules, the chart and the manifests leads to its runbook."""

from __future__ import annotations

import functools
import re
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter import __version__
from tests.program.test_alerts import ALERTS, ROOT, needs_promtool, promtool
from tests.program.test_kubernetes import HELM

pytestmark = pytest.mark.evidence(feature="chart and manifests", on="not run")

GRAFANA = "https://grafana.example.com"


def make(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The run of `make release` into the folder."""
    command = ["make", "-s", "release", f"RELEASE_FOLDER={folder}", *(f"{it}={variables[it]}" for it in variables)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@dataclass(frozen=True)
class Release:
    folder: Path
    base: str
    """The address of the runbooks, which answers."""

    def alerts(self, documents: list[Any]) -> dict[str, dict[str, Any]]:
        """The alerts of rules, or of resources that include a PrometheusRule."""
        of = [it.get("spec", it) for it in documents if it and it.get("kind", "PrometheusRule") == "PrometheusRule"]
        return {
            rule["alert"]: rule for it in of for group in it["groups"] for rule in group["rules"] if "alert" in rule
        }


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """A release of this version, and a server of its site."""
    folder = tmp_path_factory.mktemp("release") / "made"
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder / "site")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_address[1]}/runbooks"
    try:
        made = make(folder, VERSION=__version__, RUNBOOKS=base, GRAFANA=GRAFANA)
        assert 0 == made.returncode, made.stderr
        yield Release(folder, base)
    finally:
        server.shutdown()
        server.server_close()


def documents(release: Release, form: str) -> list[Any]:
    """The YAML documents that a release publishes in this form."""
    if form == "chart":
        chart = release.folder / f"accel-exporter-{__version__}.tgz"
        command = [HELM, "template", "accel-exporter", chart, "--set", "prometheusRule.enabled=true"]
        text = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout
    else:
        text = (release.folder / form).read_text()
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize("form", ["accel-exporter-rules.yaml", "kubernetes/rules.yaml", "chart"])
def test_links(release: Release, form: str) -> None:
    """Without any setting by the user, each alert has the absolute addresses of its runbook and dashboard."""
    found = release.alerts(documents(release, form))
    assert {*ALERTS} == {*found}
    for alert, rule in found.items():
        assert f"{release.base}/{alert.lower()}.html" == rule["annotations"]["runbook_url"]
        assert rule["annotations"]["dashboard_url"].startswith(f"{GRAFANA}/d/")
        assert not {"runbook", "dashboard"} & {*rule["annotations"]}


def test_each_link_answers(release: Release) -> None:
    """The address of each alert's runbook is a page with the alert's name as its title."""
    for alert, rule in release.alerts(documents(release, "accel-exporter-rules.yaml")).items():
        with urllib.request.urlopen(rule["annotations"]["runbook_url"], timeout=10) as answer:
            page = answer.read().decode()
        assert re.search(rf"<h1[^>]*>{alert}\b", page), alert


@needs_promtool
def test_prometheus_takes_the_rules(release: Release) -> None:
    checked = promtool("check", "rules", release.folder / "accel-exporter-rules.yaml")
    assert 0 == checked.returncode, checked.stdout + checked.stderr


def test_all_is_there(release: Release) -> None:
    """The manifests are complete, the image has the version, and each file outside the site has its checksum."""
    named = yaml.safe_load((release.folder / "kubernetes/kustomization.yaml").read_text())["resources"]
    assert {*named} | {"kustomization.yaml"} == {it.name for it in (release.folder / "kubernetes").iterdir()}
    assert f"image: accel-exporter:{__version__}" in (
        release.folder / "kubernetes/accel-exporter.yaml"
    ).read_text().replace('"', "")
    checked = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=release.folder, check=False)
    sums = (release.folder / "SHA256SUMS").read_text().splitlines()
    files = {str(it.relative_to(release.folder)) for it in release.folder.rglob("*") if it.is_file()}
    assert 0 == checked.returncode
    assert {line.split("  ")[1] for line in sums} | {"SHA256SUMS"} == {it for it in files if not it.startswith("site/")}
    assert not [it for it in files if it.endswith((".py", ".pyc"))]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "RUNBOOKS is not an absolute address"),
        ({"RUNBOOKS": "docs/runbooks"}, "RUNBOOKS is not an absolute address"),
        ({"RUNBOOKS": "https://example.com/runbooks", "VERSION": "99.0.0"}, "VERSION is not that of exporter/"),
        ({"RUNBOOKS": "https://example.com/runbooks", "GRAFANA": "grafana"}, "GRAFANA is not an absolute address"),
        ({"RUNBOOKS": "https://example.com/runbooks", "RUNBOOK_SUFFIX": ".txt"}, "RUNBOOK_SUFFIX is neither"),
    ],
)
def test_refused(tmp_path: Path, variables: dict[str, str], expected: str) -> None:
    """A release without an address for its runbooks fails, and the files of an earlier one stay."""
    (tmp_path / "made").mkdir()
    made = make(tmp_path / "made", **{"VERSION": __version__, **variables})
    assert 0 != made.returncode and f"release: {expected}" in made.stderr
    assert (tmp_path / "made").is_dir()


def test_the_sources_pages(tmp_path: Path) -> None:
    """Links to the source tree of the release lead to files that exist there."""
    base = "https://example.com/accel-exporter/blob/v1/docs/runbooks/"
    made = make(tmp_path / "made", VERSION=__version__, RUNBOOKS=base, RUNBOOK_SUFFIX=".md")
    assert 0 == made.returncode, made.stderr
    found = Release(tmp_path / "made", base)
    for rule in found.alerts(documents(found, "chart")).values():
        url = rule["annotations"]["runbook_url"]
        assert url.startswith(base) and (ROOT / "docs/runbooks" / url.removeprefix(base)).is_file()
