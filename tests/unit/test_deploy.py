"""What deployments grant is what the exporter keeps."""

from __future__ import annotations

import re
from pathlib import Path

from exporter.bpf import privileges

ROOT = Path(__file__).parents[2]
KEPT = {*privileges.OBSERVING, privileges.READING_THE_LOG}


def test_the_image_names_the_capabilities_it_needs() -> None:
    """The image's label lists those that are kept on a current kernel, and no others."""
    label = re.search(r'accel-exporter\.capabilities="([^"]*)"', (ROOT / "Dockerfile").read_text())
    assert label
    assert KEPT == {f"CAP_{name}" for name in label[1].split()}


def test_the_service_grants_the_capabilities_it_needs() -> None:
    """The unit's ambient and bounding sets are those that are kept on a current kernel."""
    unit = (ROOT / "deploy" / "systemd" / "accel-exporter.service").read_text()
    sets = dict(re.findall(r"^(AmbientCapabilities|CapabilityBoundingSet)=(.*)$", unit, re.MULTILINE))
    assert {"AmbientCapabilities": KEPT, "CapabilityBoundingSet": KEPT} == {
        name: set(granted.split()) for name, granted in sets.items()
    }
