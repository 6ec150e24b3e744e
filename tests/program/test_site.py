"""docs/ as a site: it builds, every page is in it, and nothing in it leads nowhere or is fetched from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. --strict makes broken links, broken anchors and pages that are not in the nav errors."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr
    return out


def test_every_page_is_reached_from_the_first(site: Path) -> None:
    """Each file of docs/ became a page, and the nav of the first page links to it."""
    pages = {str(path.relative_to(DOCS).with_suffix(".html")) for path in DOCS.rglob("*.md")}
    pages = {page.replace("README", "index") for page in pages}
    assert set() == pages - {str(path.relative_to(site)) for path in site.rglob("*.html")}
    assert set() == pages - set(re.findall(r'href="([^"#]+)"', (site / "index.html").read_text()))


def test_links_to_files_of_the_repository_become_their_paths(site: Path) -> None:
    """A file that is no page, such as the chart, is named in the site and not linked to."""
    page = (site / "deployment.html").read_text()
    assert "<code>deploy/helm/accel-exporter</code>" in page
    assert [] == [link for link in re.findall(r'href="([^"#]+)"', page) if "deploy/" in link]


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """Scripts, styles, fonts and images are files of the site: it works on a network without the internet."""
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert [] == re.findall(r'<(?:script|img|link rel="(?:stylesheet|preconnect)")[^>]+"https?://[^>]*', text), path


@pytest.mark.parametrize("path", ["docs/quick-start.md", "deploy/compose/prometheus.yml"])
def test_prometheus_has_all_rules(path: str) -> None:
    """Rules by name, since a pattern would take their tests too: none is forgotten."""
    rules = {rule.name for rule in (ROOT / "alerts").glob("*.yaml") if not rule.stem.endswith(".test")}
    assert rules == set(re.findall(r"^ +- \S*alerts/(\S+)$", (ROOT / path).read_text(), re.MULTILINE))


def test_links_of_the_readme_lead_somewhere() -> None:
    """Each file that README.md, CONTRIBUTING.md or CHANGELOG.md links to is there."""
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        links = re.findall(r"\]\(([^)#]+)", (ROOT / name).read_text())
        assert [] == [link for link in links if "://" not in link and not (ROOT / link).exists()], name
