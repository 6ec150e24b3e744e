"""LLM serving: how long users of models wait, where, and what did not end."""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.builders.dashboard import CustomVariable
from grafana_foundation_sdk.models.dashboard import Dashboard, VariableOption

from dashboards.labels import legend
from dashboards.parts import FULL, THIRD, Query, board, choice, heat, lines, number, rate, rows, select, share, total
from dashboards.workloads import CHOSEN, joined, members, now_of, rate_of, workloads

SERVED = ('namespace=~"$namespace"', 'pod=~"$pod"')
MODEL = (*SERVED, 'model=~"$model"')
SERVERS = ("workload", "instance", "namespace", "pod", "slurm_job_id", "comm")
WHO = (*SERVERS, "model")
NAME = legend("workload", "namespace", "pod", "slurm_job_id", "comm", "model", "instance")
COLUMNS = {
    "workload": "Workload",
    "instance": "Instance",
    "namespace": "Namespace",
    "pod": "Pod",
    "slurm_job_id": "Slurm job",
    "comm": "Command",
    "model": "Model",
    "engine": "Engine",
}
FIRST, EACH, WHOLE = (
    f"gen_ai_server_{name}_seconds" for name in ("time_to_first_token", "time_per_output_token", "request_duration")
)
REQUESTS, ABORTED = "gen_ai_server_requests_total", "gen_ai_server_requests_aborted_total"
LEFT = total(rate_of("gen_ai_server_requests_abandoned_total", *MODEL), *SERVERS)
TOKENS, OUTPUT = "gen_ai_server_tokens_total", 'type="output"'
PODS = legend("workload", "namespace", "pod", "slurm_job_id", "comm", "instance")
SERVER = "job, cluster, instance, namespace, pod"
IN_FLIGHT = now_of("gen_ai_server_requests_in_flight", *SERVED)
BEFORE = "instance_pod:gen_ai_server_time_to_first_token_seconds:before_engine5m"
BEFORE_ENGINE = joined(
    select(BEFORE, *SERVED),
    SERVER,
    members("gen_ai_server_requests_in_flight", SERVER, *SERVED),
    select(BEFORE, *SERVED, CHOSEN),
)
OWN = 'reason=~"server_gone|unterminated"'


def quantile(q: str, histogram: str, *labels: str) -> str:
    return f"histogram_quantile({q}, {total(rate_of(f'{histogram}_bucket', *MODEL), 'le', *labels)})"


def within(histogram: str, seconds: str, *labels: str) -> str:
    """The share of observations up to a bound of the buckets."""
    met = total(rate_of(f"{histogram}_bucket", *MODEL, f'le="{seconds}"'), *labels)
    return f"{met} / ({total(rate_of(f'{histogram}_count', *MODEL), *labels)} > 0)"


def bounds(name: str, label: str, chosen: str, others: Sequence[str]) -> CustomVariable:
    """A variable with bounds of a histogram's buckets."""
    values = ",".join(others)
    variable = CustomVariable(name).label(label).values(values)
    return variable.current(VariableOption(selected=True, text=chosen, value=chosen))


