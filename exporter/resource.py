"""The OpenTelemetry resource of the exporter, and the attributes in it that describe the node.

https://opentelemetry.io/docs/specs/semconv/resource/
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING

from exporter import __version__
from exporter.nodename import kubernetes_node, node_name
from exporter.options import SettingsError

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.util.types import AttributeValue

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
"""The release of the semantic conventions with the names of attributes and metrics used here."""
_OF_THE_NODE = ("cloud.", "deployment.", "host.", "k8s.cluster.", "k8s.node.", "os.")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def own() -> Resource:
    """Return the exporter's resource; OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME win.

    The instance is named after the node, as in a scrape: pods and containers get another host name at each restart,
    which would begin every series again. Raises SettingsError when the OpenTelemetry packages are not installed.
    """
    try:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    except ImportError as error:
        raise SettingsError(
            f"OTLP needs packages that are not installed ({error}); pip install 'accel-exporter[otlp]'"
        ) from error
    node = node_name()
    attributes = {
        "service.name": "accel-exporter",
        "service.version": __version__,
        "service.instance.id": node,
        "host.name": node,
        "host.arch": _ARCHITECTURES.get(platform.machine(), platform.machine()),
    }
    if kubernetes_node():
        attributes["k8s.node.name"] = node
    return Resource(attributes, SCHEMA_URL).merge(OTELResourceDetector().detect())


def of_the_node(attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """Return the attributes that hold for every process of the node, and not for the exporter or its pod alone."""
    return {key: value for key, value in attributes.items() if key.startswith(_OF_THE_NODE)}
