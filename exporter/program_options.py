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
        "YAML file with any of these settings; dots in names become nesting",
        "general",
        metavar="FILE",
    ),
    Option(
        "profile",
        "node",
        "how many series: at most 3,000 of a node with 8 GPUs and 8 NICs (node), all 25,000 of it (debug), or 1,200 "
        "(fleet); /metrics?profile= gives a smaller one",
        "general",
        choices=PROFILES,
    ),
    Option(
        "bpf.return-probes",
        True,
        "probe where functions return; without, calls count and their waits, errors, bytes and allocations are absent",
        "general",
    ),
    Option("bpf.stats", False, "let the kernel time every BPF program (about 25 ns a hit)", "general"),
    Option("privileges.keep", False, "keep all capabilities, including those that no probe needs", "general"),
    Option(
        "web.listen-address",
        _WEB.listen_address,
        "host:port, [IPv6]:port or :port to serve on; may be repeated",
        "web",
        metavar="ADDRESS",
    ),
    Option("web.systemd-socket", _WEB.systemd_socket, "serve on the sockets that systemd's socket unit opened", "web"),
    Option(
        "web.config.file",
        _WEB.config_file,
        "TLS and basic auth, in the format of Prometheus' exporter-toolkit",
        "web",
        metavar="FILE",
    ),
    Option(
        "web.enable-lifecycle",
        _WEB.enable_lifecycle,
        "accept POST /-/reload and /-/release-gpus over the network too, not only from root on the node",
        "web",
    ),
    Option(
        "web.enable-profiles",
        _WEB.enable_profiles,
        "serve profiles of stacks at /debug/pprof/ and /flamegraph; they show names of functions and files of all "
        "users' processes",
        "web",
    ),
    Option(
        "web.growing-stacks-window",
        _WEB.growing_stacks_window,
        "time within which /flamegraph and /api/growing-stacks look for stacks with memory in use that only grows",
        "web",
        duration=True,
        least=10.0,
        most=86400.0,
    ),
    Option("web.telemetry-path", _WEB.telemetry_path, "path of the metrics", "web", metavar="PATH"),
    Option(
        "web.series-limit",
        _WEB.series_limit,
        "series of one answer to /metrics at most, each bucket of a histogram being one; further ones are folded into "
        "series labelled overflow=true; 10 at least; 0: no limit",
        "web",
    ),
    Option("web.max-requests", _WEB.max_requests, "requests answered at once, more get 503; 0: no limit", "web"),
    Option(
        "web.timeout-offset",
        _WEB.timeout_offset,
        "subtracted from the scraper's own timeout, for sending the response",
        "web",
        duration=True,
    ),
    Option(
        "web.disable-exporter-metrics",
        _WEB.disable_exporter_metrics,
        "leave out the process_* metrics of the exporter itself",
        "web",
    ),
    Option(
        "otlp.endpoint",
        _OTLP.endpoint,
        "where to push metrics and spans, as http://host:4318; empty: OTEL_EXPORTER_OTLP_ENDPOINT, or no push",
        "otlp",
        metavar="URL",
    ),
    Option(
        "otlp.protocol",
        _OTLP.protocol,
        "how to push; empty: OTEL_EXPORTER_OTLP_PROTOCOL, or http/protobuf",
        "otlp",
        choices=("", *PROTOCOLS),
        metavar="|".join(PROTOCOLS),
    ),
    Option(
        "otlp.headers",
        _OTLP.headers,
        "headers of a request; OTEL_EXPORTER_OTLP_HEADERS keeps passwords out of the list of processes",
        "otlp",
        metavar="NAME=VALUE",
    ),
    Option(
        "otlp.metrics-interval",
        _OTLP.metrics_interval,
        "between two pushes of metrics; 0: OTEL_METRIC_EXPORT_INTERVAL, or 60s",
        "otlp",
        duration=True,
    ),
    Option(
        "otlp.spans-per-second",
        _OTLP.spans_per_second,
        "limit of spans, of all collectors; spans beyond it are dropped and counted; 0: no limit",
        "otlp",
    ),
    Option(
        "otlp.profiles-interval",
        _OTLP.profiles_interval,
        "between two pushes of profiles of stacks, with --web.enable-profiles; OTLP's signal is alpha, and here it "
        "takes HTTP; 0: no push",
        "otlp",
        duration=True,
    ),
    Option("log.level", "info", "least severity that is logged", "log", choices=tuple(log.LEVELS)),
    Option("log.format", "logfmt", "form of a log line", "log", choices=log.FORMATS),
    Option(
        "overhead.max-ratio",
        0.01,
        "part of a process's CPU time that probes may take before calls that may be estimated (launches of CUDA, "
        "ncclSend, ncclRecv) are probed in windows; 0: no limit, every call counts",
        "overhead",
        most=1.0,
    ),
    Option(
        "path.procfs", "/proc", "mount point of procfs, of the host's pid namespace", "path", metavar="DIR", path=True
    ),
    Option("path.sysfs", "/sys", "mount point of sysfs", "path", metavar="DIR", path=True),
    Option("path.logs", "/var/log", "folder of the kubelet's pods/ and containers/", "path", metavar="DIR", path=True),
    *formerly(
        Option(
            "kmsg.path",
            _KMSG.path,
            "the kernel log; a FIFO or a file with lines of the same form serves for tests",
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
            "accept lines that a process wrote into the kernel log too: echo NVRM: Xid ... > /dev/kmsg tests an alert",
            "kmsg",
        ),
        "collector.xid.from-processes",
        "collector.faults.from-processes",
    ),
    Option("collector.disable-defaults", False, "run only collectors that are switched on explicitly", "collectors"),
)
