"""Building blocks of the dashboards: queries, panels and variables in one style."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.absent import empty, into_closed

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
TARGET = ('job=~"$job"', 'instance=~"$instance"', 'cluster=~"$cluster"')
"""`cluster` is a label that Prometheus adds for others (external_labels); where there is none every value matches."""
LEADS = {
    "instance": ("node", "Node"),
    "gpu": ("gpu", "GPU"),
    "workload": ("jobs", "Workload"),
    "pod": ("jobs", "Pod"),
    "slurm_job_id": ("jobs", "Slurm job"),
    "device": ("rdma", "Device"),
    "comm_hash": ("nccl", "Communicator"),
}
"""Label to the dashboard with more about it, where it is a variable, and its name in the link."""
OTHERS = {"device": "accel_node_nvme_", "workload": "ALERTS"}
"""Label to metrics on which it names something else (a drive, an alert's own workload), so that no link is drawn."""
HALF, THIRD, FULL = 12, 8, 24
DETAIL = "Detail: only with --profile=debug"
"""Title of the row of panels of which the profile node has no series."""
CLOSED = {
    DETAIL,
    "AMD GPUs",
    "AMD's HIP",
    "Custom probes",
    "Engine",
    "GPUDirect Storage",
    "KV cache transfers",
    "By label of the pod",
    "Places",
}
"""Titles of rows of what most nodes lack: they are closed until a person opens them, and query nothing until then."""


@dataclass(frozen=True)
class Query:
    """One PromQL expression and the legend (or, in a table, the column title) of what it returns."""

    expr: str
    legend: str = ""
    unit: str = ""
    """Of a table's column, where it differs from the panel's."""
    alarm: float | None = None
    """The value from which on the cells of a table's column are red."""
    hidden: bool = False
    """True if a table has rows by the query and no column with its value, which is always the same."""


class Common(Protocol):
    """The part of every panel builder that all panels share."""

    def title(self, title: str, /) -> object: ...
    def description(self, description: str, /) -> object: ...
    def unit(self, unit: str, /) -> object: ...
    def datasource(self, datasource: models.DataSourceRef, /) -> object: ...
    def height(self, h: int, /) -> object: ...
    def span(self, w: int, /) -> object: ...
    def no_value(self, no_value: str, /) -> object: ...
    def with_target(self, target: prometheus.Dataquery, /) -> object: ...


PanelT = TypeVar("PanelT", bound=Common)


def select(metric: str, *matchers: str) -> str:
    """A selector of the metric on the exporters that are chosen in the dashboard's variables."""
    return f"{metric}{{{', '.join((*TARGET, *matchers))}}}"


def rate(metric: str, *matchers: str) -> str:
    """Increase per second of a counter (`_total`, `_bucket`, `_sum`, `_count`) over the panel's resolution."""
    return f"rate({select(metric, *matchers)}[$__rate_interval])"


def share(expr: str) -> str:
    """The expression, a share of time or of a whole, without what a restart between two scrapes makes more than all."""
    return f"clamp_max({expr}, 1)"


def total(expr: str, *labels: str) -> str:
    """Sum of an expression by labels, or all of it."""
    by = f" by ({', '.join(labels)})" if labels else ""
    return f"sum{by} ({expr})"


def lines(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    width: int = HALF,
    stacked: bool = False,
    alarm: float | None = None,
    below: bool = False,
) -> timeseries.Panel:
    """Values over time. Stacked where the sum of the lines means something; `alarm` is dashed: bad above, or below."""
    panel = _panel(timeseries.Panel(), title, description, unit, queries, width, 8)
    legend = common.VizLegendOptions().display_mode(options.LegendDisplayMode.TABLE)
    legend.placement(options.LegendPlacement.BOTTOM).show_legend(True).calcs(["lastNotNull", "max"])
    tooltip = common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI)
    tooltip.sort(options.SortOrder.DESCENDING)
    panel.legend(legend).tooltip(tooltip).min(0).line_width(1).show_points(options.VisibilityMode.NEVER)
    panel.data_links([dashboard.DashboardLink(title).url(url) for title, url in _line_leads(queries)])
    if alarm is not None:
        dashed = common.GraphThresholdsStyleConfig().mode(options.GraphThresholdsStyleMode.DASHED)
        panel.thresholds(_thresholds(alarm, below)).thresholds_style(dashed)
    if stacked:
        panel.fill_opacity(25).stacking(common.StackingConfig().mode(options.StackingMode.NORMAL))
    return panel


