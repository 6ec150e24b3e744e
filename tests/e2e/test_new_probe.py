"""CONTRIBUTING's steps for a probe, followed with one that is new: two files and a test, and no list is edited."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.needs_bpf]
ROOT = Path(__file__).parents[2]
NEW = Path(__file__).parent / "new_probe"
LEFT = shutil.ignore_patterns(".git", ".venv", "build", ".pytest_cache", ".hypothesis", "node_modules", "*.pyc.*")
"""The last are files of Python that other tests write meanwhile, and then rename."""
UNITS = [
    *(f"tests/unit/test_{name}.py" for name in ("discover", "evidence", "option_sources", "settings")),
    *(f"tests/program/{name}.py" for name in ("test_docs", "bpf/test_stacks", "nvml/test_docs")),
]
"""Test files that examine all collectors: to collect every unit test takes longer than to run these."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the repository, as built as this one, with the files of the new probe."""
    copy = tmp_path_factory.mktemp("new probe") / "checkout"
    shutil.copytree(ROOT, copy, ignore=LEFT, symlinks=True)
    built = "tests/standins/build"  # times of files included: what is as old is not made again
    if (ROOT / built).exists():
        shutil.copytree(ROOT / built, copy / built, symlinks=True)
    _take_as_checked(copy)
    (copy / ".venv").symlink_to(ROOT / ".venv")
    shutil.copytree(NEW, copy, dirs_exist_ok=True)
    yield copy
    shutil.rmtree(copy)


def _take_as_checked(copy: Path) -> None:
    """Leave out of `make check` to evaluate each file of rules, a minute in all: the probe changes none."""
    (checked := copy / "build/rules").mkdir(parents=True)
    for rules in (copy / "alerts").glob("*.yaml"):
        (checked / rules.stem).touch()


def make(checkout: Path, *arguments: str) -> str:
    """Run make in the copy and return what it prints. Fails with that where make fails."""
    done = subprocess.run(["make", *arguments], cwd=checkout, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, f"make {' '.join(arguments)}:\n{done.stdout[-8000:]}{done.stderr[-8000:]}"
    return done.stdout


@pytest.mark.timeout(900)
def test_two_files_and_a_test(checkout: Path) -> None:
    """The probe compiles, is documented, passes every check, and counts; flags, metrics and pages follow from it."""
    make(checkout, "objects")
    make(checkout, "docs")
    for page, line in (("metrics", "`bzip2_calls_total`"), ("flags", "`--collector.bzip2`")):
        assert line in (checkout / "docs" / f"{page}.md").read_text()
        assert line not in (ROOT / "docs" / f"{page}.md").read_text()
    make(checkout, "check")
    assert "tests/bpf/test_bzip2.py::test_23_calls PASSED" in make(checkout, "test-bpf", "ARGS=-v -k bzip2")
    subprocess.run([ROOT / ".venv/bin/python", "-m", "pytest", "-q", *UNITS], cwd=checkout, check=True)
