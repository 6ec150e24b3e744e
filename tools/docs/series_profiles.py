"""docs/series-profiles.md, from the tables of exporter/profile.py and the queries of the dashboards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dashboards import queries
from dashboards.parts import DETAIL
from exporter import stability
from exporter.model import PROCESS_LABELS, Metric
from exporter.profile import _WITH_GPU, BUCKETS, JOB, MEANS, MOST_LARGE, MOST_LATE, MOST_SINGLY, Profile, rule_of
from exporter.stability import Stability
from exporter.views import prometheus

HEAD = """
`--profile` sets the number of series of a node, `/metrics?profile=` that of one request:

| profile | lines of /metrics | size | for |
| --- | --- | --- | --- |
| `debug` | about 22,000 | 7.0 MB | all observed series, including each queue pair and NVLink |
| `node` (default) | 3,000 at most | 0.42 MB | a Prometheus of the cluster: all alerts, rules and dashboards |
| `fleet` | 1,200 at most | 0.13 MB | a store of many clusters: by job, pod and GPU instead of by process |

The lines are those of a simulated node with 8 GPUs with 18 NVLinks each, 8 NICs and 8 ranks with 256 queue pairs each,
with the series of its machine, its allocations and the exporter itself, written by the exporter's own code
(`tests/program/test_profile.py` checks them). The size is before compression, with pods and container ids. CPU time is
the same for all profiles: a page with fewer series costs less, and summing series costs more.

`--profile` applies to the collectors, to OTLP and to the page at `/`. A request gets this profile or a profile with
fewer series. For example, with `--profile=debug` a Prometheus on the node scrapes `/metrics`, and a central Prometheus
`/metrics?profile=node` or `fleet`. A request for a profile with more series returns a 400. In the chart set `config:
{profile: debug}`, and for one monitor `podMonitor.endpoint: {params: {profile: [fleet]}}`.

- Where labels are omitted, series that differ only in these labels are summed. A counter is the exact sum of the
  counters in `debug`, and does not decrease when one of these series ends. For times, ratios, temperatures and lags the
  largest value is exported.
- The same holds for `/metrics?profile=` below `--profile` and for pages beyond `--web.series-limit`. If a process ran
  another program (exec), or was folded because more than 1,024 processes ended within five minutes, its counts stay in
  the sums of earlier pages for at least five minutes. The series with `overflow="true"` has the other counts. If the
  pod or GPU of a process becomes known, its earlier counts stay in the sum without the pod or GPU; if its only GPU
  becomes unknown, they stay in the sum with the GPU. The page has this sum as long as the process runs, also when the
  other processes in the sum have ended. In `node` the counts move to a new series if the former one has no
  other counts.
- Histograms have at most %(buckets)s buckets: neighbours are merged. Counts at the remaining bounds are exact, and
  quantiles are coarser. %(means)s have two.
  In `debug`, durations have at most %(most)s. [Native histograms](http.md#histograms) have all bounds in each profile.
- Metrics of errors and faults are in every profile. In `fleet` they keep the labels of the process, and series of
  NCCL's RAS keep the labels of the rank. Some of them omit labels for the location of an error in a device (see the
  table).
- NCCL's RAS in `node` and `fleet`: the %(large)s largest communicators, where those with missing or failed ranks come
  first, and the %(late)s with the ranks most behind. A job of 2,000 ranks has hundreds of communicators. The node with
  rank 0 of a job has up to 250 of these series in addition. Sums over them cover only these communicators.
- RDMA in `node` is by process, device and GID or LID of the peer (bytes) or operation (requests). Only `debug` has each
  queue pair. `node` and the page at `/` have the first %(failed)s queue pairs in an error state (`rdma_queue_pairs`
  counts all of them) and the ten that post most (`rdma_qp_busiest_bytes_per_second`).
- Only `job_process_info` has `container_id`. Join it on the pid:
  `gpu_cuda_memory_usage_bytes * on (job, cluster, instance, pid) group_left (container_id) job_process_info`.
- `job_process_info` also has the `gpu_uuid` of a process, and so have errors and
  %(with_gpu)s.
  For other metrics join it on the number of the GPU:
  `gpu_cuda_memory_usage_bytes * on (job, cluster, instance, gpu) group_left (gpu_uuid) hw_gpu_info`.
