"""Tables of the page at / about jobs: processes, and ranks of NCCL communicators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from exporter.history import WINDOW, Key, Recent
from exporter.model import Distribution, Sample
from exporter.views.html import (
    MOST_ROWS,
    UNKNOWN,
    Column,
    ago,
    amount,
    cell,
    count,
    duration,
    more,
    plotted,
    section,
    short,
    size,
)
from exporter.views.landing_plots import BYTES, COLLECTIVES, LAUNCHES, SENT
from exporter.views.landing_samples import NamedSamples, none_seen, number
from exporter.views.spark import spark

_CALLS = {"CUDA": "cuda", "NCCL": "nccl", "RDMA": "verbs"}
"""The collector of the calls of each API."""


@dataclass(slots=True)
class JobProcess:
    """Observed activity of one process; None where nothing is known."""

    labels: Mapping[str, str]
    gpus: set[str] = field(default_factory=set)
    bytes: float | None = None
    whole: bool = True
    """True if all allocations of the process were seen; else `bytes` is a lower bound of its allocated bytes."""
    resident: float | None = None
    """Bytes of GPU memory by NVML."""
    launches: float | None = None
    last_launch: float | None = None
    waits: int = 0
    waited: float = 0
    errors: float | None = None
    collectives: float | None = None
    sent: float | None = None

    @property
    def seen(self) -> bool:
        """Return whether it did anything besides having a library."""
        known = (self.bytes, self.resident, self.launches, self.errors, self.collectives, self.sent)
        return bool(self.waits) or any(it is not None for it in known)


def processes(named: NamedSamples) -> dict[str, JobProcess]:
    """The processes that were seen doing something, by pid."""
    found: dict[str, JobProcess] = {}

    def of(name: str) -> Iterable[tuple[JobProcess, Sample]]:
        for sample in named.of_processes(name):
            process = found.setdefault(sample.labels["pid"], JobProcess(sample.labels))
            process.gpus.add(sample.labels.get("gpu", ""))
            yield process, sample

    for process, sample in of("gpu.cuda.memory.usage"):
        process.bytes = (process.bytes or 0) + number(sample)
    for process, sample in of("gpu.cuda.seen_from_start"):
        process.whole = bool(number(sample))
    for process, sample in of("gpu.process.memory.usage"):
        process.resident = (process.resident or 0) + number(sample)
    for process, sample in of("gpu.cuda.kernel.launch.calls"):
        process.launches = (process.launches or 0) + number(sample)
    for process, sample in of("gpu.cuda.api.errors"):
        process.errors = (process.errors or 0) + number(sample)
    for process, sample in of("gpu.cuda.last_launch.timestamp"):
        process.last_launch = max(process.last_launch or 0, number(sample))
    for process, sample in of("nccl.collective.calls"):
        process.collectives = (process.collectives or 0) + number(sample)
    for process, sample in of("rdma.send"):
        process.sent = (process.sent or 0) + number(sample)
    for process, sample in of("gpu.cuda.sync_wait"):
        if isinstance(sample.value, Distribution):
            process.waits += sum(sample.value.counts)
            process.waited += sample.value.sum
    return {pid: it for pid, it in found.items() if it.seen}


def process_table(named: NamedSamples, found: Mapping[str, JobProcess], recent: Recent) -> str:
    ranked = sorted(found.items(), key=lambda item: _rank(*item))
    shown = ranked[:MOST_ROWS]
    own = [it for _, it in shown]
    columns = (
        Column("pid", [cell(pid, "n") for pid, _ in shown], numbers=True),
        Column("name", [cell(it.labels.get("comm", ""), "m") for it in own]),
        Column("where", [short(where(it.labels)) for it in own]),
        Column("GPU", [amount(", ".join(sorted(filter(None, it.gpus))) or None) for it in own], True, optional=True),
        Column("allocated", [_plot(recent, (BYTES, pid), "allocated", _allocated(it)) for pid, it in shown], True),
        Column("GPU memory", [amount(None if it.resident is None else size(it.resident)) for it in own], True, True),
        Column("launches/s", [_rate(recent, (LAUNCHES, pid), "launches", it.launches) for pid, it in shown], True),
        Column("launches", [amount(None if it.launches is None else count(it.launches)) for it in own], True),
        Column("last launch", [amount(ago(it.last_launch) if it.last_launch else None) for it in own], True),
        Column("waited", [amount(_waited(it)) for it in own], True),
        Column("errors", [amount(_errors(it)) for it in own], True),
        Column(
            "NCCL calls/s",
            [_bare(recent, (COLLECTIVES, pid), it.collectives, count) for pid, it in shown],
            True,
            optional=True,
        ),
        Column("RDMA sent/s", [_bare(recent, (SENT, pid), it.sent, size) for pid, it in shown], True, optional=True),
    )
    return section(
        "Processes",
        columns,
        _nobody(named),
        more(len(ranked), "processes"),
        period(recent),
    )


def watched(named: NamedSamples) -> list[str]:
    """Return the APIs of which calls are seen here."""
    return [api for api, collector in _CALLS.items() if named.healthy(collector)]


def _nobody(named: NamedSamples) -> str:
    """Return what stands in place of the table: which API nobody called, and of which nothing is known."""
    seen = watched(named)
    unknown = [api for api in _CALLS if api not in seen]
    sentences = [f"No calls of {_either(seen)} were seen."] if seen else []
    if unknown:
        sentences.append(f"Unknown: calls of {_either(unknown)}. Their collectors do not work.")
    return " ".join(sentences)


def _either(names: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def period(recent: Recent) -> str:
    """Over what time the rates are, as a note beside a heading."""
    return f"rates of the last {duration(recent.seconds)}" if recent.seconds else "rates follow within seconds"


def where(labels: Mapping[str, str]) -> str:
    """Return where a process runs: in a pod, a Slurm job, a container, else on the host."""
    if labels.get("pod"):
        return "/".join(filter(None, (labels.get("namespace"), labels["pod"], labels.get("container"))))
    if labels.get("slurm_job_id"):
        return f"Slurm job {labels['slurm_job_id']}"
    return f"container {labels['container_id'][:12]}" if labels.get("container_id") else "host"


def _rank(pid: str, process: JobProcess) -> tuple[float, float, float, float, str]:
    return (
        -(process.bytes or process.resident or 0),
        -(process.launches or 0),
        -(process.sent or 0),
        -(process.collectives or 0),
        pid,
    )


def _allocated(process: JobProcess) -> str:
    return UNKNOWN if process.bytes is None else ("" if process.whole else "≥ ") + size(process.bytes)


def _errors(process: JobProcess) -> str | None:
    """Errors of CUDA: none seen is 0 where calls of CUDA were seen."""
    seen = process.launches is not None or process.bytes is not None or bool(process.waits)
    return count(process.errors or 0) if seen or process.errors else None


def _waited(process: JobProcess) -> str | None:
    return f"{duration(process.waited)} in {count(process.waits)}" if process.waits else None


def _plot(recent: Recent, key: Key, what: str, text: str) -> str:
    if text == UNKNOWN:
        return amount(None)
    return plotted(spark(recent.plots.get(key, ()), WINDOW, what, size), text)


def _rate(recent: Recent, key: Key, what: str, known: float | None) -> str:
    if known is None or key not in recent.rates:
        return amount(None)
    return plotted(spark(recent.plots.get(key, ()), WINDOW, f"{what} a second", count), count(recent.rates[key]))


def _bare(recent: Recent, key: Key, known: float | None, text: Callable[[float], str]) -> str:
    """Return a rate without a plot; another table has the plot."""
    return amount(None if known is None or key not in recent.rates else text(recent.rates[key]))


def rank_table(named: NamedSamples, recent: Recent) -> str:
    """The ranks on this node of every communicator, the latest first where the lag is known."""
    lags = {_place(it): it.value for it in named.all("nccl.rank.arrival_lag") if isinstance(it.value, Distribution)}
    behind = {_place(it): number(it) for it in named.all("nccl.rank.calls_behind")}
    errors = Counter[str]()
    for sample in named.all("nccl.errors"):
        errors[_pid(sample)] += int(number(sample))
    last = {_pid(it): number(it) for it in named.all("nccl.last_call.timestamp")}
    ranks = sorted(named.all("nccl.communicator.info"), key=_order)
    shown = ranks[:MOST_ROWS]
    lateness = [_mean(lags.get(_place(it))) for it in shown]
    late = [amount(None if lag is None else duration(lag)) for lag in lateness]
    steps = [behind.get(_place(it)) for it in shown]
    columns = (
        Column("communicator", [cell(it.labels.get("comm_hash", "")[:20], "m w") for it in shown]),
        Column(
            "rank", [cell(f"{it.labels.get('rank', '?')} of {it.labels.get('nranks', '?')}", "n") for it in shown], True
        ),
        Column("pid", [cell(_pid(it), "n") for it in shown], True),
        Column("name", [cell(it.labels.get("comm", ""), "m") for it in shown]),
        Column("where", [short(where(it.labels)) for it in shown]),
        Column("GPU", [amount(it.labels.get("gpu") or None) for it in shown], True, optional=True),
        Column("collectives/s", [_rate(recent, (COLLECTIVES, _pid(it)), "collectives", 0.0) for it in shown], True),
        Column("arrives late by (mean)", late, True),
        Column("calls behind", [amount(None if step is None else count(step)) for step in steps], True),
        Column("last call", [amount(ago(last[_pid(it)]) if _pid(it) in last else None) for it in shown], True),
        Column("errors", [amount(count(errors[_pid(it)])) for it in shown], True),
    )
    return section(
        "NCCL communicators",
        columns,
        none_seen(named, "nccl", "No communicator was seen."),
        more(len(ranks), "ranks"),
        "collectives of the whole process; lag against the first rank on this node",
        "nccl",
    )


def _pid(sample: Sample) -> str:
    return sample.labels.get("pid", "")


def _place(sample: Sample) -> tuple[str, str, str]:
    return _pid(sample), sample.labels.get("comm_hash", ""), sample.labels.get("rank", "")


def _order(sample: Sample) -> tuple[str, int, str]:
    rank = sample.labels.get("rank", "")
    return sample.labels.get("comm_hash", ""), int(rank) if rank.isdecimal() else 0, _pid(sample)


def _mean(lag: Distribution | None) -> float | None:
    return lag.sum / sum(lag.counts) if lag and sum(lag.counts) else None
