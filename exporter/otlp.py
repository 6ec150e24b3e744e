"""The configuration of OTLP push: the --otlp.* flags and the standard OTEL_* variables."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote

from exporter import urls
from exporter.options import SettingsError
from exporter.sampling import Sampler, sampler

PROTOCOLS = ("http/protobuf", "grpc")
_TEMPORALITY = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
_AGGREGATION = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
_EXPLICIT, _EXPONENTIAL = "explicit_bucket_histogram", "base2_exponential_bucket_histogram"
_ENDPOINT, _HEADERS = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS"
_WHOLE = re.compile(r"[0-9]{1,10}", re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,10}(\.[0-9]{1,9})?", re.ASCII)
_COMPRESSIONS = ("none", "gzip", "deflate")
_RESOLVERS = ("dns:", "unix:", "unix-abstract:", "ipv4:", "ipv6:", "vsock:", "xds:", "passthrough:")
"""Schemes of gRPC's own names (grpc/doc/naming.md)."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OtlpSettings:
    """The --otlp.* flags, by their names. For empty values and 0 the OTEL_* variables apply."""

    endpoint: str = ""
    protocol: str = ""
    headers: tuple[str, ...] = ()
    metrics_interval: float = 0.0
    spans_per_second: int = 1000
    profiles_interval: float = 0.0
    trace_contexts: str = "/sys/fs/bpf/otel/traces_ctx_v1"


@dataclass(frozen=True)
class Signal:
    """The destination of one signal. With `endpoint` None the SDK's exporters read the OTEL_* variables."""

    name: str
    protocol: str
    endpoint: str | None
    headers: Mapping[str, str]
    target: str
    """The endpoint without user, password and query, for log lines."""


@dataclass(frozen=True)
class Plan:
    """The signals to push, None for those without an endpoint. Times are in seconds.

    A plan is true where metrics or traces are pushed: profiles are pushed apart (exporter/otlp_profiles.py).
    """

    metrics: Signal | None
    traces: Signal | None
    profiles: Signal | None = None
    interval: float = 60.0
    delay: float = 5.0
    queue_size: int = 2048
    batch_size: int = 512
    spans_per_second: int = 1000
    profiles_interval: float = 0.0
    sampler: Sampler = Sampler()
    exponential: bool = False
    """True if histograms with bounds on an exponential scale are exported as exponential histograms."""

    def __bool__(self) -> bool:
        return bool(self.metrics or self.traces)


