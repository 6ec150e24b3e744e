"""Functions of a file that are the calls of an object, and calls that are not certain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from exporter.bpf.elf import Elf
from exporter.verbs.code import extended

START, COMPLETE, ABORT, SEND = "wr_start", "wr_complete", "wr_abort", "wr_send"
CALLS = (START, COMPLETE, ABORT, SEND)
SOURCE = "".join(f"int {call}(int a) {{ return a * {number}; }}\n" for number, call in enumerate(CALLS, 5))


@pytest.fixture(scope="module")
def library(compile_library: Callable[..., Path]) -> Path:
    return compile_library("libextended.so", SOURCE)


def offsets_of(path: Path) -> dict[str, int]:
    with Elf.open(path) as elf:
        return {call: it.offset for call, it in elf.functions(CALLS).items()}


def test_functions_of_the_file(library: Path) -> None:
    """Each is the function of its symbol, with its size."""
    with Elf.open(library) as elf:
        found = extended.confirm(elf, offsets_of(library))
        expected = {call: (it.offset, it.size) for call, it in elf.functions(CALLS).items()}
    assert expected == {call: (it[0].offset, it[0].size) for call, it in found.functions.items()}
    assert {} == found.refused


@pytest.mark.parametrize(("moved", "why"), [(1, "no function begins"), (1 << 40, "no function begins")])
def test_what_begins_no_function(library: Path, moved: int, why: str) -> None:
    """An address in the middle of a function is refused, and the others are taken."""
    offsets = offsets_of(library)
    with Elf.open(library) as elf:
        found = extended.confirm(elf, offsets | {SEND: offsets[SEND] + moved})
    assert {START, COMPLETE, ABORT} == found.functions.keys()
    assert why in found.refused[SEND]


def test_one_function_for_two_calls(library: Path) -> None:
    """Two calls at the same function are ambiguous: neither is used."""
    offsets = offsets_of(library)
    with Elf.open(library) as elf:
        found = extended.confirm(elf, offsets | {"wr_send_imm": offsets[SEND]})
    assert {START, COMPLETE, ABORT} == found.functions.keys()
    assert {SEND, "wr_send_imm"} == found.refused.keys()


def test_plain_objects(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the calls that every such object has there are none; what is not probed is not searched."""
    searched: dict[str, int] = {}
    missing = ""

    def offsets_in(_: object, pid: int, addresses: dict[str, int], proc: Path) -> dict[str, int]:
        searched.update(addresses)
        return {call: 1 for call in addresses if call != missing}

    monkeypatch.setattr("exporter.verbs.code.live.offsets_in", offsets_in)
    addresses = dict.fromkeys((*CALLS, "wr_set_ud_addr"), 4096) | {"wr_send_inv": 0}
    for without, expected in (("", {*CALLS}), (SEND, {START, COMPLETE, ABORT}), (START, set()), (ABORT, set())):
        missing = without
        assert expected == extended.offsets_in(cast(Any, library), 1, addresses).keys()
    assert {*CALLS} == searched.keys()
