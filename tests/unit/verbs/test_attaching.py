"""Attaching to RDMA providers, without any."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from exporter.bpf.library import Library
from exporter.verbs.attaching import Attaching
from exporter.verbs.tables import SET_OPS


def test_a_slow_search_delays_no_scrape() -> None:
    """What is not found is told while a file is searched, with the lock held."""
    there: Any = SimpleNamespace()
    attaching = Attaching(there, there, lambda _: None, Path("/nonexistent"), Path("/nonexistent"), there)
    library = Library((0, 0), "libmlx5.so", "libmlx5.so", 62, "", {}, frozenset({SET_OPS}))
    attaching.attach(library)
    attaching._providers[id(library)].said = "it is not known"
    said: list[str] = []
    with attaching._lock:
        thread = threading.Thread(target=lambda: said.extend(attaching.says()), daemon=True)
        thread.start()
        thread.join(2)
        assert ["it is not known"] == said
