"""Pieces of an HTML page without scripts: a style, tables, and numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root{color-scheme:light dark;--line:light-dark(#dfe3e8,#30363d);--dim:light-dark(#5c6670,#9aa4af);
--card:light-dark(#f6f8fa,#161b22);--accent:light-dark(#0b5fae,#6cb6ff)}
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;padding:1.5rem 1.5rem 4rem;max-width:76rem;
background:light-dark(#fff,#0d1117);color:light-dark(#1c2128,#e6edf3)}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}h3{font-size:.95rem;margin:1.2rem 0 .3rem}
ul{margin:.3rem 0;padding-left:1.2rem}nav{margin-top:.5rem}
a{color:var(--accent)}p{margin:.3rem 0}.dim,th{color:var(--dim)}.dim b{color:light-dark(#1c2128,#e6edf3)}
nav a{margin-right:1.2rem}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(10.5rem,1fr));gap:.8rem;margin:1.4rem 0}
.cards div{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.6rem .9rem}
.cards div{color:var(--dim);font-size:.92rem}
.cards b{color:light-dark(#1c2128,#e6edf3);display:block;font-size:1.5rem;font-weight:600;
font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;padding:.35rem .8rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:500;white-space:nowrap}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.m{font-family:ui-monospace,monospace;font-size:.88em;overflow-wrap:anywhere}
.s{border-radius:1rem;padding:.05rem .6rem;font-size:.85em;white-space:nowrap}
.ok{background:light-dark(#d8f3dc,#12361f);color:light-dark(#14532d,#7ee2a0)}
.bad{background:light-dark(#fde2e1,#4a1a1a);color:light-dark(#8a1c16,#ffa198)}
.warn{background:light-dark(#fff1cc,#3d2f0a);color:light-dark(#6b4e00,#f2cc60)}
.off{background:light-dark(#e7ebef,#262c34);color:var(--dim)}
"""


def section(title: str, heads: Iterable[str], rows: Sequence[str], empty: str, after: str = "") -> str:
    """A heading and a table; a column whose head begins with # holds numbers."""
    if not rows:
        return f'<h2>{title}</h2><p class="dim">{empty}</p>{after}'
    head = "".join(f'<th class="n">{it[1:]}</th>' if it.startswith("#") else f"<th>{it}</th>" for it in heads)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<h2>{title}</h2><div class="scroll"><table><tr>{head}</tr>{body}</table></div>{after}'


def cell(text: str, kind: str = "") -> str:
    """A table cell with a text of anyone's in it; `kind` is its CSS class."""
    attribute = f' class="{kind}"' if kind else ""
    return f"<td{attribute}>{escape(cut(text, 200))}</td>"


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def count(number: float) -> str:
    """A count with its thousands apart; below 10 with one decimal where it has any."""
    if number < 10 and number != int(number):
        return f"{number:.1f}"
    return f"{number:,.0f}".replace(",", "\u202f")


def size(number: float) -> str:
    """A number of bytes in the binary unit that suits it."""
    step = 0
    while number >= 1024 and step < 5:
        number, step = number / 1024, step + 1
    unit = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")[step]
    return f"{number:.0f} {unit}" if number >= 100 or not step else f"{number:.1f} {unit}"


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    seconds = max(0.0, seconds)
    for limit, divisor, unit in (
        (1e-3, 1e-6, "µs"),
        (1, 1e-3, "ms"),
        (120, 1, "s"),
        (7200, 60, "min"),
        (172800, 3600, "h"),
    ):
        if seconds < limit:
            return f"{seconds / divisor:.3g} {unit}" if seconds < 1 else f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"
