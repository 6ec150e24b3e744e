"""Text of the demo, as pure functions of two scrapes of /metrics."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
LAUNCHES = "gpu_cuda_kernel_launch_calls_total"
USAGE = "gpu_cuda_memory_usage_bytes"
COPIED = "gpu_cuda_memory_copies_bytes_total"
WAITS = "gpu_cuda_sync_wait_seconds_bucket"
ERRORS = "gpu_cuda_api_errors_total"
XIDS = "gpu_xid_errors_total"
COLLECTIVES = "nccl_collective_calls_total"
MOVED = "nccl_collective_bus_bytes_total"
LAG = "nccl_rank_arrival_lag_seconds"
_BARS = "▁▂▃▄▅▆▇█"

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass(frozen=True)
class Scrape:
    """One answer of /metrics: when it came, in seconds of a monotonic clock, how long it took, and every sample."""

    at: float
    seconds: float
    series: Series

    def rows(self, name: str, **wanted: str) -> Iterator[tuple[dict[str, str], float]]:
        for (metric, labels), value in self.series.items():
            if metric == name and wanted.items() <= dict(labels).items():
                yield dict(labels), value

    def total(self, name: str, **wanted: str) -> float | None:
        """The sum over every series of that name; None when there is none."""
        values = [value for _, value in self.rows(name, **wanted)]
        return sum(values) if values else None

    def by(self, label: str, name: str, **wanted: str) -> dict[str, float]:
        """Sums by the values of one label."""
        sums: dict[str, float] = defaultdict(float)
        for labels, value in self.rows(name, **wanted):
            sums[labels.get(label, "")] += value
        return dict(sums)


def parse(text: str) -> Series:
    """Samples of a text exposition (format 0.0.4) by name and labels; label values stay escaped."""
    series: Series = {}
    for line in text.splitlines():
        if match := _LINE.match(line):
            name, labels, value = match.groups()
            series[name, frozenset(_LABEL.findall(labels or ""))] = float(value)
    return series


def quantile(q: float, buckets: Mapping[float, float]) -> float | None:
    """The q-quantile of cumulated counts by upper bound, interpolated as Prometheus does; None without observations."""
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    rank = q * buckets[bounds[-1]]
    below, lower = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= rank:
            if bound == float("inf"):
                return lower
            here = buckets[bound] - below
            return lower + (bound - lower) * (rank - below) / here if here else bound
        below, lower = buckets[bound], bound
    return lower


@dataclass
class Summary:
    """Turns scrapes into lines about one process, and the `ranks` of an NCCL job, for a person.

    Rates are between the last two scrapes, costs since the first one.
    """

    pid: str
    ranks: Collection[str] = ()
    history: list[float] = field(default_factory=list)
    first: Scrape | None = None
    last: Scrape | None = None

    def update(self, now: Scrape) -> dict[str, str]:
        """Return the texts beside each heading, in the order shown."""
        before, self.last = self.last or now, now
        self.first = self.first or now
        rate = _rates(before, now)
        launches = rate(LAUNCHES, pid=self.pid, api_layer="driver")
        if launches is not None:
            self.history = [*self.history[-31:], launches]
        return {
            "launches/s": f"{_count(launches):<12} {_spark(self.history)}",
            "in use": _listed(now.by("memory", USAGE, pid=self.pid, api_layer="driver"), _bytes),
            "copies/s": _copies(before, now, self.pid),
            "waits": _waits(before, now, self.pid),
            "errors": _listed(now.by("api", ERRORS, pid=self.pid), _count),
            **_gpus(now),
            "its share": _share(now, self.pid),
            "Xids": _xids(now),
            "NCCL": _collectives(rate, self.ranks),
            "ranks late by": _lags(before, now, self.ranks),
            "probes": _probes(now),
            "exporter": _exporter(_rates(self.first, now), now),
            "the jobs pay": _overhead(_rates(self.first, now)),
        }


def one_line(facts: Mapping[str, str]) -> str:
    """The same for a log file or a pipe: one line a scrape."""
    return " | ".join(f"{heading} {' '.join(text.strip(_BARS + ' ').split())}" for heading, text in facts.items())


def _rates(before: Scrape, now: Scrape) -> Callable[..., float | None]:
    def rate(name: str, **wanted: str) -> float | None:
        elapsed, total = now.at - before.at, now.total(name, **wanted)
        if total is None or elapsed <= 0:
            return None
        return max(0.0, total - (before.total(name, **wanted) or 0.0)) / elapsed

    return rate


def _copies(before: Scrape, now: Scrape, pid: str) -> str:
    elapsed = now.at - before.at
    then = _by_route(before.rows(COPIED, pid=pid))
    moved = {route: value - then.get(route, 0.0) for route, value in _by_route(now.rows(COPIED, pid=pid)).items()}
    return _listed({route: value / elapsed for route, value in moved.items() if value > 0 and elapsed > 0}, _bytes)


def _by_route(rows: Iterable[tuple[Mapping[str, str], float]]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for labels, value in rows:
        sums[" ".join(labels[name] for name in ("direction", "host_memory") if name in labels)] += value
    return sums


def _waits(before: Scrape, now: Scrape, pid: str) -> str:
    shown = []
    # The runtime's calls wait inside the driver's: one of the two is enough.
    for api in sorted(
        {labels["api"] for labels, _ in now.rows(WAITS, pid=pid) if not labels["api"].startswith("cuda")}
    ):
        then = before.by("le", WAITS, pid=pid, api=api) if before is not now else {}
        buckets = {float(le): count - then.get(le, 0.0) for le, count in now.by("le", WAITS, pid=pid, api=api).items()}
        p50, p99 = quantile(0.5, buckets), quantile(0.99, buckets)
        if p50 is not None and p99 is not None:
            shown.append(f"{api} p50 {_seconds(p50)} p99 {_seconds(p99)}")
    return " · ".join(shown) or "-"


def _gpus(now: Scrape) -> dict[str, str]:
    """A line for each GPU, by its heading."""
    gpus = sorted({labels["gpu"] for labels, _ in now.rows("hw_status") if labels.get("gpu", "").isdigit()}, key=int)
    return {f"GPU {gpu}": _gpu(now, gpu) for gpu in gpus}


def _gpu(now: Scrape, gpu: str) -> str:
    used, limit = now.total("hw_gpu_memory_usage_bytes", gpu=gpu), now.total("hw_gpu_memory_limit_bytes", gpu=gpu)
    parts = {
        "use {:.0%}": now.total("hw_gpu_utilization_ratio", gpu=gpu, task="general"),
        "tensor {:.0%}": now.total("gpu_tensor_active_ratio", gpu=gpu),
        "{:.0f} W": now.total("hw_power_watts", gpu=gpu),
        "{:.0f} °C": now.total("hw_temperature_celsius", gpu=gpu, sensor="gpu"),
    }
    shown = [text.format(value) for text, value in parts.items() if value is not None]
    if used is not None and limit is not None:
        shown.insert(1, f"memory {_bytes(used)} of {_bytes(limit)}")
    states = [labels["state"] for labels, value in now.rows("hw_status", gpu=gpu) if value and labels["state"] != "ok"]
    return " · ".join([*states, *shown]) or "-"


def _share(now: Scrape, pid: str) -> str:
    """Return the job's share of the GPUs by NVML: memory in bytes, and utilization of engines."""
    memory = now.total("gpu_process_memory_usage_bytes", pid=pid)
    shown = [f"memory {_bytes(memory)}"] if memory is not None else []
    engines = {labels["engine"]: value for labels, value in now.rows("gpu_process_utilization_ratio", pid=pid)}
    shown += [f"{engine} {engines[engine]:.0%}" for engine in ("sm", "memory") if engine in engines]
    return " · ".join(shown) or "-"


