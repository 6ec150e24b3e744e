"""Compiled objects that are missing, or of another version than the Python that reads them."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NoReturn, TypeVar

import exporter
from exporter.bpf.native import BpfError

V = TypeVar("V")


class StaleObject(BpfError, KeyError):
    """The object lacks something by name; the message has what to do."""


class Named(dict[str, V]):
    """Things of an object by name. A name that is not there raises StaleObject, since Python looks up no others."""

    def __init__(self, owner: str, kind: str) -> None:
        self._object, self._kind = owner, kind

    def __missing__(self, name: str) -> NoReturn:
        raise stale(self._object, f"{self._kind} {name}")


def stale(owner: str, missing: str) -> StaleObject:
    """Return the error for an object without this."""
    return StaleObject(
        errno.EINVAL, f"{owner} is of another version than the exporter: it has no {missing}; {remedy()}"
    )


def remedy() -> str:
    """Return how to get the objects of this version: compiled in a checkout, installed elsewhere."""
    sources = Path(exporter.__file__).parents[1] / "bpf" / "Makefile"
    return "run `make objects`" if sources.is_file() else "install accel-exporter again"
