"""Sentences for people on which functions of an RDMA provider were found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from exporter.bpf.elf import Elf, ElfError
from exporter.verbs.code.providers import OPS, ProviderFunctions, ProviderNames, find

_FOLDERS = ("usr/lib/*-linux-gnu", "usr/lib64", "usr/lib")
_MOST = 64
_DATA_PATH = ("post_send", "post_recv", "poll_cq")
_DO = "they are learnt from a running job when it next makes a queue pair or registers memory"


def describe(library: str, found: ProviderFunctions) -> tuple[bool, str, str]:
    """Return whether the data path of a provider is found whole, a sentence, and what to do if it is not whole."""
    missing = [op for op in _DATA_PATH if op not in found.functions and op in found.refused]
    versions = {op: len(found.functions[op]) for op in OPS if op in found.functions}
    listed = ", ".join(f"{op} ({count} versions)" if count > 1 else op for op, count in versions.items())
    parts = [f"{library}: found {listed}" if listed else f"{library}: no function is certain"]
    parts += [refusals(found.refused)] if found.refused else []
    if found.incomplete:
        parts.append(_clause(found.incomplete))
    whole = not missing and not found.incomplete
    return whole, "; ".join(parts), "" if whole else _DO


def refusals(refused: Mapping[str, str]) -> str:
    """Return which functions are not certain, and why, grouped by reason."""
    return "; ".join(f"not {', '.join(which)}: {_clause(why)}" for why, which in _by_reason(refused).items())


def _by_reason(refused: Mapping[str, str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = defaultdict(list)
    for op, why in refused.items():
        grouped[why].append(op)
    return grouped


def _clause(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].removesuffix(".")


def installed(root: Path) -> Iterator[tuple[str, ProviderFunctions | str]]:
    """Yield the providers of a file system's rdma-core, each file once: its name, and its functions or why none."""
    verbs = next((path for folder in _FOLDERS for path in sorted(root.glob(f"{folder}/libibverbs.so.1"))), None)
    seen: set[str] = set()
    for folder in _FOLDERS:
        for plugin in sorted(root.glob(f"{folder}/libibverbs/lib*.so"))[:_MOST]:
            path = plugin.resolve()
            if path.name not in seen:
                seen.add(path.name)
                yield path.name, _found(path, verbs)


def _found(path: Path, verbs: Path | None) -> ProviderFunctions | str:
    try:
        with Elf.open(path) as provider, ExitStack() as stack:
            library = stack.enter_context(Elf.open(verbs)) if verbs else None
            return find(provider, library, ProviderNames(path.name, verbs.resolve().name if verbs else ""))
    except (ElfError, OSError) as error:
        return str(error)
