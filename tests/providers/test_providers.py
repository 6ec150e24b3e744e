"""Every function found in a provider of Debian is the one in its static library, and all of them are found."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from exporter.bpf.elf import Elf, Function
from exporter.verbs.code import live, ops, providers, relocations, tables
from exporter.verbs.code.eh_frame import Frames
from exporter.verbs.code.providers import ProviderFunctions, ProviderNames
from tests import packages
from tests.providers import archives
from tests.providers.archives import Archive, Compiled

pytestmark = pytest.mark.evidence(feature="functions of RDMA providers", on="real software")

SUITES = os.environ.get("SUITES", "bookworm trixie").split()
CASES = [(suite, architecture) for suite in SUITES for architecture in ("amd64", "arm64")]
PACKAGES = ("libibverbs1", "ibverbs-providers", "libibverbs-dev")
CHOSEN_AT_RUN_TIME = {"hns"}
MANY = 14
_LIBIBVERBS = re.compile(r"ibv_\w+$")


@dataclass
class Release:
    libraries: Path
    machine: int
    found: dict[str, tuple[Path, ProviderFunctions]]
    """By the device: mlx5."""
    archives: dict[str, Archive]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    suite, architecture = request.param
    try:
        root = packages.download(suite, architecture, PACKAGES, tmp_path_factory.mktemp(f"{suite}-{architecture}"))
    except packages.NotAvailable as error:
        if os.environ.get("REQUIRE_PACKAGES") == "1":
            pytest.fail(f"REQUIRE_PACKAGES=1, but {error}")
        pytest.skip(str(error))
    libraries = next((root / "usr/lib").glob("*-linux-gnu"))
    verbs_path = (libraries / "libibverbs.so.1").resolve()
    found, machine = {}, 0
    for link in sorted((libraries / "libibverbs").glob("lib*-rdmav*.so")):
        path = link.resolve()
        with Elf.open(path) as provider, Elf.open(verbs_path) as verbs:
            names = ProviderNames(path.name, verbs_path.name)
            found[_device(link)] = path, providers.find(provider, verbs, names)
            machine = provider.machine
    devices = {_device(path): path for path in libraries.glob("lib*.a")}
    yield Release(libraries, machine, found, {name: archives.read(devices[name], machine) for name in found})


def _device(path: Path) -> str:
    return path.name.removeprefix("lib").partition(".")[0].partition("-")[0]


def test_every_provider_is_understood(release: Release) -> None:
    """Of all providers only those that choose their table when they run are refused anything they implement."""
    assert len(release.found) > MANY
    refused = {
        name
        for name, (_, found) in release.found.items()
        if found.incomplete or any("of another library" not in why for why in found.refused.values())
    }
    assert refused == CHOSEN_AT_RUN_TIME


def test_every_function_is_the_one_of_the_static_library(release: Release) -> None:
    """The code found is, of all functions of the static library, that of one in its tables for the operation."""
    wrong, compared, twins = [], 0, 0
    for name, (path, found) in release.found.items():
        archive = release.archives[name]
        size = _table_size(release)
        with Elf.open(path) as elf:
            calls = _calls(elf)
            for op, functions in found.functions.items():
                expected = _expected(archive, size, op)
                for function in functions:
                    compared += 1
                    best = _most_alike(elf, function, archive, calls)
                    twins += len(best) > 1
                    if best.isdisjoint(expected):
                        wrong.append((name, op, hex(function.offset), best, expected))
    assert not wrong
    assert compared > 100
    assert twins < compared / 5  # as short functions of other operations may be the same to the byte


def test_every_version_is_found(release: Release) -> None:
    """There are as many functions for an operation as the tables of the static library have."""
    size = _table_size(release)
    counts = {}
    for name, (_, found) in release.found.items():
        if name not in CHOSEN_AT_RUN_TIME:
            for op in providers.OPS:
                own = {f for f in _expected(release.archives[name], size, op) if f in release.archives[name].functions}
                counts[name, op] = len(found.functions.get(op, ())), len(own)
    assert {} == {where: pair for where, pair in counts.items() if pair[0] != pair[1]}


def test_tables_chosen_at_run_time_are_believed(release: Release) -> None:
    """Of these providers too a table in the file has the three functions next to each other that contexts point to."""
    for name in CHOSEN_AT_RUN_TIME & release.found.keys():
        path, _ = release.found[name]
        with Elf.open(path) as elf:
            pointers, calls = relocations.read(elf).pointers, _calls(elf)
            accepted = []
            for word in pointers:
                functions = {op: _start(elf, pointers.get(word + 8 * i, 0)) for i, op in enumerate(live.POINTERS)}
                if all(
                    it
                    and any(found.endswith(f"_{op}") for found in _most_alike(elf, it, release.archives[name], calls))
                    for op, it in functions.items()
                ):
                    offsets = {op: it.offset for op, it in functions.items() if it}
                    accepted.append(live.confirm(elf, offsets).functions.keys())
            assert [set(live.POINTERS)] == accepted


def _start(elf: Elf, address: int) -> Function | None:
    """The function that begins at an address."""
    code = any(0 <= address - part.address < part.size for part in elf.code_parts)
    size = Frames(elf).size(address) if code else 0
    return Function("", elf.offset(address), size, address, 0) if size else None


def test_calibration_and_release_agree(release: Release) -> None:
    """The layout read from the code of libibverbs is that in the sources of its release, in everything."""
    path = (release.libraries / "libibverbs.so.1").resolve()
    with Elf.open(path) as verbs:
        calibrated = ops.calibrate(verbs)
    by_release = ops.of_release(ops.release(path.name))
    assert by_release
    assert by_release.agrees(calibrated)
    assert by_release.size == calibrated.size
    assert by_release == ops.complete(calibrated)


def _table_size(release: Release) -> int:
    layout = ops.of_release(ops.release((release.libraries / "libibverbs.so.1").resolve().name))
    assert layout
    return layout.size


def _expected(archive: Archive, size: int, op: str) -> set[str]:
    """The functions that tables of this size have in the place of an operation."""
    layout = next(layout for number in range(17, 66) if (layout := ops.of_release(number)) and layout.size == size)
    offset = layout.offsets[op]
    return {table[offset] for name, table in archive.tables.items() if archive.sizes[name] == size and offset in table}


def _most_alike(elf: Elf, function: Function, archive: Archive, calls: Mapping[str, Sequence[int]]) -> set[str]:
    """The functions of the archive that are most like this one: in their code, and in what they call."""
    code = elf.code(function, 1 << 20)
    if archives.jump_at(elf.machine, code) >= 0:
        start = function.address + archives.jump(elf.machine, code)
        target = Function("", elf.offset(start), Frames(elf).size(start), start, 0)
        there = _most_alike(elf, target, archive, calls)
        return {name for name, compiled in archive.functions.items() if any(c.jumps_to in there for c in compiled)}
    shape, end = archives.shape(elf.machine, code), function.address + function.size
    called = {name for name, sites in calls.items() if any(function.address <= site < end for site in sites)}
    like = {
        name: max(_likeness(shape, code, called, c) for c in compiled) for name, compiled in archive.functions.items()
    }
    best = max(like.values())
    return {name for name, likeness in like.items() if likeness == best}


def _likeness(shape: Counter[tuple[str, ...]], code: bytes, called: set[str], compiled: Compiled) -> float:
    """Return the likeness of code and a compilation: inlining may differ, which changes code more than its calls."""
    shared, likeness = _shared(called, compiled.calls), archives.likeness(shape, compiled.shape)
    if likeness == 1.0 and archives.same(compiled, code):
        return 2.0 * (shared == 1.0)
    return likeness + shared / 2


def _shared(called: set[str], others: set[str]) -> float:
    """Return the share, from 0 to 1, of the libibverbs functions called by either function that both call."""
    theirs = {found[0] for name in others if (found := _LIBIBVERBS.search(name))}
    ours = {name for name in called if _LIBIBVERBS.match(name)}
    return len(ours & theirs) / len(ours | theirs) if ours | theirs else 1.0


def _calls(elf: Elf) -> dict[str, list[int]]:
    """Return the addresses of calls to each symbol of libibverbs."""
    slots = defaultdict(set)
    for address, name in relocations.read(elf).imported.items():
        slots[name].add(address)
    return {name: list(tables.calls(elf, where)) for name, where in slots.items() if _LIBIBVERBS.match(name)}
