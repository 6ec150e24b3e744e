"""A server of pages of metrics, as exporters are, for tests of what scrapes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from exporter.views import prometheus


@contextmanager
def serve(page: Callable[[str], bytes]) -> Iterator[str]:
    """Serve the pages that `page` returns by path and query; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", prometheus.Format.TEXT.value)
            self.end_headers()
            self.wfile.write(page(self.path))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
