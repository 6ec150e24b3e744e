"""The format for a client, by its Accept and Accept-Encoding headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.views.negotiation import accepts_gzip, negotiate
from exporter.views.prometheus import Format

PROTOBUF = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", Format.TEXT),
        ("*/*", Format.TEXT),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Format.TEXT),
        ("application/openmetrics-text", Format.OPENMETRICS),
        ("application/openmetrics-text;version=2.0.0", Format.TEXT),
        ("application/openmetrics-text;version=0.0.1,text/plain", Format.TEXT),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8;q=0.4, text/plain;q=0.5", Format.TEXT),
        ("application/openmetrics-text;version=1.0.0;q=0", Format.TEXT),
        ("application/openmetrics-text;version=1.0.0;q=x", Format.TEXT),
        # as sent by Prometheus 2.42
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            Format.OPENMETRICS,
        ),
        # as sent by Prometheus 3.5
        (
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,"
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
            "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
            "text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            Format.PROTOBUF,
        ),
        # as sent by Prometheus 2.42 with --enable-feature=native-histograms
        (
            f"{PROTOBUF},application/openmetrics-text;version=1.0.0;q=0.8,"
            "application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            Format.PROTOBUF,
        ),
        (f"{PROTOBUF};q=0.5,text/plain;q=0.5", Format.TEXT),
        (f"{PROTOBUF},application/openmetrics-text", Format.OPENMETRICS),
        (f"{PROTOBUF};q=0", Format.TEXT),
        (f"{PROTOBUF};q=nan", Format.TEXT),
        (PROTOBUF.replace("delimited", "text"), Format.TEXT),
        (PROTOBUF.replace("MetricFamily", "Metric"), Format.TEXT),
        ("application/vnd.google.protobuf", Format.TEXT),
        ("application/vnd.google.protobuf;proto;encoding=", Format.TEXT),
    ],
)
def test_format_follows_accept(accept: str, expected: Format) -> None:
    """The best liked format: OpenMetrics as version 1.0.0, Protocol Buffers delimited; text is the fallback."""
    assert expected is negotiate(accept)


@pytest.mark.parametrize(
    ("header", "expected"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("*", True), ("", False), ("gzip;q=0", False), ("identity", False)],
)
def test_gzip_follows_accept_encoding(header: str, expected: bool) -> None:
    """gzip is used when the client names it or anything, with a quality above 0."""
    assert expected == accepts_gzip(header)


@given(st.text())
def test_any_header_has_an_answer(header: str) -> None:
    """No Accept or Accept-Encoding header raises."""
    assert negotiate(header) in Format
    assert accepts_gzip(header) in (True, False)
