"""The name of the observed node, which in a pod or container differs from the exporter's host name."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

VARIABLE = "NODE_NAME"
"""Variable with Kubernetes' name of the node, which the chart sets from the pod's spec.nodeName."""


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return the variable's value, or else the host name of this process."""
    return environ.get(VARIABLE, "").strip() or platform.node()
