"""The exporter's own options, one by one; those of collectors are in each collector's FLAGS."""

from __future__ import annotations

from exporter import log
from exporter.kmsg.kernel_log import KmsgSettings
from exporter.options import Option, formerly
from exporter.otlp import PROTOCOLS, OtlpSettings
from exporter.profile import PROFILES
from exporter.server import WebSettings

GROUPS = {
    "general": "General",
    "web": "HTTP surface",
    "otlp": "OTLP push (the standard OTEL_* variables count too)",
    "log": "Logging",
    "overhead": "What probes may cost the observed processes",
    "path": "Where this node's files are",
    "kmsg": "Kernel log",
    "collectors": "Collectors",
    "allocation": "Allocation of GPUs to pods and jobs",
    "custom": "Custom probes, compiled by bcc",
    "dcgm": "Replacing dcgm-exporter, and running beside DCGM",
}

_WEB, _OTLP, _KMSG = WebSettings(), OtlpSettings(), KmsgSettings()

OPTIONS = (
    Option(
        "config.file",
        "",
        "YAML file with any of these settings; dots in names become nesting. Empty: none.",
        "general",
        metavar="FILE",
    ),
    Option(
        "profile",
        "node",
        "Set of series: node has at most 3,000 for a node with 8 GPUs and 8 NICs, debug all 22,000, fleet 1,200. "
        "/metrics?profile= selects a smaller set.",
        "general",
        choices=PROFILES,
    ),
    Option(
        "bpf.return-probes",
        True,
        "Probe where functions return. Without these probes calls are counted; their waits, errors, bytes and "
        "allocations are absent.",
        "general",
    ),
    Option(
        "bpf.stats", False, "Enable the kernel's run-time statistics of BPF programs, at about 25 ns a hit.", "general"
    ),
    Option("privileges.keep", False, "Keep all capabilities, including those that no probe needs.", "general"),
    Option(
        "web.listen-address",
        _WEB.listen_address,
        "Address to serve on, as host:port, [IPv6]:port or :port. May be repeated.",
        "web",
        metavar="ADDRESS",
    ),
    Option("web.systemd-socket", _WEB.systemd_socket, "Serve on the sockets that systemd's socket unit opened.", "web"),
    Option(
        "web.config.file",
        _WEB.config_file,
        "File with TLS and basic auth, in the format of Prometheus' exporter-toolkit. Empty: none.",
        "web",
        metavar="FILE",
    ),
    Option(
        "web.enable-lifecycle",
        _WEB.enable_lifecycle,
        "Accept POST /-/reload and /-/release-gpus over the network too, not only from root on the node.",
        "web",
    ),
    Option(
        "web.enable-profiles",
        _WEB.enable_profiles,
        "Serve profiles of stacks at /debug/pprof/ and /flamegraph. They contain names of functions and files of all "
        "users' processes.",
        "web",
    ),
    Option(
        "web.growing-stacks-window",
        _WEB.growing_stacks_window,
        "Time within which /flamegraph and /api/growing-stacks look for stacks with memory in use that only grows.",
        "web",
        duration=True,
        least=10.0,
        most=86400.0,
    ),
    Option("web.telemetry-path", _WEB.telemetry_path, "Path of the metrics.", "web", metavar="PATH"),
    Option(
        "web.series-limit",
        _WEB.series_limit,
        "Maximum number of series in one answer to /metrics, each bucket of a histogram being one; further series are "
        "folded into series labelled overflow=true. At least 10. 0: no limit.",
        "web",
    ),
    Option(
        "web.max-requests",
        _WEB.max_requests,
        "Maximum number of requests answered at once; further requests get 503. 0: no limit.",
        "web",
    ),
    Option(
        "web.timeout-offset",
        _WEB.timeout_offset,
        "Time subtracted from the scraper's own timeout, for sending the response.",
        "web",
        duration=True,
    ),
    Option(
        "web.disable-exporter-metrics",
        _WEB.disable_exporter_metrics,
        "Leave out the process_* metrics of the exporter itself.",
        "web",
    ),
    Option(
        "otlp.endpoint",
        _OTLP.endpoint,
        "URL to push metrics and spans to, as http://host:4318. Empty: OTEL_EXPORTER_OTLP_ENDPOINT, or no push.",
        "otlp",
        metavar="URL",
    ),
    Option(
        "otlp.protocol",
        _OTLP.protocol,
        "Protocol of pushes. Empty: OTEL_EXPORTER_OTLP_PROTOCOL, or http/protobuf.",
        "otlp",
        choices=("", *PROTOCOLS),
        metavar="|".join(PROTOCOLS),
    ),
    Option(
        "otlp.headers",
        _OTLP.headers,
        "Headers of a request. OTEL_EXPORTER_OTLP_HEADERS keeps passwords out of the list of processes. Empty: none.",
        "otlp",
        metavar="NAME=VALUE",
    ),
    Option(
        "otlp.metrics-interval",
        _OTLP.metrics_interval,
        "Interval between pushes of metrics. 0: OTEL_METRIC_EXPORT_INTERVAL, or 60s.",
        "otlp",
        duration=True,
    ),
    Option(
        "otlp.spans-per-second",
        _OTLP.spans_per_second,
        "Maximum number of spans a second, of all collectors; further spans are dropped and counted. 0: no limit.",
        "otlp",
    ),
    Option(
        "otlp.profiles-interval",
        _OTLP.profiles_interval,
        "Interval between pushes of profiles of stacks, with --web.enable-profiles. OTLP's signal is alpha, and "
        "needs HTTP here. 0: no push.",
        "otlp",
        duration=True,
    ),
    Option(
        "otlp.trace-contexts",
        _OTLP.trace_contexts,
        "File of the BPF map in which OpenTelemetry eBPF Instrumentation (OBI) has the trace contexts of threads, to "
        "which spans of GPU work are linked. It need not exist.",
        "otlp",
        metavar="FILE",
    ),
    Option("log.level", "info", "Lowest severity that is logged.", "log", choices=tuple(log.LEVELS)),
    Option("log.format", "logfmt", "Format of a log line.", "log", choices=log.FORMATS),
    Option(
        "overhead.max-ratio",
        0.01,
        "Maximum part of a process's CPU time that probes may take before calls are probed in windows: launches of "
        "CUDA and HIP, then ncclSend and ncclRecv, post_send and post_recv of RDMA, copies and waits of CUDA, "
        "collectives of NCCL, and at last allocations of CUDA. 0: no limit, every call counts.",
        "overhead",
        most=1.0,
    ),
    Option(
        "overhead.max-cores",
        0.5,
        "Maximum overhead of the probes of all processes together, in cores. Above it the processes with the highest "
        "overhead are probed in windows first. 0, or a maximum ratio of 0: no limit for the node.",
        "overhead",
    ),
    Option(
        "path.procfs", "/proc", "Mount point of procfs, of the host's PID namespace.", "path", metavar="DIR", path=True
    ),
    Option("path.sysfs", "/sys", "Mount point of sysfs.", "path", metavar="DIR", path=True),
    Option("path.logs", "/var/log", "Folder of the kubelet's pods/ and containers/.", "path", metavar="DIR", path=True),
    *formerly(
        Option(
            "kmsg.path",
            _KMSG.path,
            "Path of the kernel log. A FIFO or a file with lines in its format serves for tests.",
            "kmsg",
            metavar="FILE",
            path=True,
        ),
        "collector.xid.kmsg",
        "collector.faults.kmsg",
    ),
    *formerly(
        Option(
            "kmsg.from-processes",
            _KMSG.from_processes,
            "Accept lines that a process wrote into the kernel log too: echo NVRM: Xid ... > /dev/kmsg tests an alert.",
            "kmsg",
        ),
        "collector.xid.from-processes",
        "collector.faults.from-processes",
    ),
    Option("collector.disable-defaults", False, "Run only collectors that are enabled explicitly.", "collectors"),
)
