"""The exporter itself: is it whole, what does it miss, what does it cost."""

from __future__ import annotations

from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.labels import legend
from dashboards.parts import DETAIL, FULL, THIRD, Query, board, lines, number, rate, rows, select, total

ATTACHED = select("accel_exporter_probe_attached")
OVERHEAD = rate("accel_exporter_overhead_seconds_total")


def of_rate(title: str, description: str, unit: str, metric: str, *labels: str) -> timeseries.Panel:
    """Return a third of a row: the rate of a counter by these labels and exporter."""
    query = Query(total(rate(metric), "instance", *labels), legend(*labels, "instance"))
    return lines(title, description, unit, query, width=THIRD)


OVERVIEW = [
    number(
        "Exporters up",
        "Share of the chosen exporters that answered the last scrape.",
        "percentunit",
        Query(f"avg({select('up')})"),
        alarm=1,
        below=True,
    ),
    number(
        "Collectors failing",
        "Available collectors with a last run that failed or was late.",
        "short",
        Query(
            f"count({select('accel_exporter_collector_success')} == 0 "
            "unless on (job, cluster, instance, collector) "
            f"{select('accel_exporter_collector_available')} == 0) or vector(0)"
        ),
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
        "Calls times the cost of a call: time taken from the observed processes, in cores.",
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
        alarm=1,
        below=True,
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
        alarm=2,
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
        "Calls of probed functions; and calls made on a signal handler's stack inside another call, where the return "
        "is not probed: these are counted without bytes, waits and errors.",
        "ops",
        Query(total(rate("accel_exporter_probe_hits_total"), "probe"), "{{probe}}"),
        Query(total(rate("accel_exporter_probe_returns_skipped_total"), "probe"), "{{probe}}, return not probed"),
        width=THIRD,
    ),
    lines(
        "Functions a library does not have",
        "Functions the probe knows that are not in the library: an older or newer version. Not a fault.",
        "short",
        Query(f"max by (probe, library) ({select('accel_exporter_probe_symbols_missing')})", "{{probe}} {{library}}"),
        width=THIRD,
    ),
    lines(
        "Functions not covered",
        "Functions of the library that look as if the probe should count them, and are in none of its tables.",
        "short",
        Query(f"max by (probe, library) ({select('accel_exporter_probe_symbols_uncovered')})", "{{probe}} {{library}}"),
        width=THIRD,
    ),
    lines(
        "Cost of one hit",
        "Measured when the exporter started: the least time that a hit of a small probe takes from the probed thread.",
        "s",
        Query(
            f"max by (instance, placement, returns) ({select('accel_exporter_probe_hit_cost_seconds')})",
            "{{placement}} {{returns}} {{instance}}",
        ),
        width=THIRD,
    ),
    lines(
        "Time until a library is probed",
        "From the moment a process mapped a library until probes were in it; 99th percentile.",
        "s",
        Query(
            f"histogram_quantile(0.99, {total(rate('accel_exporter_discovery_seconds_bucket'), 'le', 'instance')})",
            "{{instance}}",
        ),
        width=THIRD,
    ),
    lines(
        "Processes of probed libraries",
        "Running processes that have a probed library of this name mapped.",
        "short",
        Query(total(select("accel_exporter_library_processes"), "instance", "library"), "{{library}} {{instance}}"),
        width=THIRD,
    ),
    lines(
        "Libraries not probed",
        "Libraries in use that are not probed: too many (limit, share, descriptors), or attaching failed (error). "
        "Each try counts.",
        "cps",
        Query(total(rate("accel_exporter_libraries_refused_total"), "instance", "reason"), "{{reason}} {{instance}}"),
        width=THIRD,
    ),
    lines(
        "Processes found late",
        "Found by the periodic scan of all processes, because their events were lost: their first calls are not "
        "counted.",
        "cps",
        Query(total(rate("accel_exporter_discovery_late_total"), "instance"), "{{instance}}"),
        width=THIRD,
    ),
    rows(
        "Probes not attached",
        "Functions that processes call and that are not counted. The exporter's log and landing page have the reasons.",
        "short",
        {"instance": "Instance", "probe": "Probe", "library": "Library", "symbol": "Function"},
        Query(f"min by (instance, probe, library, symbol) ({ATTACHED}) == 0", "Attached"),
    ),
]

