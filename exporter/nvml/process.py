"""Start of the child process that calls NVML."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict
from pathlib import Path

from exporter.background.child import ChildProcess
from exporter.nvml.snapshot import ChildOptions


class NvmlChild(ChildProcess):
    """The child process (exporter/nvml/child/worker.py) as the parent controls it."""

    def __init__(self, options: ChildOptions) -> None:
        super().__init__("exporter.nvml.child.worker", json.dumps(asdict(options)), _nvidia_ml_py())


def _nvidia_ml_py() -> list[Path]:
    """Returns the folder of nvidia-ml-py; without other packages on its path the child needs less memory."""
    found = importlib.util.find_spec("pynvml")
    return [Path(found.origin).parent] if found is not None and found.origin else []
