"""Label values for the enums of bpf/cuda/functions.h: the part of each constant after the enum's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class Types(Protocol):
    """The part of exporter.bpf.btf.Btf that is used here."""

    def enum(self, name: str) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class Names:
    """Label values by number; "none" is empty: a label that is left out."""

    layer: Mapping[int, str]
    memory: Mapping[int, str]
    direction: Mapping[int, str]
    host: Mapping[int, str]

    @classmethod
    def of(cls, types: Types) -> Names:
        return cls(*(_names(types, enum) for enum in ("layer", "memory", "direction", "host")))


def _names(types: Types, enum: str) -> dict[int, str]:
    names = {number: constant.removeprefix(f"{enum}_") for constant, number in types.enum(enum).items()}
    return {number: "" if name == "none" else name for number, name in names.items()}