COST = [
    lines(
        "Overhead in the observed processes",
        "Calls times the cost of a call on that machine, in cores.",
        "percentunit",
        Query(total(OVERHEAD, "instance", "probe"), "{{probe}} {{instance}}"),
        width=THIRD,
        alarm=0.01,
    ),
    lines(
        "Bound used by the worst process",
        "Cost of a probe in the process for which it is highest, in parts of what --overhead.max-ratio allows; of "
        "the node that of all processes, in parts of --overhead.max-cores.",
        "percentunit",
        Query(
            f"max by (instance, probe) ({select('accel_exporter_overhead_budget_used_ratio')})",
            "{{probe}} {{instance}}",
        ),
        Query(f"max by (instance) ({select('accel_exporter_overhead_node_used_ratio')})", "node {{instance}}"),
        width=THIRD,
        alarm=2,
    ),
    lines(
        "Probed in windows",
        "Share of the time for which calls are probed, of functions below 100 %: their counts are estimates or absent, "
        "to keep the bound.",
        "percentunit",
        Query(
            f"min by (instance, symbol, library) ({select('accel_exporter_probe_sampled_ratio')}) < 1",
            "{{symbol}} {{library}} {{instance}}",
        ),
        width=THIRD,
    ),
    of_rate(
        "Time in the BPF programs",
        "Measured by the kernel, in cores, without the trap; only while BPF statistics are on.",
        "percentunit",
        "accel_exporter_probe_run_seconds_total",
        "probe",
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
        alarm=192 * 2**20,
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
        "Series in each answer to Prometheus.",
        "short",
        Query(select("scrape_samples_scraped"), "{{instance}}"),
        width=THIRD,
    ),
]

LOSSES = [
    of_rate(
        "Events lost",
        "Events a full ring buffer or map had no room for. Counters in maps are not affected by a full ring.",
        "eps",
        "accel_exporter_events_lost_total",
        "stream",
    ),
    of_rate(
        "Spans dropped",
        "Spans that were created and not delivered, by reason.",
        "eps",
        "accel_exporter_spans_dropped_total",
        "reason",
    ),
    of_rate(
        "Ended processes folded",
        "Processes that left the page early, as over 1,024 ended; their counts are in series labelled overflow.",
        "cps",
        "accel_exporter_ended_processes_folded_total",
        "collector",
    ),
    of_rate(
        "Log lines dropped",
        "Lines beyond the rate limit of one place in the code, or that a stopped reader of the log did not take.",
        "cps",
        "accel_exporter_log_lines_dropped_total",
        "reason",
    ),
    of_rate(
        "Keys without room in a map",
        "Processes, functions or codes with counts that a full BPF map could not take.",
        "cps",
        "accel_exporter_map_full_total",
        "map",
    ),
    lines(
        "OTLP requests",
        "Requests with metrics and with spans, and those the endpoint did not take after retries.",
        "reqps",
        Query(total(rate("accel_exporter_otlp_exports_total"), "instance", "signal"), "{{signal}} {{instance}}"),
        Query(
            total(rate("accel_exporter_otlp_exports_failed_total"), "instance", "signal"),
            "{{signal}} failed {{instance}}",
        ),
        width=THIRD,
    ),
    of_rate(
        "Samples dropped",
        "Samples that repeat a series or have no valid form: a collector's defect.",
        "cps",
        "accel_exporter_samples_dropped_total",
        "reason",
    ),
    lines(
        "Pods left out",
        "Pods that the last reading of the kubelet or of the list of pods omitted because of an invalid name or label.",
        "short",
        Query(f"max by (instance, source) ({select('accel_exporter_allocation_invalid')})", "{{source}} {{instance}}"),
        width=THIRD,
    ),
    of_rate(
        "Series folded",
        "Series over a collector's limit or that of the page, folded into the one labelled overflow.",
        "cps",
        "accel_exporter_series_folded_total",
        "collector",
    ),
    lines(
        "Series by collector",
        "Lines of /metrics of each collector's last run; a bucket of a histogram is one.",
        "short",
        Query(
            f"max by (instance, collector) ({select('accel_exporter_collector_series')})", "{{collector}} {{instance}}"
        ),
        width=THIRD,
    ),
    lines(
        "Series of a page, of its limit",
        "Lines of the last answer as a share of --web.series-limit: at four fifths series begin to be folded.",
        "percentunit",
        Query(
            f"{select('accel_exporter_page_series')} / on (job, cluster, instance) group_left () "
            + select("accel_exporter_series_limit", 'collector="page"'),
            "{{instance}}",
        ),
        width=THIRD,
        alarm=0.8,
    ),
    lines(
        "Stacks without frames",
        "Stacks without frames, by reason, and stacks without their outermost frames. Only with --web.enable-profiles.",
        "cps",
        Query(total(rate("gpu_profile_stacks_dropped_total"), "instance", "reason"), "{{reason}} {{instance}}"),
        Query(
            total(rate("gpu_profile_stacks_truncated_total"), "instance", "reason"),
            "truncated, {{reason}} {{instance}}",
        ),
        width=THIRD,
    ),
    lines(
        "Time to write a page",
        "Limit, text and compression of the last answer to Prometheus; collectors not included.",
        "s",
        Query(select("accel_exporter_page_render_time_seconds"), "{{instance}}"),
        width=THIRD,
    ),
]

