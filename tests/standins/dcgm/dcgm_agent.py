"""Of NVIDIA's bindings: the one function that the exporter calls directly; pydcgm.py has the rest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pydcgm

ALL = tuple(range(1001, 1017))


def dcgmProfGetSupportedMetricGroups(dcgmHandle: int, gpuId: int) -> Any:
    scenario = pydcgm._scenario("dcgmProfGetSupportedMetricGroups", gpuId)
    fields = scenario["gpus"][gpuId].get("fields", ALL)
    if not fields:
        raise pydcgm.DCGMError("This request is serviced by a module of DCGM that is not currently loaded")
    groups = [SimpleNamespace(numFieldIds=len(part), fieldIds=part) for part in (fields[:5], fields[5:])]
    return SimpleNamespace(numMetricGroups=len(groups), metricGroups=groups)
