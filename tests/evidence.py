"""Platforms that each feature has run on, by the markers of the tests: `python -m tests.evidence` prints
docs/evidence.md.

A test, or a module by `pytestmark`, carries `pytest.mark.evidence(feature="…", on="…")`, in literals: the page is made
from the source, without running or importing any test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
GPU_RESULTS = ROOT / "docs" / "gpu-results.md"

GROUNDS = {
    "not run": "Rendered, parsed or compiled, and checked in that form. Nothing has run it.",
    "stand-in": "A library, file or peer made for the tests, with the real names and formats. Kernel, probes and "
    "exporter are the real ones.",
    "real program on a stand-in": "A program as its makers release it, on a simulated driver library.",
    "real software": "The library, program or kernel as its makers release it, without the hardware behind it.",
    "real kernel, emulated hardware": "Linux' own drivers in a virtual machine, on soft-RoCE or what QEMU and OpenIPMI "
    "emulate.",
    "real hardware": "The device itself.",
}
"""Platforms that a test may run on, the weakest evidence first."""

FEATURES = {
    "CUDA memory": "memory",
    "CUDA launches": "work",
    "CUDA work by GPU": "work",
    "CUDA copies": "copies",
    "CUDA waits and spans": "waits",
    "CUDA errors": "errors",
    "CUDA functions and structures": "errors",
    "NVML readings": "GPUs",
    "NVML that hangs or crashes": "GPUs",
    "AMD GPUs": "AMD GPUs",
    "dcgm-exporter's series": "GPUs",
    "DCGM's own readings": "GPUs",
    "Xids, SXids, lost GPUs": "faults of GPUs",
    "NCCL calls and bytes": "collectives",
    "NCCL errors": "collectives",
    "NCCL hang of non-blocking calls": "collectives",
    "NCCL communicators in memory": "collectives",
    "NCCL stragglers": "collectives",
    "traces of collectives": "collectives",
    "NCCL RAS": "ranks",
    "GPUDirect Storage": "storage",
    "NIXL transfers": "KV cache transfers",
    "UCX calls": "KV cache transfers",
    "HIP calls": "AMD's HIP",
    "HIP work by GPU": "AMD's HIP",
    "functions of RDMA providers": "RDMA",
    "RDMA work and completions": "RDMA",
    "RDMA latency": "RDMA",
    "RDMA extended calls": "RDMA",
    "RDMA queue pairs and memory regions": "RDMA",
    "RDMA spans": "RDMA",
    "RDMA port counters": "RDMA ports",
    "PFC pauses": "RDMA ports",
    "faults in the kernel log": "faults of the node",
    "PCIe, memory controllers, sensors": "faults of the node",
    "management controller (IPMI)": "faults of the node",
    "SMART logs of drives": "faults of the node",
    "ends of GPU processes": "ends of GPU processes",
    "LLM requests": "LLM serving",
    "links between LLM requests and GPU work": "LLM serving",
    "custom probes": "your own",
    "GPUs of pods": "allocation of GPUs",
    "GPUs of Slurm jobs": "allocation of GPUs",
    "labels of pods": "allocation of GPUs",
    "place of a node": "allocation of GPUs",
    "finding and attaching": "itself",
    "return probes": "itself",
    "cost of probes": "itself",
    "privileges": "itself",
    "older kernels": "",
    "arm64": "",
    "Prometheus pages": "",
    "native histograms": "",
    "OTLP metrics": "",
    "OTLP spans": "",
    "TLS and users": "",
    "alert and recording rules": "",
    "the alert on RDMA loss": "",
    "queries of dashboards": "",
    "the page at /": "",
    "profiles of stacks": "who holds GPU memory",
    "wheel": "",
    "systemd": "",
    "chart and manifests": "",
}
"""Features by the row of README's table that they belong to; empty for what is not measured but done."""

GPU_CHECKS: Mapping[int, tuple[str, ...]] = {
    1: ("finding and attaching",),
    2: ("CUDA functions and structures",),
    4: ("CUDA launches", "CUDA memory", "CUDA copies"),
    5: ("cost of probes",),
    6: ("NVML readings",),
    7: ("CUDA work by GPU",),
    8: ("NCCL calls and bytes", "NCCL communicators in memory"),
}
"""Features that an `ok` of each check of `make test-gpu` shows (tests/gpu/README.md)."""