- Profiles are applied before the [limits of series](faq.md#how-many-series-is-that), which count the series of the
  profile.

Alerts and recording rules have their series in `node` and `debug`. In `fleet`, rules by process, by CUDA function, by
setting or clock of GPUs, and on limits of series have no series. Evaluate these rules where `node` is scraped. The same
applies to dashboards: panels that need `debug` are in the last row of a dashboard, *%(detail)s*.
"""
_SINGLY_TEXT: Mapping[str, str] = {
    "accel.node.hwmon.alarm": "alarms singly, the other sensors of a chip as one series",
    "accel.node.pci.link.width": "NICs only; GPUs have `gpu_pcie_width`",
    "accel_exporter.map.full": "maps that were full singly, the others summed",
    "accel_exporter.probe.attached": "symbols without a probe singly, the others summed",
    "gpu.memory.row_remap.banks": "`low` and `none` singly, banks with more spare rows summed",
    "hw.gpu.utilization": "task `general` singly, the largest of the others",
    "nccl.ras.rank.lag": f"the {MOST_SINGLY['nccl.ras.rank.lag']} ranks most behind",
    "nccl.ras.rank.missing": f"{MOST_SINGLY['nccl.ras.rank.missing']} ranks at most",
    "gpu.nvlink.link.up": "links that are down singly, the others summed",
    "hw.temperature.limit": "the limit of the memory (`memory_max`)",
    "gpu.power.limit": "the limit in force (`enforced`)",
    "rdma.qp.state": f"{MOST_SINGLY['rdma.qp.state']} queue pairs at most, of those in the states ERR and SQE",
}


def page(metrics: Iterable[Metric], table: Callable[[Sequence[str], Iterable[Sequence[str]]], str]) -> str:
    """Return the page of these metrics; `table` makes a table of a head and rows."""
    kept = (metric for metric in metrics if stability.of(metric) in (Stability.STABLE, Stability.EXPERIMENTAL))
    known = sorted(kept, key=prometheus.name)
    rows = [row for metric in known if (row := _row(metric))]
    buckets = " (node) and ".join(str(BUCKETS[profile]) for profile in (Profile.NODE, Profile.FLEET)) + " (fleet)"
    parts = [
        "# Series profiles",
        HEAD.strip()
        % {
            "buckets": buckets,
            "most": BUCKETS[Profile.DEBUG],
            "failed": MOST_SINGLY["rdma.qp.state"],
            "large": MOST_LARGE,
            "late": MOST_LATE,
            "means": " and ".join(f"`{prometheus.name(it)}`" for it in known if it.name in MEANS),
            "detail": DETAIL,
            "with_gpu": ", ".join(f"`{prometheus.name(it)}`" for it in known if it.name in _WITH_GPU),
        },
        "## What is left out",
        "Metrics that are not listed are the same in all profiles. In `fleet`, metrics of processes also lack "
        + ", ".join(f"`{label}`" for label in PROCESS_LABELS if label not in JOB)
        + ", except metrics of errors.",
        table(("metric", "node", "fleet"), rows),
        "## Panels without data in profile node",
        f"These panels are in the row *{DETAIL}*.",
        table(("dashboard", "panel"), list(_panels())),
    ]
    return "\n\n".join(parts) + "\n"


def _row(metric: Metric) -> tuple[str, str, str] | None:
    node, fleet = (_cell(metric, profile) for profile in (Profile.NODE, Profile.FLEET))
    return (f"`{prometheus.name(metric)}`", node, fleet) if (node, fleet) != ("", "") else None


def _cell(metric: Metric, profile: Profile) -> str:
    rule = rule_of(metric, profile)
    if rule.singly and (rule.without or not rule.shown or metric.name in MOST_SINGLY):
        return _SINGLY_TEXT[metric.name]
    if not rule.shown:
        return "–"
    without = [f"`{label}`" for label in metric.labels if label in rule.without]
    return "without " + ", ".join(without) if without else ""


def _panels() -> Iterator[tuple[str, str]]:
    titles = {stem: board["title"] for stem, board in queries.boards().items()}
    for panel in queries.panels():
        if panel.row == DETAIL:
            yield titles[panel.board], panel.title
