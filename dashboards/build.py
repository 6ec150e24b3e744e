"""Writes dashboards/<stem>.json from dashboards/src/<stem>.py, and those of profiles: `python -m dashboards.build`."""

from __future__ import annotations

import importlib
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.profiles import boards

HERE = Path(__file__).parent


def stems() -> list[str]:
    """The dashboards there are, by file stem."""
    return sorted(path.stem for path in (HERE / "src").glob("*.py"))


def render(stem: str) -> str:
    """The JSON text of one dashboard, as it is committed."""
    module = importlib.import_module(f"dashboards.src.{stem}")
    return encode(module.dashboard())


def encode(board: Dashboard) -> str:
    """The JSON text of a dashboard."""
    return JSONEncoder(sort_keys=True, indent=2).encode(board) + "\n"


def main() -> None:
    for stem in stems():
        (HERE / f"{stem}.json").write_text(render(stem))
    for stem, board in boards.boards().items():
        (HERE / "profiles" / f"{stem}.json").write_text(encode(board))


if __name__ == "__main__":
    main()
