"""A node for one collector under test, with fakes in place of what the test is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from exporter.kmsg.kernel_log import KmsgSettings
from exporter.node import Node


def make_node(
    settings: Mapping[str, Any],
    processes: Any = None,
    targets: Any = None,
    spans: Any = None,
    kmsg: KmsgSettings | None = None,
    **shared: Any,
) -> Node:
    """A node on which nothing was observed yet; `shared` replaces any of its fields."""
    give = spans or (lambda span: None)
    node = Node.new(processes, targets, give, Path("/proc"), Path("/sys"), kmsg or KmsgSettings())
    return replace(node, settings=settings, **shared)
