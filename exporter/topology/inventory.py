"""The place of a node by a file of the site's own: lines of NODES NAME=VALUE …, the same file on every node.

NODES is a hostlist as Slurm writes one, or *. A later line adds to an earlier one and replaces what both have. With
device=NAME a line is of one RDMA device, for nodes with a switch for each.
"""

from __future__ import annotations

from pathlib import Path

from exporter.topology.hostlist import matches
from exporter.topology.place import MOST_DEVICES, NAMES, OF_A_DEVICE, Place, is_text, read_text


def place(path: Path, node: str) -> Place:
    """Return the place of a node by its name. Raises OSError, and ValueError with the first line that is wrong."""
    labels: dict[str, str] = {}
    devices: dict[str, dict[str, str]] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        nodes, *words = line.partition("#")[0].split() or ("",)
        if not nodes:
            continue
        try:
            found = dict(_pair(word) for word in words)
            device = found.pop("device", "")
            if not found:
                raise ValueError(f"nothing is known of {nodes[:80]!r}: a line is NODES NAME=VALUE")
            if device and not {*found} <= {*OF_A_DEVICE}:
                raise ValueError(f"a device has {', '.join(OF_A_DEVICE)} only")
            if nodes != "*" and not matches(nodes, node):
                continue
            (devices.setdefault(device, {}) if device else labels).update(found)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        if len(devices) > MOST_DEVICES:
            raise ValueError(f"line {number}: more than {MOST_DEVICES} devices")
    return Place(labels, devices)


def _pair(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    if name not in (*NAMES, "device") or not is_text(value):
        raise ValueError(f"{word[:80]!r} is not one of {', '.join(NAMES)} or device, with = and a value")
    return name, value