COMMANDS = {
    "tests/drivers/test_ipmi_network.py": "make test",
    "tests/backends": "make test-backends",
    "tests/dashboards": "make test-dashboards",
    "tests/drivers": "make test-drivers",
    "tests/gpu": "make test-gpu",
    "tests/providers": "make test-verbs-providers",
    "tests/kernels": "make test-kernels",
    "tests/rdma": "make test-rdma",
    "tests/real": "make test-real",
    "tests": "make test",
}
"""Command that runs a file; the first entry that the file's path begins with."""

PLATFORM = "platform and output"
HEAD = """<!-- Written by `make docs` from the markers of the tests; do not edit. -->

# Evidence

For every feature the strongest thing that it has run on, and the tests that show it. The page is made from markers in
those tests and compared with them in `make test`: it cannot claim what no test does. [Real
software](real-software.md) has the numbers of released programs.

{grounds}

"""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The platform of a file's test of a feature."""

    feature: str
    on: str
    file: str


class BadMarker(Exception):
    """A marker that cannot be listed; the text is its place and what is wrong."""


def found(root: Path = ROOT) -> list[Evidence]:
    """Every marker in the tests, and what a run on a GPU has shown. Raises BadMarker."""
    files = sorted((root / "tests").rglob("test_*.py"))
    marked = [it for file in files for it in markers(file.read_text(), file.relative_to(root).as_posix())]
    return marked + on_a_gpu((root / "docs" / GPU_RESULTS.name).read_text())


def markers(source: str, file: str) -> Iterator[Evidence]:
    """The markers in the source of one file. Raises BadMarker."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) != "pytest.mark.evidence":
            continue
        place = f"{file}:{node.lineno}"
        try:
            given = {str(it.arg): ast.literal_eval(it.value) for it in node.keywords}
        except ValueError as error:
            raise BadMarker(f"{place}: the arguments have to be literals") from error
        if node.args or set(given) != {"feature", "on"}:
            raise BadMarker(f"{place}: the arguments are feature= and on=")
        if given["feature"] not in FEATURES or given["on"] not in GROUNDS:
            raise BadMarker(f"{place}: {given} is not in FEATURES and GROUNDS of tests/evidence.py")
        yield Evidence(given["feature"], given["on"], file)


def on_a_gpu(results: str) -> list[Evidence]:
    """Return the evidence of a table of `make test-gpu`: features of checks that are ok in every row."""
    outcomes: dict[int, set[str]] = {}
    for number, outcome in re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \| [^|]+ \|$", results, re.MULTILINE):
        outcomes.setdefault(int(number), set()).add(outcome)
    passed = [number for number, seen in outcomes.items() if seen <= {"ok", "reported"} and "ok" in seen]
    features = [feature for number in sorted(passed) for feature in GPU_CHECKS.get(number, ())]
    return [Evidence(feature, "real hardware", "docs/gpu-results.md") for feature in features]


def page(evidence: list[Evidence]) -> str:
    """The page, as Markdown."""
    rows = "\n".join(f"| {it} | {text} |" for it, text in GROUNDS.items())
    lines = ["| | feature | strongest | shown by | run by |", "|---|---|---|---|---|"]
    last = None
    for feature, row in FEATURES.items():
        of_it = [it for it in evidence if it.feature == feature]
        if not of_it:
            continue
        strongest = max((it.on for it in of_it), key=[*GROUNDS].index)
        files = sorted({it.file for it in of_it if it.on == strongest})
        shown = ", ".join(f"[{Path(file).stem}]({link(file)})" for file in files)
        commands = ", ".join(sorted({f"`{command(file)}`" for file in files}))
        title = row or PLATFORM
        lines.append(f"| {'' if title == last else title} | {feature} | {strongest} | {shown} | {commands} |")
        last = title
    return HEAD.format(grounds=f"| it ran on | which is |\n|---|---|\n{rows}") + "\n".join(lines) + "\n"


def link(file: str) -> str:
    """The file as docs/evidence.md links to it."""
    return file.removeprefix("docs/") if file.startswith("docs/") else f"../{file}"


def command(file: str) -> str:
    """Return the command that runs the file."""
    if file == "docs/gpu-results.md":
        return COMMANDS["tests/gpu"]
    return next(it for beginning, it in COMMANDS.items() if file.startswith(beginning))


if __name__ == "__main__":
    print(page(found()), end="")
