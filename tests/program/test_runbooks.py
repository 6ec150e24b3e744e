"""Commands of runbooks to paste, and links of alerts: metrics, variables and words in them exist."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.metric_names import declared
from tests.program.test_alerts import ALERTS, ROOT, RUNBOOKS, needs_promtool, promtool

pytestmark = pytest.mark.evidence(feature="alert and recording rules", on="real software")

PLACEHOLDERS = {
    "ADDRESS", "DEVICE", "DRIVE", "FILE_OF_DIAGNOSTIC_STAMP", "FOLDER_OF_REPORTS", "GPU", "HOST", "JOB", "LID",
    "CATEGORY.COMPONENT", "MOUNTPOINT", "NAMESPACE", "NETDEV", "NODE", "PID", "POD", "PORT", "PROGRAM", "PROMETHEUS",
    "SERVER", "SWITCH", "SWITCH_LID", "SWITCH_PORT", "TID",
}  # fmt: skip
"""Words in a command that a person replaces."""
_VARIABLE = re.compile(r"[?&]var-(\w+)=\{\{ (?:\$labels\.(\w+)|\.) \| urlquery \}\}")
_OPTIONAL = re.compile(r"\{\{ with \$labels\.(\w+) \}\}&var-(\w+)=\{\{ \. \| urlquery \}\}\{\{ end \}\}")
NVIDIA_TOOLS = {
    "nvidia-smi": "-L -q -d -i -e -pl -lgc -rgc --gpu-reset --query-gpu --query-compute-apps --query-remapped-rows "
    "--format",
    "nvidia-smi nvlink": "--status -e",
    "nvidia-smi topo": "-m -p2p",
    "nvidia-smi mig": "-lgi",
    "nvidia-imex-ctl": "-N",
    "nv-fabricmanager": "--version",
    "dcgmi diag": "-r --entity-id",
    "ncclras": "-h -v",
    "compute-sanitizer": "--tool",
    "cuda-gdb": "-p -batch -ex",
    "/usr/local/cuda/gds/tools/gdscheck": "-p",
}
"""Options of tools that only a node with NVIDIA's driver has, from its documentation and recorded use.

nvidia-smi(1) of driver 580; docs.nvidia.com: DCGM's dcgmi-diag, NCCL's troubleshooting/ras, CUDA's cuda-gdb and
compute-sanitizer, GPUDirect Storage's troubleshooting guide, the IMEX and fabric manager guides.
"""
DISPLAYS = {"ECC", "TEMPERATURE", "POWER", "CLOCK", "PERFORMANCE", "PAGE_RETIREMENT", "ROW_REMAPPER"}
"""Sections of `nvidia-smi -q -d` that runbooks use."""
PROPERTIES = {
    "index", "name", "gpu_uuid", "pid", "used_memory", "driver_version", "vbios_version", "persistence_mode",
    "ecc.mode.current", "ecc.mode.pending", "mig.mode.current", "mig.mode.pending", "utilization.gpu",
    "temperature.gpu", "temperature.memory", "power.draw", "power.limit", "clocks.sm", "clocks.mem",
    "clocks.max.sm", "clocks_event_reasons.active", "pcie.link.gen.current", "pcie.link.width.current",
    "pcie.link.width.max", "remapped_rows.correctable", "remapped_rows.uncorrectable",
    "remapped_rows.pending", "remapped_rows.failure", "remapped_rows.histogram.low",
    "remapped_rows.histogram.none",
}  # fmt: skip
"""Properties in runbooks: `nvidia-smi --help-query-gpu`, `--help-query-compute-apps`, `--help-query-remapped-rows`."""
each_runbook = pytest.mark.parametrize("path", sorted(RUNBOOKS.glob("*.md")), ids=lambda path: path.stem)


def shown(url: str) -> str:
    """Return a dashboard's address as a runbook shows it, with a word in capitals for each label."""
    url = _OPTIONAL.sub(lambda found: f"&var-{found[2]}={found[1].upper()}", url)
    return re.sub(r"\{\{ \$labels\.(\w+) \| urlquery \}\}", lambda found: found[1].upper(), url)


