"""Import of aiohttp."""

from __future__ import annotations

import os
import subprocess
import sys

CHECK = """
import os, ssl
before = dict(os.environ)
from exporter.web import http
assert before == dict(os.environ), set(before.items()) ^ set(os.environ.items())
from aiohttp import connector
for context in vars(connector).values():
    if isinstance(context, ssl.SSLContext):
        assert not context.cert_store_stats()["x509"]
assert http.web.Application
"""


def test_certificates_are_not_read() -> None:
    """The client's contexts have no certificates, and the environment is as before, set or not."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SSL_CERT")}
    for environ in (plain, plain | {"SSL_CERT_FILE": "/etc/ssl/ours.pem"}):
        subprocess.run([sys.executable, "-c", CHECK], env=environ, check=True)
