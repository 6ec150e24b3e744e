"""The pages of docs/ that code and rules declare, each as Markdown text."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from exporter import discover
from exporter.compat.dcgm import field, fields
from exporter.compat.dcgm.aliases import Aliases
from exporter.compat.dcgm.field import Number
from exporter.faults.xid import catalog, nvlink
from exporter.options import Option
from exporter.program_options import GROUPS
from exporter.settings import all_options
from tools.docs import faults, metric_page
from tools.docs import series_profiles as series_profile_page

_ALERTS_HEAD = """
Every alert of [alerts/](../alerts), file by file. Each has a runbook: its meaning, its impact on jobs, the diagnosis
with commands to paste, the repair, and how to verify the repair. `critical` pages a person, `warning` opens a ticket,
`info` is for the record. "For" is the time for which the condition holds before the alert fires; where it is empty,
one event is enough. Every rule is tested with promtool: it fires on its fault, is silent on a healthy day, and
resolves. The faults and days of these tests are synthetic: no cluster has run with these rules yet, so expect to
adjust thresholds.

Words in capitals in the commands of a runbook (NODE, GPU, PID) are yours to replace. The tools are Debian's:
infiniband-diags, ethtool, pciutils, mstflint (`mstlink` is `mlxlink` in NVIDIA's MFT), ipmitool, rasdaemon, edac-utils,
smartmontools, nvme-cli, nfs-common, rpcbind, lm-sensors, psmisc; and those of NVIDIA's driver, of DCGM and of PyPI
(py-spy). Of lines with the comments Kubernetes and Slurm one is yours. Commands under Diagnosis only look; commands
under Mitigation change the node. `localhost:19445` is the exporter of the node that the alert names. In Kubernetes
without the chart's `hostNetwork`, forward this port first: `kubectl -n accel-exporter port-forward POD 19445`. `kubectl
-n accel-exporter get pods -o wide` lists the POD of the node.

The annotations `runbook` and `dashboard` of an alert are paths: in docs/, and in Grafana with the dashboard's variables
set to the alert's labels. With the addresses of both they are `runbook_url` and `dashboard_url`, which lead there from
a notification: `prometheusRule.runbooks` and `prometheusRule.grafana` of the chart, RUNBOOKS=URL and GRAFANA=URL of
`make rules`. The rules, the chart and the manifests of [a release](release.md) have the address of the runbooks of this
release.

Load the files with `rule_files` of Prometheus, or set `prometheusRule.enabled` of the
[chart](deployment.md). They work unedited if the scrape job is called `accel-exporter`. What to adapt: the addresses of
links, as above; the place of your nodes ([topology](topology.md)), which some rules group by. In Kubernetes
PFC pauses and NCCL's RAS take the chart's `hostNetwork` ([deployment](deployment.md)):
without it their rules never fire.
It takes Prometheus 2.42 or later, which knows `keep_firing_for`.

Name, severity, pending time and thresholds of an alert are values: `prometheusRule.alerts` of the chart, or for plain
rules the same in a file, [deploy/rules.yaml](../deploy/rules.yaml) or `make rules VALUES=FILE`, which writes
build/alerts/accel-exporter.yaml. Both are made by one template of the chart. The texts of alerts follow; an alert or
threshold that does not exist is an error.

    alerts:
      NcclHang: {severity: warning, for: 5m, thresholds: {seconds: 1800}, labels: {team: ml}}
    disabled: [GpuTestStale]

Alertmanager's inhibition goes by name: an alert with another `name` is to be renamed there too.

[alertmanager.yml](../deploy/alertmanager/alertmanager.yml) is a configuration of Alertmanager for them: pages grouped
by node, switch or workload, tickets by alert, inhibition by cause, and nothing of a node with a shutdown that is
scheduled, that has a file `host_maintenance.NAME` in the folder of `--collector.faults.reports`, or that Kubernetes has
cordoned (`cordoned.yaml` beside it, with kube-state-metrics). [Decision 13](decisions/0013-alerts.md) has the reasons.
`tests/e2e/incidents` has timelines of incidents, with the notifications that each person gets.

VictoriaMetrics' vmalert accepts every file, but its `increase()` differs: it counts the first value of a new series as
an increase from 0 when that value is small. So on the first scrape of a node these alerts can fire for earlier events,
which they do not in Prometheus: `GpuEccUncorrectable`, `RdmaRetriesExceeded` and `GpuRepeatedJobFault`, and
`NcclRankBehind` is pending. They resolve when the range of the rule is past. `increase_prometheus()` in their place
has Prometheus' meaning, in vmalert alone.
"""
_DASHBOARDS_HEAD = """
The files of [dashboards/](../dashboards), for Grafana 11 and newer. Import one by hand (*Dashboards, New, Import*), let
[the composition](quick-start.md#grafana) provision them, or set `dashboards.enabled` of the [chart](deployment.md).
Select the data source, the job and the instances at the top of each dashboard. Every panel has a description: the *i*
in its corner. For an empty panel see [why is a metric absent?](faq.md#why-is-a-metric-absent)

*Workload* selects jobs by [their name](attribution.md#the-name-of-a-job), on each dashboard with panels of processes.
These panels then show the processes of the selected workloads; panels of GPUs, ports and nodes do not change. With
*All*, panels of processes also show those without a known workload, by pod, Slurm job or command. Jobs sums all pods of
a workload. Fleet reads the series that `alerts/recording.yaml` and `alerts/nodes.yaml` record by workload. The other
dashboards join `job_process_info` on the pid: with `--profile=fleet` they have no workload.

The pictures are not screenshots of Grafana. They have the layout of the dashboards, and are drawn from the responses of
a Prometheus that scraped the [demo](quick-start.md) or a stand-in of the hardware.
"""
_CONVERSIONS: Mapping[Callable[[Number], Number], str] = {
    field.mib: "/ 2^20, rounded down",
    field.from_mib: "× 2^20",
    field.thousandth: "/ 1000",
    field.hundredth: "/ 100",
}
_DCGM_HEAD = """
With `--compat.dcgm` the exporter shows these in dcgm-exporter's names, types, units and labels: those marked "by
default" or, with `--compat.dcgm.csv=FILE`, those of a file in dcgm-exporter's format. A row of type `label` is a label
on all the others. "Made of" names the reading of NVML and its conversion; a value that NVML does not report for a GPU
has no series. [coming-from-dcgm-exporter.md](coming-from-dcgm-exporter.md) describes the rest.
"""
_NOTICE = "<!-- Written by `make docs` from the declarations in exporter/; do not edit. -->"
_ROOT = Path(__file__).parents[2]
_THRESHOLDS = _ROOT / "deploy/helm/accel-exporter/files/thresholds.yaml"
_XID_HEAD = """
An Xid is a number by which NVIDIA's driver reports a fault, in the kernel log and to NVML; an SXid is an NVSwitch's.
Both sources are read: the log's line decides, NVML's event counts where the log has no line within 5 s. Lines that a
process wrote into the log are ignored unless `--kmsg.from-processes` is given, which serves to test an alert:

    echo 'NVRM: Xid (PCI:0000:3b:00): 79, pid=0, name=test, a test' > /dev/kmsg

At its start the exporter reads the log from its oldest record on. Xids found there are older than the counters: they
are in `gpu_xid_replayed` and in `gpu_xid_last_timestamp_seconds`, with their own time, and not in
`gpu_xid_errors_total`. An alert on the time since the last Xid therefore continues over a restart, and an old Xid
starts none. That time is taken from the kernel's own clock, which may drift from wall time by seconds a day. While NVML
starts, for half a minute at most, there are no series: with incomplete labels an alert would fire a second time.

Most of Xids 144 to 150 need no action; `action` is decoded from the unit, the status and the reason in the line. An
Xid that only NVML reports has no line: its action is `WORKFLOW_NVLINK5_ERR`. Xid 154 carries the action to take.

A code that is not listed here has the action `CONTACT_SUPPORT` and the category `unknown`.
"""


def metrics() -> str:
    """The page of every metric with its stability."""
    return metric_page.page(_NOTICE, _table)


def flags() -> str:
    """The page of every setting with its default, group by group."""
    options = all_options(discover.collectors().values())
    parts = [
        _NOTICE,
        "# Flags",
        "Each flag is also a variable (`--log.level` is `ACCEL_EXPORTER_LOG_LEVEL`) and a key of the YAML file "
        "`--config.file`; dots become nesting (`log: {level: debug}`). A flag has priority over a variable, and a "
        "variable over the file. `--no-NAME` disables a switch that `--NAME` enables; in the file a collector is "
        "`cuda: false`, or `cuda: {enabled: false, …}` beside its own flags. Lists are separated by commas. A value "
        "that is not allowed is an error: the exporter does not start (exit code 2), and a reload keeps the settings "
        "in force.",
    ]
    for group, title in GROUPS.items():
        rows = [_flag_row(option) for option in options if option.group == group and not option.moved_to]
        parts += [f"## {title}", _table(("flag", "default", "allowed", "meaning"), rows)]
    former = [(f"`--{option.name}`", f"`--{option.moved_to}`") for option in options if option.moved_to]
    parts += ["## Former names", "They count in this release only, with a warning.", _table(("former", "now"), former)]
    return "\n\n".join(parts) + "\n"


def xid() -> str:
    """The page of every Xid with its action and category, the meanings of both, and the units of NVLink 5."""
    codes = [
        (str(code), it.text, f"`{it.action}`" if it.action else "", f"`{it.category}`")
        for code, it in sorted(catalog.XIDS.items())
    ]
    parts = [
        _NOTICE,
        "# Xids",
        _XID_HEAD.strip(),
        "## Actions",
        _table(("action", "what to do at once"), [(f"`{name}`", text) for name, text in catalog.ACTIONS.items()]),
        "## Categories",
        _table(("category", "what is at fault"), [(f"`{name}`", text) for name, text in catalog.CATEGORIES.items()]),
        "## Codes",
        _table(("Xid", "what happened", "action", "category"), codes),
        "## Units of Xids 144 to 150",
        ", ".join(f"`{unit}`" for unit in nvlink.UNITS) + ".",
    ]
    return "\n\n".join(parts) + "\n"


def dcgm_fields() -> str:
    """The page of every field of dcgm-exporter: its series, and the reading each is made of."""
    aliases = Aliases()
    rows = [
        (
            f"`{it.name}`" + (f"<br>`{aliases.new(it.name)}`" if aliases.new(it.name) != it.name else ""),
            it.kind.value if it.kind else "label",
            "yes" if it.default else "",
            f"`{it.key}`" + (f" {_CONVERSIONS[it.convert]}" if it.convert else ""),
            f"{it.help} {it.note}".strip(),
        )
        for it in fields.FIELDS
    ]
    parts = [
        _NOTICE,
        "# Fields of dcgm-exporter",
        _DCGM_HEAD.strip(),
        _table(("field, and its name since DCGM 4.6", "type", "by default", "made of", "meaning"), rows),
        "## What only DCGM itself reports",
        "These, and every other field of DCGM, come through `--dcgm.url` where a dcgm-exporter runs.",
        _table(("field", "why"), [(f"`{name}`", why) for name, why in fields.UNREAD.items()]),
    ]
    return "\n\n".join(parts) + "\n"


def fault_page() -> str:
    """The page of every fault that is detected, by cause, with its alerts and its blind spots."""
    return faults.page(_NOTICE, _table)


def alerts() -> str:
    """The page of every alert with its severity, pending time, thresholds, meaning and runbook."""
    parts = [_NOTICE, "# Alerts", _ALERTS_HEAD.strip()]
    for path in sorted((_ROOT / "alerts").glob("*.yaml")):
        text = path.read_text()
        groups = yaml.safe_load(text).get("groups", ())
        if rows := [_alert_row(rule) for group in groups for rule in group["rules"] if "alert" in rule]:
            parts += [f"## {_title(text)}", f"`alerts/{path.name}`"]
            parts.append(_table(("alert", "severity", "for", "thresholds", "meaning"), rows))
    return "\n\n".join(parts) + "\n"


def dashboards() -> str:
    """The page of every dashboard with its description, its panels, and its picture if there is one."""
    found = {path.stem: path for path in (_ROOT / "dashboards").glob("*.json")}
    parts = [_NOTICE, "# Dashboards", _DASHBOARDS_HEAD.strip()]
    for stem in sorted(found):
        board = json.loads(found[stem].read_text())
        parts += [f"## {board['title']}", board["description"]]
        if (_ROOT / "docs" / (image := f"images/dashboard-{stem}.png")).exists():
            parts.append(f"![The dashboard {board['title']}]({image})")
        parts += [_table(("row", "panels"), _rows(board["panels"])), f"File: `dashboards/{stem}.json`."]
    return "\n\n".join(parts) + "\n"


def _rows(panels: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, str]]:
    rows: dict[str, list[str]] = {}
    row = ""
    for panel in panels:
        if panel["type"] == "row":
            row = panel["title"]
            rows[row] = [inner["title"] for inner in panel.get("panels", ())]
        else:
            rows.setdefault(row, []).append(panel["title"])
    return ((row, ", ".join(titles)) for row, titles in rows.items())


def _title(rules: str) -> str:
    """Return the first words of the comment that a file of rules begins with, up to the first punctuation."""
    begins = re.match(r"# ([^.,:()]+)", rules)
    if not begins:
        raise ValueError("a file of rules begins with a comment: its title, a colon, and what it is about")
    return begins[1].strip()


def _alert_row(rule: Mapping[str, Any]) -> tuple[str, ...]:
    runbook = Path(rule["annotations"]["runbook"])
    text = (_ROOT / runbook).read_text()
    [meaning] = re.findall(r"^## Meaning\n\n(.+?)(?:\n\n|\n- )", text, re.DOTALL | re.MULTILINE)
    meaning = re.sub(r"\]\((\.\./)?", lambda link: "](" if link[1] else "](runbooks/", " ".join(meaning.split()))
    numbers = ", ".join(f"`{name}: {number}`" for name, number in _thresholds().get(rule["alert"], {}).items())
    name = f"[{rule['alert']}](runbooks/{runbook.name})"
    return name, rule["labels"]["severity"], rule.get("for", ""), numbers, meaning


@functools.cache
def _thresholds() -> Mapping[str, Mapping[str, str]]:
    declared: Mapping[str, Mapping[str, str]] = yaml.safe_load(_THRESHOLDS.read_text())
    return declared


def _flag_row(option: Option) -> tuple[str, ...]:
    allowed = ", ".join(filter(None, option.choices)) or option.range
    return f"`--{option.name}`", f"`{option.shown}`" if option.shown else "", allowed, option.help


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def series_profiles() -> str:
    """The page of series profiles: what each leaves out."""
    own = {metric.name: metric for metric in metric_page.declared()}
    return f"{_NOTICE}\n\n{series_profile_page.page(own.values(), _table)}"


PAGES = {
    "metrics": metrics,
    "series-profiles": series_profiles,
    "flags": flags,
    "xid": xid,
    "dcgm-fields": dcgm_fields,
    "faults": fault_page,
    "alerts": alerts,
    "dashboards": dashboards,
}
