"""Symbols that a library lacks, and functions that a table lacks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.bpf import symbol_coverage
from exporter.bpf.elf import Elf, Function
from exporter.bpf.library import Library
from exporter.bpf.symbol_coverage import SymbolCoverage, names_like, one_family


def library(path: Path, *symbols: str) -> Library:
    functions = {symbol: Function(symbol, 64, 8, 64, 1) for symbol in symbols}
    return Library((path.stat().st_dev, path.stat().st_ino), str(path), str(path), 62, "", functions)


@pytest.fixture(scope="module")
def several(compile_library: Callable[[str, str], Path]) -> Path:
    names = ("cuFirst", "cuSecond", "cuThird", "other")
    return compile_library("libseveral.so", "\n".join(f"int {name}(void) {{ return {len(name)}; }}" for name in names))


def test_missing_symbols(several: Path) -> None:
    """Symbols of a family that the library has nothing of are not missing."""
    symbols = {"cuFirst", "cuSecond", "ncclFirst"}
    by_prefix = SymbolCoverage(symbols, None, lambda symbol: symbol[:2])
    assert 1 == by_prefix.count_missing(library(several, "cuFirst"))
    assert 0 == by_prefix.count_missing(library(several, "cuFirst", "cuSecond"))
    assert 2 == SymbolCoverage(symbols, None, one_family).count_missing(library(several, "cuFirst"))


def test_uncovered_functions(several: Path, tmp_path: Path) -> None:
    """Functions with names of the pattern that the table lacks; none without a pattern or of an unreadable file."""
    pattern = re.compile("cu[A-Z].*")
    assert ("cuSecond", "cuThird") == SymbolCoverage({"cuFirst"}, pattern, one_family).find_uncovered(library(several))
    assert () == SymbolCoverage({"cuFirst"}, None, one_family).find_uncovered(library(several))
    copy = tmp_path / "no-library"
    copy.write_bytes(b"no library")
    assert () == SymbolCoverage({"cuFirst"}, pattern, one_family).find_uncovered(library(copy))


def test_a_file_with_very_many_symbols(several: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with too many is not searched, and no more than so many names are kept of others."""
    with Elf.open(several) as elf:
        monkeypatch.setattr(symbol_coverage, "MOST_NAMES", 2)
        assert ("cuFirst", "cuSecond") == names_like(elf, "cu[A-Z].*")
        monkeypatch.setattr(symbol_coverage, "MOST_SYMBOLS", 2)
        assert () == names_like(elf, "cu[A-Z].*")