OVERVIEW = [
    number("Requests", "Requests that ended, per second.", "reqps", Query(total(rate_of(REQUESTS, *MODEL)))),
    number(
        "In flight",
        "POST requests without the end of an answer yet.",
        "short",
        Query(total(IN_FLIGHT)),
    ),
    number(
        "First token, p95",
        "95th percentile of the time to the first token of event streams, measured from the socket.",
        "s",
        Query(quantile("0.95", FIRST)),
    ),
    number(
        "Per token, p95",
        "95th percentile of the mean time per token, for streams that report their number of tokens.",
        "s",
        Query(quantile("0.95", EACH)),
    ),
    number(
        "Output",
        "Output tokens per second, as answers report them.",
        "short",
        Query(total(rate_of(TOKENS, *MODEL, OUTPUT))),
    ),
    number(
        "Incomplete answers",
        "Share of requests that the server did not answer to the end.",
        "percentunit",
        Query(share(f"({total(rate_of(ABORTED, *MODEL, OWN))} or vector(0)) / {total(rate_of(REQUESTS, *MODEL))}")),
        alarm=0.01,
    ),
]
LATENCY = [
    lines("First token", "95th percentile by server and model.", "s", Query(quantile("0.95", FIRST, *WHO), NAME)),
    heat(
        "First tokens",
        "Time to first token, all chosen servers.",
        "s",
        Query(total(rate_of(f"{FIRST}_bucket", *MODEL), "le")),
    ),
    lines(
        "Per output token",
        "95th percentile of the mean time per token of a stream.",
        "s",
        Query(quantile("0.95", EACH, *WHO), NAME),
        width=THIRD,
    ),
    lines(
        "Gap between events",
        "99th percentile: a pause that a reader of the stream notices.",
        "s",
        Query(quantile("0.99", "llm_stream_event_gap_seconds", *WHO), NAME),
        width=THIRD,
    ),
    lines(
        "Whole request",
        "95th percentile of the time to the last byte of the answer.",
        "s",
        Query(quantile("0.95", WHOLE, *WHO), NAME),
        width=THIRD,
    ),
]
GOALS = [
    lines(
        "Goodput, first token",
        "Share of streams with a first token within the chosen time.",
        "percentunit",
        Query(share(within(FIRST, "$first_token", *WHO)), NAME),
        alarm=0.95,
        below=True,
    ),
    lines(
        "Goodput, per token",
        "Share of streams with a mean time per token within the chosen time.",
        "percentunit",
        Query(share(within(EACH, "$per_token", *WHO)), NAME),
        alarm=0.95,
        below=True,
    ),
]
QUEUES = [
    lines(
        "Wait in the socket",
        "95th percentile of the time that a request waited in the socket before the server read it.",
        "s",
        Query(quantile("0.95", "llm_socket_queue_seconds", *WHO), NAME),
    ),
    lines(
        "In flight by server",
        "POST requests without the end of an answer yet.",
        "short",
        Query(total(IN_FLIGHT, *SERVERS), PODS),
    ),
]
ENGINE = [
    lines(
        "Before the engine",
        "Mean time to first token from the socket, minus the engine's own time to first token: event loop, "
        "authentication, parsing.",
        "s",
        Query(
            f"max by (workload, instance, namespace, pod) ({BEFORE_ENGINE})",
            legend("workload", "namespace", "pod", "instance"),
        ),
    ),
    lines(
        "Requests in the engine",
        "Waiting and running requests, from the engine's own metrics.",
        "short",
        *(
            Query(total(now_of(f"llm_engine_requests_{name}", *MODEL), *WHO), f"{name} {NAME}")
            for name in ("waiting", "running")
        ),
    ),
    lines(
        "KV cache",
        "Share of the KV cache in use, from the engine's own metrics.",
        "percentunit",
        Query(share(f"max by ({', '.join(WHO)}) ({now_of('llm_engine_kv_cache_utilization_ratio', *MODEL)})"), NAME),
    ),
]
KV = [
    lines(
        "KV cache bytes",
        "Bytes per second of NIXL transfers that succeeded, by backend and operation.",
        "Bps",
        Query(
            total(rate_of("nixl_transfer_bytes_total", *SERVED), "backend", "operation"), "{{backend}} {{operation}}"
        ),
        width=THIRD,
    ),
    lines(
        "KV cache transfers by status",
        "NIXL transfers that ended, per second, by status.",
        "cps",
        Query(total(rate_of("nixl_transfers_total", *SERVED), "status"), "{{status}}"),
        width=THIRD,
    ),
    lines(
        "99th percentile of a KV cache transfer",
        "Time from the post of a NIXL transfer until the process saw that it had succeeded, by backend and operation.",
        "s",
        Query(
            "histogram_quantile(0.99, "
            f"{total(rate_of('nixl_transfer_duration_seconds_bucket', *SERVED), 'le', 'backend', 'operation')})",
            "{{backend}} {{operation}}",
        ),
        width=THIRD,
    ),
    lines(
        "KV cache transfers in flight",
        "NIXL transfers that were posted, and of which the process has not seen the end.",
        "short",
        Query(total(now_of("nixl_transfers_in_flight", *SERVED), *SERVERS), PODS),
        width=THIRD,
    ),
    lines(
        "KV cache bytes by peer",
        "Bytes per second of NIXL transfers that succeeded, by remote agent.",
        "Bps",
        Query(total(rate_of("nixl_transfer_bytes_total", *SERVED), "peer"), "{{peer}}"),
        width=THIRD,
    ),
    lines(
        "UCX bytes",
        "Bytes per second of sends, remote reads and writes that UCX accepted, by function.",
        "Bps",
        Query(total(rate_of("ucx_io_bytes_total", *SERVED), "api"), "{{api}}"),
        width=THIRD,
    ),
    lines(
        "UCX calls by result",
        "Calls of UCX per second, by result.",
        "cps",
        Query(total(rate_of("ucx_calls_total", *SERVED), "result"), "{{result}}"),
        width=THIRD,
    ),
    lines(
        "UCX errors",
        "UCX calls that failed at once, by function and error.",
        "eps",
        Query(total(rate_of("ucx_errors_total", *SERVED), "api", "error", "code"), "{{api}} {{error}} {{code}}"),
        width=THIRD,
    ),
    lines(
        "NIXL errors",
        "NIXL calls that failed, by function and error.",
        "eps",
        Query(total(rate_of("nixl_errors_total", *SERVED), "api", "error", "code"), "{{api}} {{error}} {{code}}"),
        width=THIRD,
    ),
]
LOAD = [
    lines(
        "Requests by status",
        "Requests that ended, per second, by status.",
        "reqps",
        Query(total(rate_of(REQUESTS, *MODEL), "status"), "{{status}}"),
    ),
    lines(
        "Tokens",
        "Tokens per second, as answers report them.",
        "short",
        Query(total(rate_of(TOKENS, *MODEL), "type"), "{{type}}"),
    ),
    lines(
        "Incomplete answers by reason",
        "Requests per second without an answer to its end, by reason.",
        "reqps",
        Query(total(rate_of(ABORTED, *MODEL), "reason"), "{{reason}}"),
        width=THIRD,
    ),
    lines(
        "Left before the first token",
        "Share of requests that clients left before the first event of a stream, or before the end of another answer. "
        "They have no time to first token.",
        "percentunit",
        Query(share(f"{LEFT} / {total(rate_of(REQUESTS, *MODEL), *SERVERS)}"), PODS),
        width=THIRD,
    ),
    lines(
        "Bytes",
        "Bytes per second of requests and of answers.",
        "Bps",
        Query(total(rate_of("gen_ai_server_request_size_bytes_total", *MODEL)), "requests"),
        Query(total(rate_of("gen_ai_server_response_size_bytes_total", *MODEL)), "answers"),
        width=THIRD,
    ),
    rows(
        "Requests by server and model",
        "Requests per second by server and model.",
        "reqps",
        COLUMNS,
        Query(total(rate_of(REQUESTS, *MODEL), *COLUMNS), "Requests"),
        width=FULL,
    ),
    lines(
        "Kernel launches of the pods",
        "Launches per second of all processes of the chosen pods.",
        "cps",
        Query(
            total(
                rate_of("gpu_cuda_kernel_launch_calls_total", *SERVED, 'api_layer="driver"'),
                *SERVERS,
            ),
            PODS,
        ),
    ),
    lines(
        "Not followed",
        "Requests that ended faster than the exporter could read, HTTP/2 streams beyond what one connection or the "
        "node may have open, connections that are neither HTTP/1.1 nor HTTP/2, and socket calls with bytes that are "
        "not read (io_uring, sendfile). They are in no other panel.",
        "cps",
        Query(total(rate("llm_serving_requests_lost_total"), "instance"), "requests {{instance}}"),
        Query(total(rate("llm_serving_streams_lost_total"), "instance"), "streams {{instance}}"),
        Query(total(rate("llm_serving_connections_unreadable_total"), "instance"), "connections {{instance}}"),
        Query(total(rate("llm_serving_socket_calls_unread_total"), "instance"), "socket calls {{instance}}"),
    ),
]


def dashboard() -> Dashboard:
    info = select(REQUESTS)
    return board(
        "accel-exporter-serving",
        "LLM serving",
        "Waits of users for the first and for each token, and incomplete answers. From "
        "the sockets of servers (--collector.serving).",
        [
            choice("namespace", "Namespace", f"label_values({info}, namespace)", every=".*"),
            workloads('namespace=~"$namespace"'),
            choice("pod", "Pod", f"label_values({info}, pod)", every=".*"),
            choice("model", "Model", f"label_values({info}, model)", every=".*"),
            bounds("first_token", "First token within", "1.0", ("0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0")),
            bounds("per_token", "Per token within", "0.05", ("0.01", "0.025", "0.05", "0.1", "0.2", "0.5")),
        ],
        {
            "Now": OVERVIEW,
            "Latency": LATENCY,
            "Goals": GOALS,
            "Socket queue": QUEUES,
            "Engine": ENGINE,
            "KV cache transfers": KV,
            "Load": LOAD,
        },
    )
