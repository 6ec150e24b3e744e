"""The page /flamegraph: one document, with the only script that any page of the exporter has.

The script is known by its hash in the Content-Security-Policy, and may fetch from this server alone; what a profile has
in it becomes text there, never markup.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from html import escape
from importlib import resources

from exporter.nodename import node_name
from exporter.views.html import STYLE

_PROFILES = {
    "gpu_inuse": "GPU memory in use",
    "gpu_alloc": "GPU memory allocated since the start",
    "gpu_launches": "kernel launches since the start",
}
_GROUPS = {
    "": "nothing",
    "process": "process",
    "gpu": "GPU",
    "workload": "workload",
    "pod": "pod",
    "kind": "kind of memory",
    "rank": "rank",
}
_FILTERS = {"pid": "process", "gpu_uuid": "GPU", "workload": "workload", "pod": "pod"}
_HEADS = (("process", ""), ("GPU", ""), ("allocated at", ""), ("growth", "n"), ("in use", "n"), ("increases", "n"))
_LINK = '<a id="{0}" href="debug/pprof/gpu_inuse" download>{0}</a>'


@cache
def page() -> tuple[str, str]:
    """Return the document and its Content-Security-Policy."""
    script, style = (_file(f"flamegraph.{kind}") for kind in ("js", "css"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    node = escape(node_name())
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>Flame graph of {node}</title><style>{STYLE}{style}</style></head><body>"
        f'<header><h1>{node}</h1><span class="dim">GPU memory and launches by stack</span>'
        '<nav><a href="./">node</a></nav></header>'
        f'<div class="bar">{_select("profile", "profile", _PROFILES)}{_select("value", "value", {})}'
        f"{_select('by', 'grouped by', _GROUPS)}{''.join(_select(at, it, {'': 'all'}) for at, it in _FILTERS.items())}"
        '</div><div class="bar"><label>search <input id="search" type="search" autocomplete="off"></label>'
        '<button id="reset" disabled>zoom out</button><button id="refresh">refresh</button>'
        '<button id="remember" disabled>remember this moment</button>'
        '<label><input id="compare" type="checkbox" disabled><span id="compare-text">compare</span></label>'
        f"<span>{' '.join(map(_LINK.format, ('pprof', 'collapsed', 'speedscope')))}</span></div>"
        '<p id="status" role="status"><noscript>This page takes JavaScript; the profiles themselves are at '
        '<a href="debug/pprof/gpu_inuse">debug/pprof/gpu_inuse</a>, gpu_alloc and gpu_launches.</noscript></p>'
        '<div id="graph"></div><pre id="detail" class="dim"></pre>'
        '<h2>Stacks that grow<small id="growing-note"></small></h2>'
        f'<div class="scroll"><table id="growing-table" hidden><thead><tr>{_heads()}</tr></thead>'
        f'<tbody id="growing"></tbody></table></div><script>{script}</script></body></html>\n'
    )
    return text, policy


def _select(name: str, label: str, options: dict[str, str]) -> str:
    items = "".join(f'<option value="{value}">{text}</option>' for value, text in options.items())
    return f'<label>{label} <select id="{name}">{items}</select></label>'


def _heads() -> str:
    return "".join(f'<th class="{kind}">{text}</th>' if kind else f"<th>{text}</th>" for text, kind in _HEADS)


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