CUSTOM = [
    lines(
        "Custom probes running",
        "1 while a custom probe is compiled, loaded and read. The exporter's landing page has the reason for a 0.",
        "short",
        Query(f"min by (instance, probe) ({select('accel_exporter_custom_up')})", "{{probe}} {{instance}}"),
        width=THIRD,
        alarm=1,
        below=True,
    ),
    lines(
        "Map usage of custom probes",
        "Keys in a map over its capacity; at 100 % new keys are not counted.",
        "percentunit",
        Query(
            f"max by (instance, probe, map) ({select('accel_exporter_custom_map_entries')} "
            f"/ {select('accel_exporter_custom_map_max_entries')})",
            "{{probe}} {{map}} {{instance}}",
        ),
        width=THIRD,
        alarm=0.9,
    ),
    lines(
        "Losses of custom probes",
        "Losses that the probes' programs report, and records beyond the limit of spans per second.",
        "eps",
        Query(total(rate("accel_exporter_custom_lost_total"), "instance", "probe"), "{{probe}} {{instance}}"),
        Query(
            total(rate("accel_exporter_custom_records_limited_total"), "instance", "probe"),
            "{{probe}} over the limit {{instance}}",
        ),
        width=THIRD,
    ),
    lines(
        "Time in custom programs",
        "Time that the BPF programs of custom probes take from other processes, in cores.",
        "percentunit",
        Query(
            total(rate("accel_exporter_probe_run_seconds_total", 'probe=~"custom_.*"'), "instance", "probe"),
            "{{probe}} {{instance}}",
        ),
        width=THIRD,
    ),
    of_rate(
        "CPU of custom probes",
        "Compiling and reading, in cores.",
        "percentunit",
        "accel_exporter_custom_cpu_seconds_total",
        "probe",
    ),
    lines(
        "Memory of custom probes",
        "Resident memory; most of it is the compiler.",
        "bytes",
        Query(
            total(select("accel_exporter_custom_memory_resident_bytes"), "instance", "probe"), "{{probe}} {{instance}}"
        ),
        width=THIRD,
    ),
]


DETAILS = [
    lines(
        "Hits by function",
        "How often each probed function was called: the fifteen most frequent.",
        "ops",
        Query(f"topk(15, {total(rate('accel_exporter_probe_hits_total'), 'probe', 'symbol')})", "{{symbol}}"),
        width=FULL,
    ),
]


def dashboard() -> Dashboard:
    return board(
        "accel-exporter",
        "Accelerator exporter",
        "Completeness and overhead of the exporter. Its collectors, probes, losses and overhead.",
        [],
        {
            "Overview": OVERVIEW,
            "Collectors": COLLECTORS,
            "Probes": PROBES,
            "Cost": COST,
            "Losses": LOSSES,
            "Custom probes": CUSTOM,
            DETAIL: DETAILS,
        },
    )