def red(panel: timeseries.Panel, legend: str) -> timeseries.Panel:
    """The panel with the line of that legend in red."""
    color = models.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": "red"})
    return panel.override_by_name(legend, [color])


def number(
    title: str, description: str, unit: str, query: Query, *, alarm: float | None = None, below: bool = False
) -> stat.Panel:
    """One number of now; red from `alarm` on, or below it."""
    panel = _panel(stat.Panel(), title, description, unit, [query], 4, 4)
    panel.graph_mode(options.BigValueGraphMode.AREA).color_mode(options.BigValueColorMode.VALUE)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    return panel.thresholds(_thresholds(alarm, below))


def heat(title: str, description: str, unit: str, query: Query, width: int = HALF) -> heatmap.Panel:
    """A histogram over time, with its exemplars, which lead to traces; the query returns its buckets by `le`."""
    panel = _panel(heatmap.Panel(), title, description, unit, [query], width, 8, PromQueryFormat.HEATMAP)
    color = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64)
    return panel.calculate(False).color(color).y_axis(heatmap.YAxisConfig().unit(unit)).show_legend()


def rows(
    title: str,
    description: str,
    unit: str,
    labels: Mapping[str, str],
    *queries: Query,
    width: int = FULL,
    first: str = "",
) -> table.Panel:
    """A table of now: a row for each set of `labels` (label to column title), a column for each query.

    Sorted by the column `first`, where that is given.
    """
    panel = _panel(table.Panel(), title, description, unit, queries, width, 9, PromQueryFormat.TABLE)
    values = {"Value" if len(queries) == 1 else f"Value #{_ref(i)}": query for i, query in enumerate(queries)}
    names = [*labels, *values]
    hidden = {name for name, query in values.items() if query.hidden}
    titles = {**labels, **{name: query.legend for name, query in values.items()}}
    order = {name: index for index, name in enumerate(names)}
    for name, settings in {
        "merge": {},
        "filterFieldsByName": {"include": {"names": [name for name in names if name not in hidden]}},
        "organize": {"indexByName": order, "renameByName": titles},
    }.items():
        panel.with_transformation(models.DataTransformerConfig(id_val=name, options=settings))
    if first:
        panel.sort_by([common.TableSortByFieldState().display_name(first).desc(False)])
    for label in _leading(labels, queries):
        panel.override_by_name(labels[label], [models.DynamicConfigValue(id_val="links", value=[_lead(label, labels)])])
    for query in queries:
        if settings := list(_column(query)):
            panel.override_by_name(query.legend, settings)
    return panel.filterable(True)


def board(
    uid: str,
    title: str,
    description: str,
    variables: Sequence[Builder[models.VariableModel]],
    sections: Mapping[str, Sequence[Builder[models.Panel]]],
) -> models.Dashboard:
    """A dashboard of titled sections of panels, with the data source, job and instance to choose first."""
    result = dashboard.Dashboard(title).uid(uid).description(description).tags(["accel-exporter"]).readonly()
    result.time("now-1h", "now").refresh("30s").tooltip(models.DashboardCursorSync.CROSSHAIR).timezone("browser")
    link = dashboard.DashboardLink("accel-exporter").type(models.DashboardLinkType.DASHBOARDS)
    result.link(link.tags(["accel-exporter"]).as_dropdown(True).include_vars(True).keep_time(True))
    result.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    clusters = "label_values(accel_exporter_build_info, cluster)"
    result.with_variable(choice("cluster", "Cluster", clusters, every=".*"))
    jobs = 'label_values(accel_exporter_build_info{cluster=~"$cluster"}, job)'
    result.with_variable(choice("job", "Job", jobs, every=".+"))
    instances = 'label_values(accel_exporter_build_info{cluster=~"$cluster", job=~"$job"}, instance)'
    result.with_variable(choice("instance", "Instance", instances, every=".+"))
    for variable in variables:
        result.with_variable(variable)
    for name, panels in sections.items():
        result.with_row(dashboard.Row(name).collapsed(name in CLOSED))
        for panel in panels:
            result.with_panel(panel)
    built = result.build()
    for number_, panel_ in enumerate(built.panels or [], 1):
        panel_.id_val = number_
    built.panels = list(into_closed(built.panels or []))
    return built


