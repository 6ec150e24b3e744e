"""The child process that reads NVML, as its parent starts it."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict
from pathlib import Path

from exporter.child import ChildProcess
from exporter.nvml.snapshot import Options


class Child(ChildProcess):
    """Starts the worker (exporter/nvml/worker.py)."""

    def __init__(self, options: Options) -> None:
        super().__init__("exporter.nvml.worker", json.dumps(asdict(options)), _places())


def _places() -> list[Path]:
    """Where nvidia-ml-py is; looking at no other packages saves the child memory."""
    found = importlib.util.find_spec("pynvml")
    return [Path(found.origin).parent] if found is not None and found.origin else []
