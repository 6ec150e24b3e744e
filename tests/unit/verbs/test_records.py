"""Fields that are read of the kernel's structures are those that C declares."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest
from elftools.elf.elffile import ELFFile

from exporter.bpf import object_path
from exporter.bpf.btf import Btf
from exporter.verbs import records

RECORDS = [value for _, value in inspect.getmembers(records, inspect.isclass) if value.__module__ == records.__name__]


@pytest.fixture(scope="module")
def types() -> Btf:
    with object_path("verbs").open("rb") as file:
        return Btf(ELFFile(file).get_section_by_name(".BTF").data())


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_fields_are_declared_in_c(types: Btf, record: type) -> None:
    """Every field of a record is a member of the struct that its docstring names."""
    assert record.__doc__
    struct = record.__doc__.removeprefix("struct ").split(":")[0].rstrip(".")
    properties = {name for name, value in vars(record).items() if isinstance(value, property)}
    declared = {name for name, *_ in types.struct(struct)._fields_}
    fields = get_type_hints(record).keys() | properties

    assert fields
    assert set() == fields - declared
