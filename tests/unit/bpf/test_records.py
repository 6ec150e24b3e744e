"""The structures of the BPF objects that are declared in Python have the fields of the objects' own types."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from exporter.bpf import object_path
from exporter.bpf.btf import Btf
from exporter.collectors import exits
from exporter.cuda import records as cuda
from exporter.nccl import records as nccl
from exporter.serving import answer as serving
from exporter.stacks import record as stacks
from exporter.verbs import records as verbs

MODULES = {"cuda": cuda, "nccl": nccl, "verbs": verbs, "exits": exits, "serving": serving, "stacks": stacks}
DECLARED = [
    (name, declared)
    for name, module in MODULES.items()
    for declared in vars(module).values()
    if inspect.isclass(declared) and (declared.__doc__ or "").startswith("struct ")
]


def test_some_are_declared() -> None:
    """Each of the modules declares one at least."""
    assert MODULES.keys() == {name for name, _ in DECLARED}


@pytest.mark.parametrize(("name", "declared"), DECLARED)
def test_fields_exist(name: str, declared: Any) -> None:
    """Every field that Python declares is one of the structure's."""
    with object_path(name).open("rb") as file:
        types = Btf(ELFFile(file).get_section_by_name(".BTF").data())
    struct = re.match(r"struct (\w+)", declared.__doc__)
    fields = {field[0] for field in types.struct(struct[1])._fields_}
    properties = {key for key, value in vars(declared).items() if isinstance(value, property)}
    assert declared.__annotations__.keys() | properties <= fields
