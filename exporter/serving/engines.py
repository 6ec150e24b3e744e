"""Inference engine of a process, by the words of its command line."""

from __future__ import annotations

import re
from pathlib import Path

from exporter import process_memory

UNKNOWN = "unknown"
_BYTES = 4096
_ENGINES = (
    ("dynamo", re.compile(rb"(?:^|[/\s])dynamo(?:[.\-_\s/]|$)")),
    ("sglang", re.compile(rb"(?:^|[/\s.])(?:sglang|sgl-|sgl_)")),
    ("tensorrt-llm", re.compile(rb"(?:^|[/\s.])(?:trtllm|tensorrt_llm)")),
    ("triton", re.compile(rb"(?:^|[/\s])tritonserver")),
    ("llama.cpp", re.compile(rb"(?:^|[/\s])(?:llama-server|llama\.cpp|llama_cpp)")),
    ("tgi", re.compile(rb"(?:^|[/\s])(?:text-generation-|text_generation_server)")),
    ("ollama", re.compile(rb"(?:^|[/\s])ollama(?:\s|$)")),
    ("vllm", re.compile(rb"(?:^|[/\s.])vllm(?:[.\s/:]|$)", re.IGNORECASE)),
)
"""The label `engine`. Those that run others come first."""


def engine(proc: Path, pid: int) -> str:
    """Return the engine of a process, or "unknown". Words of arguments such as a model's path may mislead it."""
    try:
        words = process_memory.read(proc, pid, "cmdline", _BYTES).split(b"\0")
    except OSError:
        return UNKNOWN
    command = b" ".join(word for word in words[:4] if not word.startswith(b"--"))
    return next((name for name, pattern in _ENGINES if pattern.search(command)), UNKNOWN)
