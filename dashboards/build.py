"""Writes dashboards/<stem>.json from every dashboards/src/<stem>.py: `python -m dashboards.build`."""

from __future__ import annotations

import importlib
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

HERE = Path(__file__).parent


def stems() -> list[str]:
    """The dashboards there are, by file stem."""
    return sorted(path.stem for path in (HERE / "src").glob("*.py"))


def render(stem: str) -> str:
    """The JSON text of one dashboard, as it is committed."""
    module = importlib.import_module(f"dashboards.src.{stem}")
    return JSONEncoder(sort_keys=True, indent=2).encode(module.dashboard()) + "\n"


def main() -> None:
    for stem in stems():
        (HERE / f"{stem}.json").write_text(render(stem))


if __name__ == "__main__":
    main()
