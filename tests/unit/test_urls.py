"""URLs and headers in settings that no request could be made with are one error, with the name of the setting."""

from __future__ import annotations

import pytest

from exporter import urls
from exporter.options import SettingsError
from exporter.otlp import OtlpSettings, plan

WRONG = (
    "",
    "h:4318",
    "//h:4318",
    "ftp://h",
    "http://",
    "http://:80",
    "http://h:port",
    "http://h:99999",
    "http://h:0",
    "http://[::1",
    "http://[h]:80",
    "http://exa mple",
    "http://h/\r\nX: y",
    "http://h\n",
    "http://h/\x7f",
    "http://ｈost",
)


@pytest.mark.parametrize("url", WRONG)
def test_wrong_urls(url: str) -> None:
    """The error names the option and an example."""
    with pytest.raises(SettingsError, match=r"^dcgm\.url: .* is not a URL such as http://localhost:9400/metrics$"):
        urls.checked("dcgm.url", url, "http://localhost:9400/metrics")


@pytest.mark.parametrize(
    "url", ["http://h", "https://h.example:4318/v1/x?a=b", "http://[fe80::1]:80", "http://10.0.0.1"]
)
def test_urls(url: str) -> None:
    """Names, addresses of both kinds, ports, paths and queries are URLs."""
    assert url == urls.checked("x", url, "http://h")


@pytest.mark.parametrize("url", ["http://user:secret@h", "http://:secret@h", "http://user:secret@h:port"])
def test_passwords(url: str) -> None:
    """A password is refused and not shown."""
    with pytest.raises(SettingsError) as caught:
        urls.checked("x", url, "http://h")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", [it for it in WRONG if it])
@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""])
def test_wrong_endpoints(url: str, variable: str) -> None:
    """An endpoint in a flag or in a variable is checked before the first push."""
    settings = OtlpSettings() if variable else OtlpSettings(endpoint=url)
    with pytest.raises(SettingsError, match=f"^{variable or 'otlp.endpoint'}: "):
        plan(settings, {variable: url} if variable else {})


def test_endpoints() -> None:
    """gRPC has endpoints without a scheme; a query is for the URL of one signal."""
    assert plan(OtlpSettings("collector:4317", "grpc"), {}).metrics
    assert plan(OtlpSettings("dns:///collector:4317", "grpc"), {}).metrics
    assert plan(OtlpSettings(), {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h/v1/traces?key=1"}).traces
    for settings, environ in (
        (OtlpSettings("http://h?key=1"), {}),
        (OtlpSettings(), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h?key=1"}),
    ):
        with pytest.raises(SettingsError, match="cannot have a query"):
            plan(settings, environ)


@pytest.mark.parametrize(
    "endpoint", ["collector:4317\n", "collector:99999", "[::1:4317", "a b:1", "dns:///a b", "ftp://h:1"]
)
def test_wrong_endpoints_of_grpc(endpoint: str) -> None:
    """A host and port without a scheme are checked as those of a URL, gRPC's own names for blanks."""
    with pytest.raises(SettingsError, match=r"^otlp\.endpoint: .* is not an? (URL|address) such as http://"):
        plan(OtlpSettings(endpoint, "grpc"), {})


@pytest.mark.parametrize("text", ["１０００", "1_000", "0x10", "9" * 5000])
def test_numbers_of_variables(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """A number that is none is a warning, and the default is used."""
    names = ("OTEL_METRIC_EXPORT_INTERVAL", "OTEL_TRACES_SAMPLER_ARG")
    ratio = {"OTEL_TRACES_SAMPLER": "traceidratio"}
    made = plan(OtlpSettings("http://h"), ratio | dict.fromkeys(names, text))
    assert (60.0, 1.0) == (made.interval, made.sampler.ratio)
    assert 2 == len(caplog.messages)


@pytest.mark.parametrize("header", ["a=b\r\nX: secret", "a b=secret", "ä=secret", "a=\x00secret", "a=secret\u2026"])
def test_wrong_headers(header: str) -> None:
    """A header that would be two, or none, is refused; its value is not shown."""
    with pytest.raises(SettingsError, match=r"^otlp\.headers: ") as caught:
        plan(OtlpSettings("http://h", headers=(header,)), {})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("header", ["a=%0d%0aX:%20secret", "a%0a=secret", "secret", "=secret", "b=1,a=%00secret"])
@pytest.mark.parametrize("name", ["HEADERS", "METRICS_HEADERS"])
def test_wrong_headers_in_variables(header: str, name: str) -> None:
    """Headers of variables are checked when decoded, before the first push."""
    with pytest.raises(SettingsError, match=f"^OTEL_EXPORTER_OTLP_{name}: "):
        plan(OtlpSettings("http://h"), {f"OTEL_EXPORTER_OTLP_{name}": header})


def test_headers() -> None:
    """Names become lower case; values keep blanks inside, and may be empty."""
    made = plan(OtlpSettings("http://h", headers=("X-Tenant= a b ", "x-empty=")), {}).metrics
    assert made and {"x-tenant": "a b", "x-empty": ""} == made.headers
    assert plan(OtlpSettings("http://h"), {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic%20YTpi, x=1,"}).metrics