def _xids(now: Scrape) -> str:
    seen = {
        (labels["xid"], labels["action"], labels["gpu"]): value for labels, value in now.rows(XIDS) if "gpu" in labels
    }
    return (
        " · ".join(f"{xid} on GPU {gpu}: {action} ({_count(it)})" for (xid, action, gpu), it in seen.items() if it)
        or "-"
    )


def _collectives(rate: Callable[..., float | None], ranks: Collection[str]) -> str:
    calls, moved = ([rate(name, pid=pid) or 0 for pid in ranks] for name in (COLLECTIVES, MOVED))
    if not any(calls):
        return "-"
    return f"{len(ranks)} ranks · {_count(sum(calls))} collectives/s · bus {_bytes(max(moved))}/s a rank"


def _lags(before: Scrape, now: Scrape, ranks: Collection[str]) -> str:
    """Return by how many seconds each rank was later than the first one since the scrape before, on average."""
    shown = {}
    for pid in ranks:
        seconds, calls = (
            (now.total(f"{LAG}_{part}", pid=pid) or 0) - (before.total(f"{LAG}_{part}", pid=pid) or 0)
            for part in ("sum", "count")
        )
        rank = next((labels["rank"] for labels, _ in now.rows(f"{LAG}_count", pid=pid)), "")
        if calls > 0:
            shown[f"rank {rank}"] = seconds / calls
    return _listed(shown, _seconds)


def _probes(now: Scrape) -> str:
    attached = [labels for labels, value in now.rows("accel_exporter_probe_attached") if value]
    places: dict[str, float] = defaultdict(float)
    for labels in attached:
        places[labels.get("placement", "?")] += 1
    libraries = len({labels.get("library") for labels in attached})
    return f"{len(attached)} attached in {libraries} libraries ({_listed(places, _count)})" if attached else "-"


def _exporter(rate: Callable[..., float | None], now: Scrape) -> str:
    parts = [f"scrape {_seconds(now.seconds)}", f"{len(now.series):,} series"]
    if (resident := now.total("process_resident_memory_bytes")) is not None:
        parts.append(f"{_bytes(resident)} resident")
    if (busy := rate("process_cpu_seconds_total")) is not None:
        parts.append(f"{busy:.1%} of a core")
    return " · ".join(parts)


def _overhead(rate: Callable[..., float | None]) -> str:
    share = rate("accel_exporter_overhead_seconds_total")
    return "-" if share is None else f"{share:.2%} of a core for being probed (hits times the cost measured at start)"


def _listed(values: Mapping[str, float], show: Callable[[float], str]) -> str:
    return " · ".join(f"{name} {show(value)}" for name, value in sorted(values.items())) or "-"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _seconds(value: float) -> str:
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"


def _spark(values: list[float]) -> str:
    top = max(values, default=0.0) or 1.0
    return "".join(_BARS[round(value / top * (len(_BARS) - 1))] for value in values)
