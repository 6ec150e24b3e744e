"""Checks the words of identifiers, docstrings, comments and messages: `python -m tests.check_words [ROOT]`.

Covers the folders of DONE, a list that only grows. Prints one line for each word, and exits with 1 if there is one.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

DONE = (
    "exporter",
    "bpf",
    "tests/bpf",
    "tests/e2e/backend.py",
    "tests/e2e/browser.py",
    "tests/e2e/fault_cases.py",
    "tests/e2e/landing_node.py",
    "tests/e2e/paced_job.py",
    "tests/e2e/test_allocation.py",
    "tests/e2e/test_cli.py",
    "tests/e2e/test_custom.py",
    "tests/e2e/test_dcgm.py",
    "tests/e2e/test_demo.py",
    "tests/e2e/test_dropin.py",
    "tests/e2e/test_infiniband.py",
    "tests/e2e/test_kernel_log.py",
    "tests/e2e/test_landing.py",
    "tests/e2e/test_lifecycle.py",
    "tests/e2e/test_log.py",
    "tests/e2e/test_nccl_traces.py",
    "tests/e2e/test_new_probe.py",
    "tests/e2e/test_nvml.py",
    "tests/e2e/test_open_files.py",
    "tests/e2e/test_operator.py",
    "tests/e2e/test_otlp.py",
    "tests/e2e/test_out_otlp.py",
    "tests/e2e/test_out_prometheus.py",
    "tests/e2e/test_out_tls.py",
    "tests/e2e/test_package.py",
    "tests/e2e/test_ras.py",
    "tests/e2e/test_rdma_alerts.py",
    "tests/e2e/test_rdma_links.py",
    "tests/e2e/test_short_processes.py",
    "tests/e2e/test_xid.py",
    "tests/gpu",
    "tests/providers",
    "tests/rdma",
    "tests/unit/background",
    "tests/unit/bpf/apart_calls.py",
    "tests/unit/bpf/fuse.py",
    "tests/unit/bpf/test_apart.py",
    "tests/unit/bpf/test_btf.py",
    "tests/unit/bpf/test_elf.py",
    "tests/unit/bpf/test_elf_file.py",
    "tests/unit/bpf/test_events.py",
    "tests/unit/bpf/test_hooks.py",
    "tests/unit/bpf/test_memory.py",
    "tests/unit/bpf/test_native.py",
    "tests/unit/bpf/test_percpu.py",
    "tests/unit/bpf/test_placement.py",
    "tests/unit/bpf/test_placement_real.py",
    "tests/unit/bpf/test_safety.py",
    "tests/unit/bpf/test_shares.py",
    "tests/unit/bpf/test_sizing.py",
    "tests/unit/bpf/test_sources.py",
    "tests/unit/bpf/test_stacks.py",
    "tests/unit/bpf/test_trial_program.py",
    "tests/unit/bpf/test_usdt.py",
    "tests/unit/collectors",
    "tests/unit/cuda",
    "tests/unit/custom",
    "tests/unit/dcgm",
    "tests/unit/faults",
    "tests/unit/infiniband",
    "tests/unit/kmsg",
    "tests/unit/kubernetes",
    "tests/unit/nccl",
    "tests/unit/nvml",
    "tests/unit/ras",
    "tests/unit/resolve",
    "tests/unit/test_alerts.py",
    "tests/unit/test_alerts_restart.py",
    "tests/unit/test_bench_table.py",
    "tests/unit/test_call_collector.py",
    "tests/unit/test_cgroup.py",
    "tests/unit/test_dashboards.py",
    "tests/unit/test_dashboards_draw.py",
    "tests/unit/test_demo_summary.py",
    "tests/unit/test_deploy.py",
    "tests/unit/test_descriptors.py",
    "tests/unit/test_discover.py",
    "tests/unit/test_docs.py",
    "tests/unit/test_doctor.py",
    "tests/unit/test_history.py",
    "tests/unit/test_kubernetes.py",
    "tests/unit/test_evidence.py",
    "tests/unit/test_log.py",
    "tests/unit/test_log_uncaught.py",
    "tests/unit/test_log_writer.py",
    "tests/unit/test_observer.py",
    "tests/unit/test_option_sources.py",
    "tests/unit/test_options.py",
    "tests/unit/test_privileges.py",
    "tests/unit/test_process.py",
    "tests/unit/test_push.py",
    "tests/unit/test_resource.py",
    "tests/unit/test_sampling.py",
    "tests/unit/test_scrape.py",
    "tests/unit/test_series.py",
    "tests/unit/test_server.py",
    "tests/unit/test_site.py",
    "tests/unit/test_starts.py",
    "tests/unit/test_systemd.py",
    "tests/unit/verbs",
    "tests/unit/views",
    "tests/unit/web",
    "tools",
)
PUBLISHED = re.compile(r"gpu_recovery_asked|\"says\"")
"""Label values and keys of JSON that users rely on."""
_SPEECH = {"tell", "tells", "telling", "told", "say", "says", "saying", "said", "ask", "asks", "asking", "asked"}
IN_TEXT = _SPEECH | {"whose", "whom", "anew", "dear", "well", "unwell"}
IN_NAMES = _SPEECH | {"gone"}
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_TEXTS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def findings(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and a sentence for each forbidden word in Python source."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            for word in _words(token.string) & IN_NAMES:
                yield token.start[0], f"identifier {token.string!r} has {word!r}: name the thing in the field's words"
        elif token.type in _TEXTS:
            for offset, line in enumerate(token.string.splitlines()):
                for word in sorted(_words(PUBLISHED.sub("", line)) & IN_TEXT):
                    yield token.start[0] + offset, f"text has {word!r}: programs and devices report, request, return"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg) and node.arg == "it":
            yield node.lineno, "parameter 'it': name the thing"


def findings_in_c(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and a sentence for each forbidden word in C, names and comments alike."""
    for number, line in enumerate(source.splitlines(), 1):
        for word in sorted(_words(line) & IN_TEXT):
            yield number, f"C has {word!r}: name the thing in the field's words"


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORDS.findall(text)}


_CHECKS = {".py": findings, ".c": findings_in_c, ".h": findings_in_c}


def _sources(path: Path) -> Iterable[Path]:
    return (it for it in path.rglob("*") if it.suffix in _CHECKS) if path.is_dir() else (path,)


def main(root: Path) -> int:
    """Prints the findings under `root`; returns the exit status."""
    paths = [path for name in DONE for path in sorted(_sources(root / name))]
    found = [(path, *finding) for path in paths for finding in _CHECKS[path.suffix](path.read_text())]
    for path, line, text in found:
        print(f"{path.relative_to(root)}:{line}: {text}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1])))
