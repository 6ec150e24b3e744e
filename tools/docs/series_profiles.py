"""docs/series-profiles.md, from the tables of exporter/profile.py and the queries of the dashboards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dashboards import queries
from dashboards.parts import DETAIL
from exporter import stability
from exporter.model import PROCESS_LABELS, Metric
from exporter.profile import _WITH_GPU, BUCKETS, JOB, MOST_SINGLY, SINGLY, Profile, rule_of
from exporter.stability import Stability
from exporter.views import prometheus

HEAD = """
How many series a node has is chosen with `--profile`, and for one request with `/metrics?profile=`:

| profile | lines of /metrics | size | for |
| --- | --- | --- | --- |
| `debug` | about 22,000 | 7.0 MB | everything that was observed, each queue pair and NVLink |
| `node` (default) | 3,000 at most | 0.42 MB | a Prometheus of the cluster: all alerts, rules and dashboards |
| `fleet` | 1,200 at most | 0.13 MB | a store of many clusters: by job, pod and GPU instead of by process |

The lines are those of a node with 8 GPUs with 18 NVLinks each, 8 NICs and 8 ranks with 256 queue pairs each, made up
and written by the exporter's own code (`tests/program/test_profile.py` holds them to it). The size is before
compression, with pods and container ids. CPU time is the same for all: what a page with fewer series saves, adding up
takes.

`--profile` decides what collectors make, what OTLP sends and what the page at `/` shows; a request gets that profile
or one with fewer series: with `--profile=debug` a Prometheus on the node takes `/metrics` and a central one
`/metrics?profile=node` or `fleet`. A request for a profile with more series is a 400. In the chart it is `config:
{profile: debug}`, and for one monitor `podMonitor.endpoint: {params: {profile: [fleet]}}`.

- Where labels are left out, series that differ in nothing else are added up: a counter is the exact sum of what
  `debug` has, and does not fall when one of these series ends. Of times, ratios, temperatures and lags the largest is
  shown.
- That holds of `/metrics?profile=` below `--profile` and of pages beyond `--web.series-limit` too. The counts of a
  process that ran another program (exec), or was folded because more than 1,024 processes ended within five minutes,
  stay in the sum in which a page had them, for five minutes at least; the series with `overflow="true"` has the others.
- Histograms have %(buckets)s buckets at most: neighbours are merged, so that counts at the bounds that stay are exact
  and quantiles are coarser. In `debug`, durations have %(most)s at most. [Native histograms](http.md#histograms) have
  all bounds in each profile.
- Metrics of errors and faults are in every profile. In `fleet` they keep the labels of the process, and so do series
  of NCCL's RAS those of the rank. Labels that name the place of an error in a device are left out of some of them, as
  the table has it.
- RDMA in `node` is by process, device and GID or LID of the peer (bytes) or operation (requests). Queue pairs are
  shown one by one in `debug`. In `node` and on the page at `/` are the %(failed)s first of those in an error state,
  which `rdma_queue_pairs` counts, and the ten that post most (`rdma_qp_busiest_bytes_per_second`).
- `container_id` is on `job_process_info` alone, to be joined on the pid:
  `gpu_cuda_memory_usage_bytes * on (job, instance, pid) group_left (container_id) job_process_info`.
- `gpu_uuid` of a process is there too, on errors and on
  %(with_gpu)s.
  Others have it by the number of the GPU:
  `gpu_cuda_memory_usage_bytes * on (job, instance, gpu) group_left (gpu_uuid) hw_gpu_info`.
- Profiles are applied before the [limits of series](faq.md#how-many-series-is-that), which count what the profile
  leaves.

Alerts and recording rules have their series in `node` and `debug`; in `fleet` those that go by process or by function
of CUDA have none, so evaluate them where `node` is scraped. So do dashboards: what only `debug` has is in the last row
of a dashboard, *%(detail)s*.
"""
_SINGLY_TEXT: Mapping[str, str] = {
    "accel_exporter.probe.attached": "symbols without a probe singly, the others added up",
    "nccl.ras.rank.lag": "ranks that are behind",
    "gpu.nvlink.link.up": "links that are down singly, the others added up",
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
            "detail": DETAIL,
            "with_gpu": ", ".join(f"`{prometheus.name(it)}`" for it in known if it.name in _WITH_GPU),
        },
        "## What is left out",
        "Metrics that are not listed are the same in all profiles. Besides, `fleet` has no "
        + ", ".join(f"`{label}`" for label in PROCESS_LABELS if label not in JOB)
        + " on metrics of processes, those of errors aside.",
        table(("metric", "node", "fleet"), rows),
        "## Panels without data in profile node",
        f"They are in the row *{DETAIL}*.",
        table(("dashboard", "panel"), list(_panels())),
    ]
    return "\n\n".join(parts) + "\n"


def _row(metric: Metric) -> tuple[str, str, str] | None:
    node, fleet = (_cell(metric, profile) for profile in (Profile.NODE, Profile.FLEET))
    return (f"`{prometheus.name(metric)}`", node, fleet) if (node, fleet) != ("", "") else None


def _cell(metric: Metric, profile: Profile) -> str:
    rule = rule_of(metric, profile)
    if metric.name in SINGLY and profile < Profile.DEBUG:
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