def choice(name: str, label: str, query: str, *, every: str) -> dashboard.QueryVariable:
    """A variable with the values of a label, several at once; `every` is the pattern that "All" stands for."""
    variable = dashboard.QueryVariable(name).label(label).query(query).datasource(SOURCE)
    variable.multi(True).include_all(True).all_value(every).sort(models.VariableSort.ALPHABETICAL_ASC)
    variable.current(models.VariableOption(selected=True, text="All", value="$__all"))
    return variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)


def _panel(
    panel: PanelT,
    title: str,
    description: str,
    unit: str,
    queries: Sequence[Query],
    width: int,
    height: int,
    format_: PromQueryFormat = PromQueryFormat.TIME_SERIES,
) -> PanelT:
    panel.title(title)
    panel.description(description)
    panel.unit(unit)
    panel.datasource(SOURCE)
    panel.height(height)
    panel.span(width)
    if not isinstance(panel, (stat.Panel, table.Panel)) and (text := empty(query.expr for query in queries)):
        panel.no_value(text)
    for index, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(_ref(index)).format(format_)
        if format_ is PromQueryFormat.HEATMAP:
            target.exemplar(True)
        panel.with_target(target.instant() if format_ is PromQueryFormat.TABLE else target.range())
    return panel


def _thresholds(alarm: float | None, below: bool) -> dashboard.ThresholdsConfig:
    good, bad = ("red", "green") if below else ("green", "red")
    steps = [models.Threshold(value=None, color=good if alarm is not None else "text")]
    if alarm is not None:
        steps.append(models.Threshold(value=alarm, color=bad))
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _column(query: Query) -> Iterator[models.DynamicConfigValue]:
    """Yield the settings in which a table's column differs from the others."""
    if query.unit:
        yield models.DynamicConfigValue(id_val="unit", value=query.unit)
    if query.alarm is not None:
        steps = [{"color": "text", "value": None}, {"color": "red", "value": query.alarm}]
        yield models.DynamicConfigValue(id_val="thresholds", value={"mode": "absolute", "steps": steps})
        yield models.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"})


def _leading(labels: Iterable[str], queries: Sequence[Query]) -> list[str]:
    """The labels that another dashboard has more about."""
    named = " ".join(query.expr for query in queries)
    return [label for label in labels if label in LEADS and not (label in OTHERS and OTHERS[label] in named)]


def _line_leads(queries: Sequence[Query]) -> Iterator[tuple[str, str]]:
    """Title and address of the links of a line, by labels that all of a panel's legends name and no line lacks.

    Grafana would leave the name of an absent label in the address: not every process has a pod, a Slurm job or one GPU.
    """
    named = set.intersection(*(set(re.findall(r"{{(\w+)}}", query.legend)) for query in queries))
    sure = ("instance", "device", "comm_hash") if "pid" in named else ("instance", "gpu", "device", "comm_hash")
    for label in _leading([label for label in sure if label in named], queries):
        stem, title = LEADS[label]
        chosen = {name: f"${{__field.labels.{name}}}" for name in ("instance", label) if name in named}
        yield f"{title} {chosen[label]}", _address(stem, chosen)


def _lead(label: str, labels: Mapping[str, str]) -> dict[str, str]:
    """A link from a cell of a table to the dashboard of what it names, on the node of its row where that has one."""
    stem, title = LEADS[label]
    chosen = {label: "${__value.raw}"}
    if label != "instance" and "instance" in labels:
        chosen["instance"] = f"${{__data.fields.{labels['instance']}}}"
    return {"title": f"{title} ${{__value.text}}", "url": _address(stem, chosen)}


def _address(stem: str, chosen: Mapping[str, str]) -> str:
    kept = "${datasource:queryparam}&${cluster:queryparam}&${job:queryparam}&${__url_time_range}"
    return f"/d/accel-exporter-{stem}?{kept}" + "".join(f"&var-{name}={value}" for name, value in chosen.items())


def _ref(index: int) -> str:
    return chr(ord("A") + index)
