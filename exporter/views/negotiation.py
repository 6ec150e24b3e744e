"""Content negotiation: which of the formats of a Prometheus page a request's headers accept, and whether as gzip."""

from __future__ import annotations

import re

from exporter.views.prometheus import Format

_MEDIA_TYPE = re.compile(r"([^;,\s]+)\s*((?:;[^,]*)?)(?:,|$)")
_PROTOBUF = "application/vnd.google.protobuf"
_DELIMITED = {"proto": "io.prometheus.client.MetricFamily", "encoding": "delimited"}


def negotiate(accept: str) -> Format:
    """The format for an Accept header: the preferred one, text when none or only wildcards are named.

    Of formats that are liked alike, text goes before OpenMetrics, and both before Protocol Buffers. OpenMetrics is
    answered with version 1.0.0, and only to clients that accept this one: 2.0 reads other exemplars.
    """
    quality = dict.fromkeys(Format, 0.0)
    for match in _MEDIA_TYPE.finditer(accept):
        options = dict(_option(text) for text in match[2].split(";") if text.strip())
        version = options.get("version", "")
        media = match[1].lower()
        if media == "application/openmetrics-text" and version in ("", "1.0.0"):
            best = Format.OPENMETRICS
        elif media in ("text/plain", "text/*", "*/*") and version in ("", "0.0.4"):
            best = Format.TEXT
        elif media == _PROTOBUF and _DELIMITED.items() <= options.items():
            best = Format.PROTOBUF
        else:
            continue
        quality[best] = max(quality[best], _quality(options.get("q", "1")))
    return max(Format, key=quality.__getitem__)


def accepts_gzip(accept_encoding: str) -> bool:
    """True when an Accept-Encoding header allows gzip."""
    quality: dict[str, float] = {}
    for match in _MEDIA_TYPE.finditer(accept_encoding.lower()):
        options = dict(_option(text) for text in match[2].split(";") if text.strip())
        quality[match[1]] = _quality(options.get("q", "1"))
    return quality.get("gzip", quality.get("*", 0.0)) > 0


def _option(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key.strip().lower(), value.strip().strip('"')


def _quality(text: str) -> float:
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0
