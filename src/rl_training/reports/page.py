"""Parts of a page of HTML that stands alone: nothing is fetched, every text is escaped."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from rl_training.experiment.errors import printable
from rl_training.reports.charts import COLOURS, Line, Mark, short

STYLE = """
:root{color-scheme:light dark;--text:#1b1b1b;--page:#fff;--soft:#5a5a5a;--line:#c9ccd1;
--head:#f2f4f7;--link:#0b57a4;--warn:#8a4b00}
@media(prefers-color-scheme:dark){:root{--text:#e8e8e8;--page:#16181c;--soft:#b0b4ba;--line:#42464d;
--head:#22252b;--link:#8cc2f5;--warn:#ffc26b}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1rem;color:var(--text);background:var(--page);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.6rem;line-height:1.2}h2{font-size:1.3rem;border-bottom:1px solid var(--line)}
h3{font-size:1.1rem}a{color:var(--link)}
nav ul{display:flex;flex-wrap:wrap;gap:.2rem 1rem;padding:0;list-style:none}
.soft,caption,figcaption{color:var(--soft)}.warn{color:var(--warn)}
.scroll{overflow-x:auto;margin:1rem 0}
table{border-collapse:collapse;min-width:50%}caption{text-align:left;padding:.3rem 0}
th,td{text-align:left;padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--line);
vertical-align:top;min-width:5rem}
thead th{background:var(--head)}.number{text-align:right;white-space:nowrap}
pre{white-space:pre-wrap;background:var(--head);padding:.7rem;border-radius:.3rem}
code,pre{font:.9rem ui-monospace,monospace}
figure{margin:1rem 0}svg.chart{width:100%;height:auto;display:block}
.legend{list-style:none;padding:0;margin:.3rem 0;display:flex;flex-wrap:wrap;gap:.2rem 1rem}
.legend span{display:inline-block;width:.9rem;height:.25rem;margin-right:.4rem;
vertical-align:middle}
.legend .dashed{height:0;border-top:2px dashed currentColor}
video{max-width:100%;height:auto}.videos{display:flex;flex-wrap:wrap;gap:1rem}
.bar{background:#0072b2;height:.6rem;border-radius:.2rem;min-width:1px}
details summary{cursor:pointer;padding:.3rem 0}
button.sort{all:unset;cursor:pointer;font-weight:bold}
button.sort:focus-visible{outline:2px solid var(--link)}
input,select{font:inherit;max-width:100%}
@media(max-width:600px){.chart{font-size:18px}.chart .label{display:none}}
@media print{:root{--text:#000;--page:#fff;--soft:#444;--line:#bbb;--head:#eee;--link:#000;
--warn:#000}nav,.controls{display:none}figure,table{break-inside:avoid}body{max-width:none}}
"""
FORBIDDEN = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; media-src data:"
)
"""What a browser may load for a page: nothing but what is in it."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def html(value: Any) -> str:
    """A value for a page: escaped, without control characters, unless it is markup."""
    return value if isinstance(value, Markup) else escape(printable(str(value)))


def joined(parts: Iterable[Any]) -> Markup:
    return Markup("\n".join(html(part) for part in parts))


def document(title: str, body: Markup, refresh_seconds: int | None = None) -> str:
    """A whole page; with `refresh_seconds` the browser loads it again and again."""
    refresh = (
        ""
        if refresh_seconds is None
        else f'<meta http-equiv="refresh" content="{refresh_seconds}">\n'
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{FORBIDDEN}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'{refresh}<link rel="icon" href="data:,">\n<title>{html(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def section(title: str, parts: Sequence[Markup], name: str, level: int = 2) -> Markup:
    """A titled part of a page; nothing if it has no content."""
    if not parts:
        return Markup()
    return Markup(
        f'<section id="{html(name)}" aria-labelledby="{html(name)}-title">\n'
        f'<h{level} id="{html(name)}-title">{html(title)}</h{level}>\n'
        f"{joined(parts)}\n</section>"
    )


def paragraph(text: Any, kind: str = "") -> Markup:
    return Markup(f"<p{_kind(kind)}>{html(text)}</p>")


def bullets(items: Iterable[Any], kind: str = "") -> Markup:
    return Markup(f"<ul{_kind(kind)}>" + "".join(f"<li>{html(i)}</li>" for i in items) + "</ul>")


def _kind(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def command(*words: str) -> Markup:
    """A command line to paste."""
    return Markup(f"<pre><code>{html(shlex.join(words))}</code></pre>")


def number(value: Any) -> Markup:
    """A number in a few digits, with its exact value for programs that read the page; a dash for
    anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return Markup("–")
    shown = f"{value:,.1f}" if 1e3 <= abs(value) < 1e6 else short(value)
    return Markup(f'<data value="{html(repr(value))}">{html(shown)}</data>')


def table(caption: str, heads: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Markup:
    """A table whose first column names its rows, with names of its columns if there are `heads`;
    numbers are to the right."""
    body = []
    for first, *others in rows:
        cells = "".join(f"<td{_number(cell)}>{html(cell)}</td>" for cell in others)
        body.append(f'<tr><th scope="row">{html(first)}</th>{cells}</tr>')
    top = "".join(f'<th scope="col">{html(head)}</th>' for head in heads)
    head = f"<thead><tr>{top}</tr></thead>\n" if heads else ""
    return Markup(
        f'<div class="scroll" role="region" tabindex="0" aria-label="{html(caption)}">\n'
        f"<table>\n<caption>{html(caption)}</caption>\n{head}"
        "<tbody>\n" + "\n".join(body) + "\n</tbody>\n</table>\n</div>"
    )


def _number(cell: Any) -> str:
    return ' class="number"' if isinstance(cell, Markup) and cell.startswith("<data") else ""


def figure(
    svg: str, caption: str, lines: Sequence[Line] = (), marks: Sequence[Mark] = ()
) -> Markup:
    """A chart with its caption and, where it has several curves, what each of them is."""
    named = [
        Markup(f'<span style="background:{COLOURS[i % len(COLOURS)]}"></span>{html(line.name)}')
        for i, line in enumerate(line for line in lines if len(line.x))
    ]
    named += [
        Markup(f'<span class="dashed"></span>{html(mark.name)}: {html(short(mark.y))}')
        for mark in marks
    ]
    legend = bullets(named, "legend") if len(named) > 1 else ""
    return Markup(f"<figure>{svg}{legend}<figcaption>{html(caption)}</figcaption></figure>")


def folded(title: str, parts: Sequence[Markup]) -> Markup:
    """Parts that are shown on request."""
    if not parts:
        return Markup()
    return Markup(f"<details><summary>{html(title)}</summary>\n{joined(parts)}\n</details>")
