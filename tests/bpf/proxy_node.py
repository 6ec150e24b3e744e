"""Proxies as Debian has them, in front of a server: nginx, HAProxy and Caddy, which takes Go's HTTP server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bpf.http2_node import running
from tests.bpf.serving_node import Server
from tests.packages import root_with
from tests.support import free_port

SUITE = "trixie"
_NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors; user root;
events {{}}
http {{
    access_log off; client_body_temp_path {folder}/1; proxy_temp_path {folder}/2; fastcgi_temp_path {folder}/3;
    uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;
    upstream server {{ server 127.0.0.1:{to}; keepalive 16; }}
    server {{
        listen 127.0.0.1:{port}; http2 on;
        location / {{
            proxy_pass http://server; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
        }}
    }}
}}
"""
_HAPROXY = """
defaults
    mode http
    timeout connect 9s
    timeout client 60s
    timeout server 60s
    option http-no-delay
    {options}
listen proxy
    bind 127.0.0.1:{port}
    server server 127.0.0.1:{to}
"""
_CADDY = """
{{
    admin off
    auto_https off
    servers {{
        protocols h1 h2c
    }}
}}
http://:{port} {{
    bind 127.0.0.1
    reverse_proxy 127.0.0.1:{to}
}}
"""


def _nginx(root: Path, folder: str, port: int, to: int) -> list[str]:
    for name, line in (("passwd", "root:x:0:0::/:/bin/sh\n"), ("group", "root:x:0:\n")):
        (root / "etc" / name).write_text(line)  # which scripts of the packages make
    _configure(root, folder, _NGINX.format(folder=folder, port=port, to=to))
    return ["/usr/sbin/nginx", "-e", f"{folder}/errors", "-c", f"{folder}/configuration"]


def _haproxy(root: Path, folder: str, port: int, to: int, options: str = "") -> list[str]:
    _configure(root, folder, _HAPROXY.format(options=options, port=port, to=to))
    return ["/usr/sbin/haproxy", "-db", "-f", f"{folder}/configuration"]


def _splicing(root: Path, folder: str, port: int, to: int) -> list[str]:
    return _haproxy(root, folder, port, to, "option splice-response")


def _caddy(root: Path, folder: str, port: int, to: int) -> list[str]:
    _configure(root, folder, _CADDY.format(port=port, to=to))
    return ["/usr/bin/caddy", "run", "--adapter", "caddyfile", "--config", f"{folder}/configuration"]


def _configure(root: Path, folder: str, text: str) -> None:
    (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    (root / folder.lstrip("/") / "configuration").write_text(text)


_KINDS: dict[str, tuple[str, Callable[[Path, str, int, int], list[str]]]] = {
    "nginx": ("nginx", _nginx),
    "haproxy": ("haproxy", _haproxy),
    "haproxy-splice": ("haproxy", _splicing),
    "caddy": ("caddy", _caddy),
}
PROXIES = tuple(_KINDS)


@contextmanager
def proxy(kind: str, server: Server) -> Iterator[Server]:
    """A proxy of this kind before a server. Skips where Debian's package cannot be had."""
    package, command = _KINDS[kind]
    root, port = root_with(package, SUITE), free_port()
    with running(["chroot", str(root), *command(root, f"/tmp/{port}", port, server.address[1])], port) as made:
        yield made
