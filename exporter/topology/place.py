"""Labels of a node's place in the data center, and the checks shared by all sources of places."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from exporter.model import Labels

NAMES = ("region", "zone", "rack", "leaf", "spine", "core", "block", "nvlink_domain")
"""Labels of a place, of switches the nearest to the node first."""
OF_A_DEVICE = ("leaf", "spine", "core")
"""Labels that each network device may have on its own, where each is connected to a switch of its own."""
MOST_DEVICES = 64
MOST_BYTES = 4 << 20
"""A file of 16,384 nodes, one a line, has 2 MiB."""
_LONGEST = 128


@dataclass(frozen=True, slots=True)
class Place:
    """Location of a node: labels of NAMES, and labels of OF_A_DEVICE by RDMA device."""

    labels: Labels = field(default_factory=dict)
    devices: Mapping[str, Labels] = field(default_factory=dict)

    def over(self, other: Place) -> Place:
        """Return this place, completed by another one."""
        devices = {name: {**other.devices.get(name, {}), **self.devices.get(name, {})} for name in self.devices}
        return Place({**other.labels, **self.labels}, {**other.devices, **devices})


def is_text(value: object) -> bool:
    """Return whether a value can be a label's: printable text of 1 to 128 characters."""
    return isinstance(value, str) and 0 < len(value) <= _LONGEST and value.isprintable()


def read_text(path: Path) -> str:
    """Return the text of a regular file. Raises OSError, and ValueError for other files, large ones, or no UTF-8."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError("not a regular file")
        text = bytearray()
        while part := os.read(file, 1 << 16):
            text += part
            if len(text) > MOST_BYTES:
                raise ValueError(f"larger than {MOST_BYTES >> 20} MiB")
    finally:
        os.close(file)
    return text.decode("utf-8-sig")
