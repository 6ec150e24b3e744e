"""The name of the observed node, which in a pod or container differs from the exporter's host name."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

VARIABLE = "NODE_NAME"
"""Variable with Kubernetes' name of the node, which the chart sets from the pod's spec.nodeName."""


def kubernetes_node(environ: Mapping[str, str] = os.environ) -> str:
    """Return the variable's value; empty if it is not set or not UTF-8."""
    name = environ.get(VARIABLE, "").strip()
    return name if name.isprintable() else ""


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of the Kubernetes node, or else the host name of this process."""
    return kubernetes_node(environ) or platform.node()
