"""Fields of a map's key or of a record as the values of labels and attributes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from exporter.custom.definition import Label
from exporter.custom.shapes import Fields, position
from exporter.model import Labels
from exporter.resolve import cgroup
from exporter.resolve.process import printable

MOST_CGROUPS = 20_000
_LOOK_AGAIN = 10.0
"""Seconds between two walks through the cgroups, which cost milliseconds for each thousand."""


class Cgroups:
    """Paths of cgroups by their ids, which are the inode numbers of their folders (bpf_get_current_cgroup_id)."""

    def __init__(self, root: Path, now: Callable[[], float] = time.monotonic) -> None:
        unified = root / "unified"
        self._root, self._now = (unified if unified.is_dir() else root), now
        self._paths: dict[int, str] = {}
        self._walked = float("-inf")

    def labels(self, identity: int, name: str) -> Labels:
        """Return the cgroup's path as the label `name`, with the container and the Slurm job that the path names.

        Where no cgroup has the id, the label's value is the id.
        """
        if identity not in self._paths and self._now() - self._walked >= _LOOK_AGAIN:
            self._walk()
        path = self._paths.get(identity)
        if path is None:
            return {name: str(identity)}
        known = cgroup.parse(path)
        found = {name: printable(os.fsencode(path)), "container_id": known.container_id}
        return {key: value for key, value in (found | {"slurm_job_id": known.slurm_job_id}).items() if value}

    def _walk(self) -> None:
        """Add the paths of today's cgroups. Removed cgroups are kept: what was counted in them is still shown."""
        self._walked = self._now()
        for folder, folders, _ in os.walk(self._root):
            if len(self._paths) >= MOST_CGROUPS:
                self._paths.clear()
            path = folder.removeprefix(str(self._root)) or "/"
            try:
                self._paths[Path(folder).stat().st_ino] = path
            except OSError:
                folders.clear()


class Decoder:
    """Makes the labels of a row from its fields; `process` returns the labels of a pid."""

    def __init__(self, process: Callable[[int], Labels], cgroups: Cgroups) -> None:
        self._process, self._cgroups = process, cgroups

    def labels(self, wanted: Sequence[Label], fields: Fields, row: Any) -> dict[str, str]:
        labels: dict[str, str] = {}
        for label in wanted:
            at = position(fields, label.field)
            value = row if at is None else row[at]
            if label.decode == "pid":
                labels.update(self._process(int(value)))
            elif label.decode == "cgroup":
                labels.update(self._cgroups.labels(int(value), label.name))
            else:
                labels[label.name] = text(label, value)
        return labels


def text(label: Label, value: Any) -> str:
    """Return a field as the value of a label, or of a span's attribute that is not a number."""
    if label.decode == "string":
        return printable(str(value).encode())
    if label.decode == "hex":
        return f"{int(value):#x}"
    if label.decode == "enum":
        return label.values.get(int(value), str(value))
    return str(value)


def number(fields: Fields, name: str, value: Any) -> int:
    """Return a number of a map's value or of a record: its field `name`, or the value itself if it has no fields."""
    at = position(fields, name)
    return int(value if at is None else value[at])


def attributes(wanted: Sequence[Label], fields: Mapping[str, str], row: Any) -> dict[str, str | int | float | bool]:
    """Return fields of a record as the attributes of a span. Numbers stay numbers."""
    plain = {label.name: row[[*fields].index(label.field)] for label in wanted}
    return {
        label.name: int(plain[label.name]) if label.decode == "number" else text(label, plain[label.name])
        for label in wanted
    }
