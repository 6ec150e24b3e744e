"""aiohttp's server, imported without what only aiohttp's client needs.

Importing aiohttp reads all certificates of the system twice, for connections of its client, which the exporter does not
use: 2 MB and 30 ms. OpenSSL takes their place from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_PLACES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


@contextmanager
def _no_certificates() -> Iterator[None]:
    before = {name: os.environ[name] for name in _PLACES if name in os.environ}
    os.environ.update(dict.fromkeys(_PLACES, os.devnull))
    try:
        yield
    finally:
        for name in _PLACES:
            del os.environ[name]
        os.environ.update(before)


with _no_certificates():
    from aiohttp import web as web
    from aiohttp import web_response as web_response
