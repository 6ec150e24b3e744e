"""Dashboards of profiles of stacks: flame graphs out of Pyroscope, or out of one exporter by the Infinity data source.

They are apart from the others, because these are of Prometheus alone. Nobody here has seen them in Grafana: their form
is that of Grafana's schema, and the rows of the second are what Grafana's manual wants of a flame graph.
"""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import dashboard, grafanapyroscope
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import dashboard as models

PYROSCOPE = models.DataSourceRef(type_val="grafana-pyroscope-datasource", uid="${pyroscope}")
INFINITY = models.DataSourceRef(type_val="yesoreyeram-infinity-datasource", uid="${infinity}")
PROFILES = (
    (
        "Memory in use",
        "gpu_inuse:inuse_space:bytes:space:bytes",
        "bytes",
        "Who holds the memory of GPUs, by the stack that allocated it.",
    ),
    (
        "Memory allocated",
        "gpu_alloc:alloc_space:bytes:space:bytes",
        "bytes",
        "What was allocated in the time that is shown, freed since or not.",
    ),
    (
        "Kernel launches",
        "gpu_launches:launches:count:launches:count",
        "short",
        "Launches in the time that is shown, by the stack that launched.",
    ),
)
"""Title, type of profile in Pyroscope (name, value, unit, period), unit and description."""
SELECTOR = '{service_name=~"$service", pid=~"$pid", workload=~"$workload", pod=~"$pod", gpu_uuid=~"$gpu_uuid"}'
TEXTS = (
    ("service", "Service", "accel-exporter"),
    ("pid", "PID", ".*"),
    ("workload", "Workload", ".*"),
    ("pod", "Pod", ".*"),
    ("gpu_uuid", "GPU", ".*"),
)
COLUMNS = (("level", "number"), ("value", "number"), ("self", "number"), ("label", "string"))
_UID = "accel-exporter-profiles-"


class Infinity(Builder[Dataquery]):
    """A query of the Infinity data source: rows of JSON from a URL, in their order."""

    def __init__(self, url: str) -> None:
        self._url = url

    def build(self) -> Dataquery:
        columns = [{"selector": name, "text": name, "type": kind} for name, kind in COLUMNS]
        words = {"type": "json", "source": "url", "format": "table", "parser": "backend", "root_selector": ""}
        query = {**words, "refId": "A", "url": self._url, "url_options": {"method": "GET", "data": ""}}
        return _Plain({**query, "columns": columns, "filters": []})


class _Plain(Dataquery):
    """A query that is written as it is."""

    def __init__(self, query: dict[str, Any]) -> None:
        self._query = query

    def to_json(self) -> dict[str, Any]:
        return self._query


def boards() -> dict[str, models.Dashboard]:
    """The dashboards by file stem."""
    return {"pyroscope": _pyroscope(), "infinity": _infinity()}


def _pyroscope() -> models.Dashboard:
    board = _board(
        "pyroscope", "GPU profiles", "Who holds GPU memory and who launches kernels, by stack, from Pyroscope."
    )
    board.with_variable(
        dashboard.DatasourceVariable("pyroscope").label("Data source").type("grafana-pyroscope-datasource")
    )
    for name, label, value in TEXTS:
        chosen = models.VariableOption(selected=True, text=value, value=value)
        board.with_variable(dashboard.TextBoxVariable(name).label(label).default_value(value).current(chosen))
    for title, kind, unit, description in PROFILES:
        query = grafanapyroscope.Dataquery().profile_type_id(kind).label_selector(SELECTOR).group_by([])
        query.ref_id("A").query_type("profile").max_nodes(16384)
        board.with_panel(_panel(title, description, unit, PYROSCOPE, query))
    return _numbered(board)


def _infinity() -> models.Dashboard:
    board = _board("infinity", "GPU profiles of a node", "The same of one exporter as it is now, without Pyroscope.")
    board.with_variable(
        dashboard.DatasourceVariable("infinity").label("Data source").type("yesoreyeram-infinity-datasource")
    )
    chosen = models.VariableOption(selected=True, text="node1:19445", value="node1:19445")
    board.with_variable(
        dashboard.TextBoxVariable("address").label("Exporter").default_value("node1:19445").current(chosen)
    )
    for title, kind, unit, description in PROFILES:
        name = kind.partition(":")[0]
        since = (
            description if name == "gpu_inuse" else description.replace("in the time that is shown", "since the start")
        )
        query = Infinity(f"http://${{address}}/debug/pprof/{name}?format=rows&by=process")
        board.with_panel(_panel(title, since, unit, INFINITY, query))
    return _numbered(board)


def _board(name: str, title: str, description: str) -> dashboard.Dashboard:
    board = dashboard.Dashboard(title).uid(_UID + name).description(description).tags(["accel-exporter"]).readonly()
    return board.time("now-1h", "now").timezone("browser")


def _panel(
    title: str, description: str, unit: str, source: models.DataSourceRef, query: Builder[Dataquery]
) -> dashboard.Panel:
    panel = dashboard.Panel().type("flamegraph").title(title).description(description).unit(unit)
    return panel.datasource(source).span(24).height(14).with_target(query)


def _numbered(board: dashboard.Dashboard) -> models.Dashboard:
    built = board.build()
    for number, panel in enumerate(built.panels or [], 1):
        panel.id_val = number
    return built
