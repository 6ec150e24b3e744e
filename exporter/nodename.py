"""The name of the node that is observed, which in a pod or container is not the host name of the exporter itself."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

VARIABLE = "NODE_NAME"
"""Kubernetes' name of the node, which the chart takes from the pod's spec.nodeName."""


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """The variable's value, else the host name as this process sees it."""
    return environ.get(VARIABLE, "").strip() or platform.node()