def plan(settings: OtlpSettings, environ: Mapping[str, str]) -> Plan:
    """Return the plan in flags and OTEL_* variables; a flag wins. Raises SettingsError."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return Plan(None, None)
    _choice(environ, _TEMPORALITY, "cumulative")
    _warn_of_requests(environ)
    queue_size = _number(environ, "OTEL_BSP_MAX_QUEUE_SIZE", 2048)
    return Plan(
        _signal("metrics", settings, environ),
        _signal("traces", settings, environ),
        profiles(settings, environ),
        interval=settings.metrics_interval or _number(environ, "OTEL_METRIC_EXPORT_INTERVAL", 60_000) / 1000,
        delay=_number(environ, "OTEL_BSP_SCHEDULE_DELAY", 5000) / 1000,
        queue_size=queue_size,
        batch_size=min(queue_size, _number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)),
        spans_per_second=settings.spans_per_second,
        profiles_interval=settings.profiles_interval,
        sampler=sampler(environ),
        exponential=_choice(environ, _AGGREGATION, _EXPLICIT, _EXPONENTIAL) == _EXPONENTIAL,
    )


def profiles(settings: OtlpSettings, environ: Mapping[str, str]) -> Signal | None:
    """Return the destination of profiles of stacks, None where none are pushed. Raises SettingsError.

    The path is that of the alpha signal, and the variables are those that a stable one will have.
    """
    if not settings.profiles_interval or environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    signal = _signal("profiles", settings, environ)
    if signal is None:
        raise SettingsError(
            "otlp.profiles-interval: there is no endpoint; give otlp.endpoint or OTEL_EXPORTER_OTLP_ENDPOINT"
        )
    if signal.protocol == "grpc":
        raise SettingsError("otlp.profiles-interval: profiles are pushed over HTTP only; use http/protobuf")
    general = (settings.endpoint or environ.get(_ENDPOINT, "")).rstrip("/")
    own = "" if settings.endpoint else environ.get("OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT", "")
    given = [*filter(None, environ.get(_HEADERS, "").split(","))]
    headers = {name: unquote(value) for name, value in _headers(given, _HEADERS).items()} | dict(signal.headers)
    endpoint = own or f"{general}/v1development/profiles"
    return replace(signal, endpoint=endpoint, headers=headers, target=_for_logs(endpoint))


def _signal(name: str, settings: OtlpSettings, environ: Mapping[str, str]) -> Signal | None:
    prefix = f"OTEL_EXPORTER_OTLP_{name.upper()}_"
    general, own = environ.get(_ENDPOINT, ""), environ.get(prefix + "ENDPOINT", "")
    wanted = environ.get(f"OTEL_{name.upper()}_EXPORTER", "otlp").split(",")
    if not (settings.endpoint or own or general) or "otlp" not in (item.strip() for item in wanted):
        return None
    protocol = settings.protocol or environ.get(prefix + "PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = protocol or PROTOCOLS[0]
    if protocol not in PROTOCOLS:
        raise SettingsError(f"OTLP protocol {protocol!r} is not supported; use one of {', '.join(PROTOCOLS)}")
    endpoint = settings.endpoint or None
    given = ("otlp.endpoint", endpoint) if endpoint else (prefix + "ENDPOINT", own) if own else (_ENDPOINT, general)
    _check_endpoint(*given, protocol)
    if endpoint and protocol != "grpc":
        endpoint = f"{endpoint.rstrip('/')}/v1/{name}"
    for variable in (prefix + "HEADERS", _HEADERS):
        _check_variable(variable, environ.get(variable, ""))
    return Signal(name, protocol, endpoint, _headers(settings.headers), _for_logs(endpoint or own or general))


def _for_logs(url: str) -> str:
    """Return a URL, or host:port, without user, password, query and fragment, which may be secrets."""
    return re.split("[?#]", _without_user(url), maxsplit=1)[0]


def _without_user(url: str) -> str:
    """Return a URL, or host:port, without user and password."""
    scheme, slashes, rest = url.rpartition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{authority.rpartition('@')[2]}{slash}{path}"


def _check_endpoint(option: str, given: str, protocol: str) -> None:
    """Raise SettingsError for an endpoint to which nothing can be pushed. gRPC takes HOST:PORT and more schemes."""
    if option == "otlp.endpoint" and given != _without_user(given):
        raise SettingsError(
            "otlp.endpoint: a URL with a password would stand in the list of processes and in the log; "
            f"leave it out and put it into {_HEADERS}, as authorization=Basic%20…"
        )
    if protocol == "grpc" and given.startswith(_RESOLVERS):
        urls.check_visible(option, given, "http://host:4317")
    elif protocol == "grpc" and "://" not in given:
        urls.split(option, f"http://{given}", "http://host:4317")
    elif urls.split(option, given, "http://host:4318").query and option in ("otlp.endpoint", _ENDPOINT):
        raise SettingsError(f"{option}: the path of each signal is added to the URL, so it cannot have a query")


def _check_variable(variable: str, text: str) -> None:
    """Raise SettingsError for headers in a variable (W3C Baggage's format) that no request may have."""
    for item in filter(None, (it.strip() for it in text.split(","))):
        name, equals, value = item.partition("=")
        urls.header(variable, unquote(name) if equals else "", unquote(value))


def _headers(pairs: Sequence[str], option: str = "otlp.headers") -> Mapping[str, str]:
    headers: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        key, value = urls.header(option, name if equals else "", value)
        headers[key] = value
    return headers


def _choice(environ: Mapping[str, str], name: str, *known: str) -> str:
    """Return the value of a variable in lower case if it is known, else the first of those that are."""
    value = environ.get(name, "").strip()
    if value.lower() in known:
        return value.lower()
    if value:
        log.warning("%s=%.40r is not supported; metrics are pushed as %s", name, value, known[0])
    return known[0]


def _warn_of_requests(environ: Mapping[str, str]) -> None:
    """Warn of values that the SDK's exporters over HTTP ignore."""
    for prefix in ("OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_METRICS_", "OTEL_EXPORTER_OTLP_TRACES_"):
        seconds, compression = (environ.get(prefix + name, "").strip() for name in ("TIMEOUT", "COMPRESSION"))
        if seconds and not _SECONDS.fullmatch(seconds):
            log.warning("%sTIMEOUT=%.40r is not a number of seconds; 10 s are used", prefix, seconds)
        if compression and compression.lower() not in _COMPRESSIONS:
            log.warning("%sCOMPRESSION=%.40r is not supported; requests are not compressed", prefix, compression)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    if not _WHOLE.fullmatch(text) or not 0 < int(text) < 2**31:
        log.warning("%s=%.40r is not a positive integer; %d is used", name, text, default)
        return default
    return int(text)
