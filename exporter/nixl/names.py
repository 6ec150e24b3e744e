"""Names of NIXL's functions, from their symbols in C++."""

from __future__ import annotations

import re

_AGENT = re.compile(r"_ZNK?9nixlAgent\d+([a-z]+(?:[A-Z][a-z]+)*(?:MD)?)(?=E)")
_ENGINE = re.compile(r"_ZNK\d+nixl(\w+?)Engine8postXferE")
_BACKENDS = {"DOCA": "GPUNETIO"}
"""Backends with a class that is not named as their plugin is."""


def function(symbol: str) -> str:
    """Return the name of a function of nixlAgent, without class and arguments; empty for another symbol."""
    found = _AGENT.match(symbol)
    return found[1] if found else ""


def backend(symbol: str) -> str:
    """Return the backend of a postXfer, by the name of its plugin (UCX, GDS_MT); empty for another symbol."""
    found = _ENGINE.match(symbol)
    if not found:
        return ""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found[1]).upper()
    return _BACKENDS.get(name, name)
