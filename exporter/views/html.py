"""Pieces of an HTML page without scripts: a style, tables, and numbers as people read them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

MOST_ROWS = 100
UNKNOWN = "–"
NOTHING = f'<td class="n u">{UNKNOWN}</td>'

STYLE = """
:root{color-scheme:light dark;--ink:light-dark(#1c2128,#e6edf3);--line:light-dark(#dfe3e8,#30363d);
--dim:light-dark(#5c6670,#9aa4af);--card:light-dark(#f6f8fa,#161b22);--accent:light-dark(#0b5fae,#6cb6ff);
--area:light-dark(#0b5fae1f,#6cb6ff26)}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;padding:1.5rem 1.5rem 4rem;max-width:92rem;
background:light-dark(#fff,#0d1117);color:var(--ink)}
header{display:flex;flex-wrap:wrap;align-items:baseline;gap:.2rem 1.2rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .5rem}h3{font-size:.95rem;margin:1.2rem 0 .3rem}
h2 small{color:var(--dim);font-weight:400;font-size:.82rem;margin-left:.5rem}
ul{margin:.3rem 0;padding-left:1.2rem;overflow-wrap:anywhere}
a{color:var(--accent)}p{margin:.3rem 0}.dim,th{color:var(--dim)}.dim b{color:var(--ink);font-weight:500}
nav{display:flex;gap:1rem;margin-left:auto}
.facts{display:flex;flex-wrap:wrap;gap:.5rem;margin:1rem 0 0;padding:0;list-style:none}
.facts a{display:block;text-decoration:none;border-radius:1rem;padding:.1rem .8rem;font-size:.9rem}
.facts a:hover{text-decoration:underline}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(11.5rem,1fr));gap:.8rem;margin:1rem 0}
.cards div{background:var(--card);border:1px solid var(--line);border-radius:.6rem;overflow:hidden;
display:flex;flex-direction:column;color:var(--dim);font-size:.88rem;padding-top:.6rem}
.cards span,.cards b,.cards small{padding:0 .9rem}
.cards b{color:var(--ink);font-size:1.5rem;line-height:1.3;font-weight:600;font-variant-numeric:tabular-nums}
.cards svg,.cards i{width:100%;height:2.6rem;margin-top:auto;display:block}
.cards small{font-size:.8rem;min-height:1.2rem;margin-bottom:.4rem}
.p{overflow:visible}.p path{fill:none;stroke-linejoin:round;stroke-linecap:round}
.p .a{fill:var(--area)}.p .l{stroke:var(--accent);stroke-width:1.5;vector-effect:non-scaling-stroke}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:.35rem .75rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th:last-child,td:last-child{padding-right:0}
th{font-weight:500;font-size:.92em;white-space:nowrap}
td svg{width:5rem;height:1.3rem;margin-right:.6rem;vertical-align:middle}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.w{white-space:nowrap}.u{color:var(--dim)}
.m{font-family:ui-monospace,monospace;font-size:.88em;overflow-wrap:anywhere;min-width:6.2rem}
.s{border-radius:1rem;padding:.05rem .6rem;font-size:.85em;white-space:nowrap}
.ok{background:light-dark(#d8f3dc,#12361f);color:light-dark(#14532d,#7ee2a0)}
.bad{background:light-dark(#fde2e1,#4a1a1a);color:light-dark(#8a1c16,#ffa198)}
.warn{background:light-dark(#fff1cc,#3d2f0a);color:light-dark(#6b4e00,#f2cc60)}
.off{background:light-dark(#e7ebef,#262c34);color:var(--dim)}
@media(max-width:40rem){body{padding:1rem .9rem 3rem}nav{margin-left:0}.cards{gap:.5rem;
grid-template-columns:1fr 1fr}.cards b{font-size:1.2rem}td svg{width:4rem}}
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its head and whole cells. `optional`: left out where no cell has anything."""

    head: str
    cells: Sequence[str]
    numbers: bool = False
    optional: bool = False


def section(
    title: str, columns: Iterable[Column], empty: str, after: str = "", note: str = "", anchor: str = ""
) -> str:
    """Return a heading and a table, or the text `empty` where there is no row."""
    shown = [it for it in columns if not it.optional or any(text != NOTHING for text in it.cells)]
    small = f"<small>{note}</small>" if note else ""
    head = f'<h2 id="{anchor or title.lower().replace(" ", "-")}">{title}{small}</h2>'
    rows = ["".join(row) for row in zip(*(it.cells for it in shown), strict=True)]
    if not rows:
        return f'{head}<p class="dim">{empty}</p>{after}'
    names = "".join(f'<th class="n">{it.head}</th>' if it.numbers else f"<th>{it.head}</th>" for it in shown)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'{head}<div class="scroll"><table><tr>{names}</tr>{body}</table></div>{after}'


def pill(text: str, kind: str) -> str:
    """A table cell with a word on the colour that it deserves: ok, warn, bad or off."""
    return f'<td><span class="s {kind}">{escape(cut(text, 100))}</span></td>'


def plotted(plot: str, text: str) -> str:
    """A table cell with a plot (markup of ours) beside its newest value."""
    return f'<td class="n">{plot}{escape(cut(text, 200))}</td>'


def cell(text: str, kind: str = "", most: int = 200) -> str:
    """A table cell with a text of anyone's in it; `kind` is its CSS class."""
    attribute = f' class="{kind}"' if kind else ""
    return f"<td{attribute}>{escape(cut(text, most))}</td>"


def amount(text: str | None) -> str:
    """A table cell with a number; a dash where it is not known."""
    return NOTHING if text is None else cell(text, "n")


def short(text: str) -> str:
    """A table cell with a text of anyone's that is not broken into lines if it is short."""
    return cell(text, "w" if len(text) <= 24 else "")


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def count(number: float) -> str:
    """A count with its thousands apart; below 10 with one decimal where it has any."""
    if number < 9.95 and abs(number - round(number)) >= 0.05:
        return f"{number:.1f}"
    return f"{number:,.0f}".replace(",", "\u202f")


def size(number: float) -> str:
    """Return a number of bytes in the largest binary unit of which there is one or more."""
    step = 0
    while number >= 1024 and step < 5:
        number, step = number / 1024, step + 1
    unit = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")[step]
    return f"{number:.0f} {unit}" if number >= 100 or not step else f"{number:.1f} {unit}"


def share(ratio: float) -> str:
    """Return a ratio of 0 to 1 in percent, with two significant digits."""
    percent = ratio * 100
    if percent and percent < 0.001:
        return f"{percent:.0e} %"
    return f"{percent:.0f} %" if percent >= 10 or not percent else f"{percent:.2g} %"


def duration(seconds: float) -> str:
    """Return a time in seconds, in the largest unit that keeps it readable."""
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


def ago(timestamp: float) -> str:
    """Return how long ago a wall time in seconds was."""
    seconds = time.time() - timestamp
    return f"{duration(seconds)} ago" if seconds >= 1 else "now"


def more(rows: int, what: str) -> str:
    """Return a line with the number of rows beyond MOST_ROWS; empty where all are shown."""
    return f'<p class="dim">and {count(rows - MOST_ROWS)} more {what} on /metrics</p>' if rows > MOST_ROWS else ""
