"""docs/evidence.md is what the markers of the tests give, and leaves nothing of README's table out."""

from __future__ import annotations

import re

import pytest

from tests import evidence
from tests.evidence import ROOT, BadMarker, Evidence

MARKED = "import pytest\n@pytest.mark.evidence({})\ndef test_it(): ...\n"


def test_the_page_is_current() -> None:
    """The committed page is what the tests give; `make docs` writes it."""
    assert evidence.page(evidence.found()) == (ROOT / "docs" / "evidence.md").read_text()


def test_every_row_of_readme_has_evidence() -> None:
    """Each row of the table of what is measured has features, and a test of one; no feature is of another row."""
    [table] = re.findall(
        r"^## What it measures\n\n(.*?)\n\n", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    rows = re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)

    assert len(rows) > 10
    assert {*rows, ""} == set(evidence.FEATURES.values())
    assert set(rows) <= {evidence.FEATURES[it.feature] for it in evidence.found()}


def test_every_feature_has_evidence() -> None:
    """A feature that no test is marked with is not declared."""
    assert set(evidence.FEATURES) == {it.feature for it in evidence.found()}


def test_readme_cites_it() -> None:
    """A reader of what the exporter measures finds what that has run on."""
    assert "(docs/evidence.md)" in (ROOT / "README.md").read_text()


def test_strongest_is_shown() -> None:
    """Of a feature that ran on several things the strongest is listed, with the tests on that alone."""
    page = evidence.page(
        [
            Evidence("CUDA memory", "stand-in", "tests/bpf/test_a.py"),
            Evidence("CUDA memory", "real hardware", "docs/gpu-results.md"),
            Evidence("RDMA latency", "real software", "tests/bpf/test_a.py"),
            Evidence("RDMA latency", "real kernel, emulated hardware", "tests/rdma/test_b.py"),
        ]
    )

    assert [
        "| memory | CUDA memory | real hardware | [gpu-results](gpu-results.md) | `make test-gpu` |",
        "| RDMA | RDMA latency | real kernel, emulated hardware | [test_b](../tests/rdma/test_b.py) "
        "| `make test-rdma` |",
    ] == page.splitlines()[-2:]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ('feature="CUDA memory", on="paper"', "not in FEATURES and GROUNDS"),
        ('feature="CUDA", on="stand-in"', "not in FEATURES and GROUNDS"),
        ('feature="CUDA memory"', "arguments are feature= and on="),
        ('"CUDA memory", on="stand-in"', "arguments are feature= and on="),
        ('feature=NAME, on="stand-in"', "have to be literals"),
    ],
)
def test_wrong_markers_are_refused(arguments: str, reason: str) -> None:
    """A marker that names no known feature or ground, or not in literals, is an error with its place."""
    with pytest.raises(BadMarker, match=f"^tests/test_x.py:2: .*{reason}"):
        list(evidence.markers(MARKED.format(arguments), "tests/test_x.py"))


def test_run_on_a_gpu_counts_where_every_row_is_ok() -> None:
    """A check of `make test-gpu` with a row that failed or could not run shows nothing."""
    run = """
| | question | outcome | answer |
|---|---|---|---|
| 1 | Does it load? | ok | yes |
| 1 | Which kernel? | reported | 6.8 |
| 4 | Launches | ok | 23 |
| 4 | Bytes in use | FAILED | 1 instead of 2 |
| 6 | Readings | cannot run | no NVML |
| 7 | Pids | reported | some |
"""

    assert ["finding and attaching"] == [it.feature for it in evidence.on_a_gpu(run)]
    assert [] == evidence.on_a_gpu("| 1 | Does it load? | it is assumed to |\n")
