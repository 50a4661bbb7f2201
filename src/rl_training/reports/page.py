"""Parts of a page of HTML that stands alone: nothing is fetched, every text is escaped."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rl_training.experiment.errors import printable
from rl_training.reports.charts import COLOURS, Line, Mark, short
from rl_training.reports.style import STYLE

FORBIDDEN = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; media-src data:"
)
"""What a browser may load for a page: nothing but what is in it."""


RELOAD = """
const box = document.getElementById("reload"), folds = document.querySelectorAll("details");
const kept = JSON.parse(sessionStorage.getItem(location.pathname) ?? "{}");
box.checked = kept.reload ?? true;
folds.forEach((fold, i) => { fold.open = kept.open?.[i] ?? false; });
setInterval(() => {
  if (!box.checked) return;
  const state = {reload: box.checked, open: Array.from(folds, fold => fold.open)};
  sessionStorage.setItem(location.pathname, JSON.stringify(state));
  location.reload();
}, SECONDS * 1000);
"""
"""Loads a page again, with the same parts of it unfolded."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def html(value: Any) -> str:
    """A value for a page: escaped, without control characters, unless it is markup."""
    return value if isinstance(value, Markup) else escape(printable(str(value)))


def joined(parts: Iterable[Any]) -> Markup:
    return Markup("\n".join(html(part) for part in parts))


def document(title: str, body: Markup, refresh_seconds: int | None = None) -> str:
    """A whole page; with `refresh_seconds` it loads itself again and again, unless its reader
    stops that."""
    refresh = "" if refresh_seconds is None else _refreshed(refresh_seconds)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{FORBIDDEN}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{html(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{body}\n{refresh}</body>\n</html>\n"
    )


def _refreshed(seconds: int) -> str:
    return (
        '<footer class="controls"><label><input type="checkbox" id="reload" checked> '
        f"Load this page again every {seconds} seconds</label></footer>\n"
        f"<script>{RELOAD.replace('SECONDS', str(seconds))}</script>\n"
    )


def section(title: str, parts: Sequence[Markup], name: str, level: int = 2) -> Markup:
    """A titled part of a page; nothing if it has no content."""
    if not parts:
        return Markup()
    head = f'<h{level} id="{html(name)}-title">{html(title)}</h{level}>\n{joined(parts)}\n'
    if level > 2:  # no landmark: several runs have parts of the same name
        return Markup(f'<div id="{html(name)}">\n{head}</div>')
    return Markup(
        f'<section class="card" id="{html(name)}" aria-labelledby="{html(name)}-title">\n'
        f"{head}</section>"
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
    shown = short(value)
    if 1e3 <= abs(value) < 1e6:
        shown = f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
    return Markup(f'<data value="{html(repr(value))}">{html(shown)}</data>')


def table(caption: str, heads: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Markup:
    """A table whose first column names its rows, with names of its columns if there are `heads`;
    numbers are to the right."""
    body, numeric = [], set()
    for first, *others in rows:
        numeric |= {place for place, cell in enumerate(others, 1) if _number(cell)}
        cells = "".join(f"<td{_number(cell)}>{html(cell)}</td>" for cell in others)
        body.append(f'<tr><th scope="row">{html(first)}</th>{cells}</tr>')
    top = "".join(
        f'<th scope="col"{_kind("number" if place in numeric else "")}>{html(head)}</th>'
        for place, head in enumerate(heads)
    )
    head = f"<thead><tr>{top}</tr></thead>\n" if heads else ""
    return Markup(
        f'<div class="scroll" role="group" tabindex="0" aria-label="{html(caption)}">\n'
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
        Markup(f'<span class="mark{i % 2}"></span>{html(mark.name)}: {html(short(mark.y))}')
        for i, mark in enumerate(marks)
    ]
    legend = bullets(named, "legend") if len(named) > 1 else ""
    return Markup(f"<figure>{svg}{legend}<figcaption>{html(caption)}</figcaption></figure>")


def grid(parts: Sequence[Markup]) -> Markup:
    """Charts beside each other where there is room."""
    return Markup(f'<div class="charts">\n{joined(parts)}\n</div>') if parts else Markup()


def columns(parts: Sequence[Markup]) -> Markup:
    """Short tables beside each other where there is room."""
    return Markup(f'<div class="columns">\n{joined(parts)}\n</div>')


@dataclass(frozen=True)
class Tile:
    """A fact in large letters, with a line of detail below it."""

    name: str
    value: Any
    detail: Any = ""
    kind: str = ""


def tiles(facts: Iterable[Tile]) -> Markup:
    shown = [
        f"<div><dt>{html(one.name)}</dt><dd{_kind(one.kind)}>{html(one.value)}</dd>"
        + (f'<dd class="small">{html(one.detail)}</dd>' if one.detail else "")
        + "</div>"
        for one in facts
    ]
    return Markup(f'<dl class="tiles">\n{joined(map(Markup, shown))}\n</dl>')


def folded(title: str, parts: Sequence[Markup]) -> Markup:
    """Parts that are shown on request."""
    if not parts:
        return Markup()
    return Markup(f"<details><summary>{html(title)}</summary>\n{joined(parts)}\n</details>")
