"""The exporter itself: is it whole, what does it miss, what does it cost."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.parts import THIRD, Query, board, lines, number, rate, rows, select, total

ATTACHED = select("accel_exporter_probe_attached")
OVERHEAD = rate("accel_exporter_overhead_seconds_total")

OVERVIEW = [
    number(
        "Exporters up",
        "Exporters that answered the last scrape, of those chosen.",
        "percentunit",
        Query(f"avg({select('up')})"),
        alarm=1,
        below=True,
    ),
    number(
        "Collectors failing",
        "Collectors whose last run failed or was late.",
        "short",
        Query(f"count({select('accel_exporter_collector_success')} == 0) or vector(0)"),
        alarm=1,
    ),
    number(
        "Probes not attached",
        "Functions that exist in a library in use and could not be probed.",
        "short",
        Query(f"count({ATTACHED} == 0) or vector(0)"),
        alarm=1,
    ),
    number(
        "Events lost",
        "Events the kernel had no room for, per second.",
        "eps",
        Query(total(rate("accel_exporter_events_lost_total"))),
        alarm=0.001,
    ),
    number(
        "Overhead, worst node",
        "Hits times the calibrated cost of one hit: time taken from the observed processes, in cores.",
        "percentunit",
        Query(f"max({total(OVERHEAD, 'instance')})"),
        alarm=0.01,
    ),
    number(
        "Configuration loaded",
        "Whether the last reload of the configuration succeeded on every exporter.",
        "bool_yes_no",
        Query(f"min({select('accel_exporter_config_last_reload_successful')})"),
        alarm=1,
        below=True,
    ),
]

COLLECTORS = [
    lines(
        "Collector success",
        "1 where the collector's last run succeeded. 0: failed or late, and its samples are missing from the scrape.",
        "short",
        Query(
            f"min by (instance, collector) ({select('accel_exporter_collector_success')})", "{{collector}} {{instance}}"
        ),
        width=THIRD,
    ),
    lines(
        "Collector duration",
        "How long each collector's last run took.",
        "s",
        Query(
            f"max by (instance, collector) ({select('accel_exporter_collector_duration_seconds')})",
            "{{collector}} {{instance}}",
        ),
        width=THIRD,
    ),
    lines(
        "Scrape duration",
        "As Prometheus measured it, network included.",
        "s",
        Query(select("scrape_duration_seconds"), "{{instance}}"),
        width=THIRD,
    ),
]

PROBES = [
    lines(
        "Probes attached",
        "Probed functions in libraries that processes use, by how the probe is placed. Stepped ones cost about fifteen "
        "times as much as emulated ones.",
        "short",
        Query(f"{total(ATTACHED, 'instance', 'placement')}", "{{placement}} {{instance}}"),
        width=THIRD,
    ),
    lines(
        "Hits",
        "How often each probed function was called.",
        "ops",
        Query(f"topk(15, {total(rate('accel_exporter_probe_hits_total'), 'probe', 'symbol')})", "{{symbol}}"),
        width=THIRD,
    ),
    lines(
        "Functions a library does not have",
        "Functions the probe knows that are not in the library: an older or newer version. Not a fault.",
        "short",
        Query(f"max by (probe, library) ({select('accel_exporter_probe_symbols_missing')})", "{{probe}} {{library}}"),
        width=THIRD,
    ),
    rows(
        "Probes not attached",
        "What is called by processes and not seen. The exporter's log and landing page say why.",
        "short",
        {"instance": "Instance", "probe": "Probe", "library": "Library", "symbol": "Function"},
        Query(f"min by (instance, probe, library, symbol) ({ATTACHED}) == 0", "Attached"),
    ),
]

COST = [
    lines(
        "Overhead in the observed processes",
        "Hits times the calibrated cost of one hit on that machine, in cores.",
        "percentunit",
        Query(total(OVERHEAD, "instance", "probe"), "{{probe}} {{instance}}"),
        width=THIRD,
    ),
    lines(
        "Time in the BPF programs",
        "Measured by the kernel, without the trap; only while BPF statistics are on.",
        "percentunit",
        Query(total(rate("accel_exporter_probe_run_seconds_total"), "instance", "probe"), "{{probe}} {{instance}}"),
        width=THIRD,
    ),
    lines(
        "CPU of the exporter",
        "User and system time of the exporter's process, in cores.",
        "percentunit",
        Query(rate("process_cpu_seconds_total"), "{{instance}}"),
        width=THIRD,
    ),
    lines(
        "Memory of the exporter",
        "Resident memory of the exporter's process.",
        "bytes",
        Query(select("process_resident_memory_bytes"), "{{instance}}"),
        width=THIRD,
    ),
    lines(
        "Open files of the exporter",
        "File descriptors; one for each probe, map and library.",
        "short",
        Query(select("process_open_fds"), "{{instance}}"),
        width=THIRD,
    ),
    lines(
        "Samples per scrape",
        "Series the exporter gave to Prometheus.",
        "short",
        Query(select("scrape_samples_scraped"), "{{instance}}"),
        width=THIRD,
    ),
]

LOSSES = [
    lines(
        "Events lost",
        "Events a full ring buffer or map had no room for. Counters in maps are not affected by a full ring.",
        "eps",
        Query(total(rate("accel_exporter_events_lost_total"), "instance", "stream"), "{{stream}} {{instance}}"),
        width=THIRD,
    ),
    lines(
        "Spans dropped",
        "Spans that were made and not delivered, by reason.",
        "eps",
        Query(total(rate("accel_exporter_spans_dropped_total"), "instance", "reason"), "{{reason}} {{instance}}"),
        width=THIRD,
    ),
    lines(
        "Series folded",
        "Series over a collector's limit, folded into the one labelled overflow.",
        "cps",
        Query(total(rate("accel_exporter_series_folded_total"), "instance", "collector"), "{{collector}} {{instance}}"),
        width=THIRD,
    ),
]


def dashboard() -> Dashboard:
    return board(
        "accel-exporter",
        "Accelerator exporter",
        "The exporter's own health: collectors, probes, losses and cost.",
        [],
        {"Overview": OVERVIEW, "Collectors": COLLECTORS, "Probes": PROBES, "Cost": COST, "Losses": LOSSES},
    )
