"""The dashboards of profiles of stacks: as their source builds them, and of profiles that the exporter serves."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from multidict import MultiDict
from yarl import URL

from dashboards.build import HERE, encode
from dashboards.profiles.boards import PROFILES, boards
from exporter.stack_profiles.model import ALLOC, INUSE, LAUNCHES
from exporter.views.stack_profiles.rows import TreeRow
from exporter.web import stack_profiles
from exporter.web.profile_query import ProfileQuery
from tests import made_up_profiles as made_up

TYPES = {"gpu_inuse": INUSE, "gpu_alloc": ALLOC, "gpu_launches": LAUNCHES}


@pytest.fixture(params=["pyroscope", "infinity"])
def board(request: pytest.FixtureRequest) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((HERE / "profiles" / f"{request.param}.json").read_text())
    return read


def test_current() -> None:
    """The committed files are what the source builds; `python -m dashboards.build` writes them."""
    assert {name: encode(built) for name, built in boards().items()} == {
        path.stem: path.read_text() for path in (HERE / "profiles").glob("*.json")
    }


def test_panels_are_flame_graphs(board: dict[str, Any]) -> None:
    """Each has a title, a description, a unit and one query of the data source that is chosen at the top."""
    source = next(each["name"] for each in board["templating"]["list"] if each["type"] == "datasource")
    for panel in board["panels"]:
        assert "flamegraph" == panel["type"]
        assert panel["title"] and panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"] in ("bytes", "short")
        assert f"${{{source}}}" == panel["datasource"]["uid"]
        assert 1 == len(panel["targets"])


def test_pyroscope_gets_these_types() -> None:
    """A type of profile is the name of a path, a value that is served there, and the period of the profiles."""
    source = made_up.Source()
    made = {"gpu_inuse": source.inuse(), "gpu_alloc": source.alloc(), "gpu_launches": source.launches()}
    for _, kind, _, _ in PROFILES:
        name, value, unit, period, period_unit = kind.split(":")
        assert f"/debug/pprof/{name}" in stack_profiles.PATHS
        assert (value, unit) in TYPES[name]
        assert (period, period_unit) == made[name].period_type


def test_infinity_requests_rows() -> None:
    """The addresses are served, with parameters that are taken, and the columns are all fields of a row."""
    board = json.loads((HERE / "profiles" / "infinity.json").read_text())
    for panel in board["panels"]:
        query = panel["targets"][0]
        url = urlsplit(query["url"])
        name = url.path.rpartition("/")[2]
        assert url.path in stack_profiles.PATHS
        parsed = ProfileQuery.of(MultiDict(URL(f"http://x/?{url.query}").query), False, tuple(TYPES[name][0]))
        assert ("rows", "process") == (parsed.format, parsed.by)
        assert [*TreeRow.__annotations__] == [column["selector"] for column in query["columns"]]