def commands(path: Path) -> list[str]:
    blocks = re.findall(r"^```sh\n(.+?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def alternatives(pattern: str) -> Iterator[str]:
    """Yield each of the patterns that a pattern with one level of groups stands for."""
    pieces = [piece.split("|") for piece in re.split(r"\(([^()]*)\)", pattern)]
    if len(pieces) == 1:
        yield from pieces[0]
    elif any(len(piece) > 1 for piece in pieces[::2]):
        for part in re.findall(r"(?:[^|()]|\([^()]*\))+", pattern):
            yield from alternatives(part)
    else:
        yield from ("".join(choice) for choice in itertools.product(*pieces))


@pytest.mark.parametrize("alert", ALERTS)
def test_a_link_fills_in_the_variables(alert: str) -> None:
    """Each variable of an alert's link is one of the dashboard, filled in by the label of that name.

    The cluster is the last, where Prometheus has several; runbooks show a link without it.
    """
    url, cluster = ALERTS[alert]["annotations"]["dashboard"].split("{{ with $labels.cluster }}")
    assert f"{'&' if '?' in url else '?'}var-cluster={{{{ . | urlquery }}}}{{{{ end }}}}" == cluster
    boards = [json.loads(path.read_text()) for path in (ROOT / "dashboards").glob("*.json")]
    [board] = [it for it in boards if it["uid"] == url.removeprefix("/d/").partition("?")[0]]
    variables = {it["name"] for it in board["templating"]["list"]}
    assert "cluster" in variables
    named = [(found[1], found[2]) for found in _OPTIONAL.finditer(url)]
    named += [(found[2], found[1]) for found in _VARIABLE.finditer(_OPTIONAL.sub("", url))]
    assert all(label == variable and variable in variables for label, variable in named), named
    assert url.count("var-") == len(named)
    assert ("instance", "instance") in named or "$labels.instance" not in ALERTS[alert]["annotations"]["summary"]
    assert f"`{shown(url)}`" in (RUNBOOKS / f"{alert.lower()}.md").read_text()


@each_runbook
def test_commands_name_what_is_on_the_page(path: Path) -> None:
    """Each alternative that a command searches for on the exporter's page is a series that the code declares."""
    for line in commands(path):
        if found := re.search(r"19445/metrics \| grep (?:-E )?(?:'([^']+)'|([\w_]+))", line):
            for pattern in alternatives(found[1] or found[2]):
                names = declared() | {"rnr", "^#"}
                assert any(re.search(pattern, name) for name in names), pattern


@each_runbook
def test_words_to_replace_are_few(path: Path) -> None:
    """A word in capitals in a command is one of those that docs/alerts.md explains, a variable or in quotes."""
    for line in commands(path):
        bare = re.sub(
            r"'[^']*'|\"[^\"]*\"|#.*| -d [A-Z]+_?(?:[A-Z]*,\S+|[A-Z]*(?= -i)|[A-Z]*$)|\bgrep \S+|reason=\S+| -o \S+",
            " ",
            line,
        )
        words = {it.rstrip(";") for it in re.findall(r"(?<![\w.-])[A-Z][A-Z_.]{2,}[A-Z]\b", bare)}
        assert set() == words - PLACEHOLDERS - {"POST"}, line


def nvidia_commands(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield tool and words of each command of NVIDIA's tools, in blocks and between backquotes of the text."""
    inline = re.findall(r"`([^`\n]+)`", path.read_text())
    for line in [*commands(path), *inline]:
        for command in re.split(r"[|;&]+", re.sub(r"'[^']*'", "X", line)):
            words = command.split("#")[0].split()
            while words and (words[0] == "timeout" or words[0].isdigit()):
                words = words[1:]
            tool = max((it for it in NVIDIA_TOOLS if words[: len(it.split())] == it.split()), key=len, default="")
            if tool:
                yield tool, words[len(tool.split()) :]


@each_runbook
def test_options_of_nvidia_tools(path: Path) -> None:
    """Options, displays and properties of NVIDIA's tools, which no machine of the tests has, are documented ones."""
    for tool, words in nvidia_commands(path):
        for word, following in itertools.pairwise([*words, ""]):
            option, _, value = word.partition("=")
            assert not word.startswith("-") or option in NVIDIA_TOOLS[tool].split(), (tool, word)
            if option.startswith("--query-"):
                assert set() == {*value.split(",")} - PROPERTIES, word
            if word == "-d":
                assert set() == {*following.split(",")} - DISPLAYS, following


def test_options_in_the_table_are_used() -> None:
    """The tables have no tool, option, display or property that no runbook uses."""
    used = [it for path in RUNBOOKS.glob("*.md") for it in nvidia_commands(path)]
    words = {word.partition("=")[0] for _, given in used for word in given}
    assert {*NVIDIA_TOOLS} == {tool for tool, _ in used}
    assert set() == {option for options in NVIDIA_TOOLS.values() for option in options.split()} - words
    parts = {part for _, given in used for word in given for part in word.rpartition("=")[2].split(",")}
    assert set() == (DISPLAYS | PROPERTIES) - parts


@pytest.mark.parametrize("alert", ALERTS)
def test_a_workload_is_that_of_a_namespace(alert: str) -> None:
    """A query in a text that selects a workload selects its namespace: another may have one of the same name."""
    for text in ALERTS[alert]["annotations"].values():
        for selector in re.findall(r"\{([^{}]*workload=%q[^{}]*)\}", text):
            assert "namespace=%q" in selector


@needs_promtool
def test_two_workloads_of_one_name(tmp_path: Path) -> None:
    """Each of two alerts on workloads of one name in two namespaces names its own node."""
    series = [
        {
            "series": f'gpu_cuda_api_last_error_timestamp_seconds{{job="j",instance="{node}",pid="1",'
            f'namespace="{namespace}",'
            'pod="train-0",api_layer="driver",api="cuMemcpy",code="719",error="e"}',
            "values": f"{newest}x10",
        }
        for node, namespace, newest in (("n1", "a", 60), ("n2", "b", 120))
    ]
    expected = {"alertname": "CudaContextLost", "eval_time": "5m", "exp_alerts": []}
    tests = [{"interval": "1m", "input_series": series, "alert_rule_test": [expected]}]
    shutil.copy(ROOT / "alerts/cuda.yaml", tmp_path)
    made = {"rule_files": ["cuda.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(made))
    got = promtool("test", "rules", tmp_path / "t.yaml")
    texts = got.stdout + got.stderr
    found = re.findall(r'namespace="(\w)"[^}]*\}\s+Annotations:\{[^}]*?summary="[^"]* on (n\d)\."', texts)
    assert {("a", "n1"), ("b", "n2")} == set(found), texts
