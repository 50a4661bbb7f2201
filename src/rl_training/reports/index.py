"""A page that lists all runs, to be sorted and filtered in the browser."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rl_training.reports.charts import duration
from rl_training.reports.page import Markup, document, html, joined, number, paragraph
from rl_training.reports.report import REFRESH_SECONDS, REPORT_FILE
from rl_training.reports.runs import STATUSES, Run, described
from rl_training.reports.words import in_words

HEADS = ("run", "status", "algorithm", "task", "seeds", "progress", "metric", "score", "time")
SCRIPT = """
const body = document.querySelector("tbody"), rows = Array.from(body.rows);
const text = document.getElementById("text"), status = document.getElementById("status");
const shown = document.getElementById("shown");
function filter() {
  const words = text.value.toLowerCase().split(/\\s+/).filter(Boolean);
  let count = 0;
  for (const row of rows) {
    const said = row.textContent.toLowerCase();
    const fits = words.every(word => said.includes(word)) &&
      (!status.value || row.dataset.status === status.value);
    row.hidden = !fits;
    count += fits;
  }
  shown.textContent = count + " of " + rows.length + " runs";
}
function sort(head, column) {
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = row => row.cells[column].dataset.key ?? row.cells[column].textContent;
  const numeric = rows.every(row => key(row) === "" || !isNaN(key(row)));
  rows.sort((one, other) => {
    const a = key(one), b = key(other);
    if (a === "" || b === "") return (a === "") - (b === "");
    const order = numeric ? a - b : a.localeCompare(b, "en", {numeric: true});
    return up ? order : -order;
  });
  body.append(...rows);
}
document.querySelectorAll("thead th").forEach((head, column) => {
  head.querySelector("button").addEventListener("click", () => sort(head, column));
});
text.addEventListener("input", filter);
status.addEventListener("input", filter);
filter();
"""


def index(runs: Sequence[Run], target: Path) -> str:
    """The page of all runs, which may be of any tasks; `target` is where it will be written, and
    reports in run folders are linked from there."""
    title = "All runs"
    options = "".join(f"<option>{status}</option>" for status in STATUSES)
    heads = "".join(
        f'<th scope="col"><button type="button" class="sort">{head}</button></th>' for head in HEADS
    )
    rows = "\n".join(_row(run, target) for run in runs)
    body = joined([
        Markup(f"<header><h1>{title}</h1>"),
        paragraph("The names of the columns sort; the fields filter.", "soft"),
        Markup('</header><main class="card"><form class="controls" onsubmit="return false">'),
        Markup('<label>Words <input id="text" type="search"></label> '),
        Markup(f'<label>Status <select id="status"><option value="">all</option>{options}</select>'
               '</label> <output id="shown" aria-live="polite"></output></form>'),
        Markup('<div class="scroll" role="group" tabindex="0" aria-label="All runs">'
               f"<table><caption>Scores are means over the seeds of a run</caption>"
               f"<thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table></div></main>"),
        Markup(f"<script>{SCRIPT}</script>"),
    ])  # fmt: skip
    running = any(run.status == "running" for run in runs)
    return document(title, body, REFRESH_SECONDS if running else None)


def _row(run: Run, target: Path) -> str:
    about = described(run)
    name: Any = about["name"]
    if (run.folder / REPORT_FILE).is_file():
        place = os.path.relpath(run.folder / REPORT_FILE, target.absolute().parent)
        name = Markup(f'<a href="{quote(Path(place).as_posix())}">{html(name)}</a>')
    progress, seconds, score = about["progress"], about["wall_seconds"], about["score"]
    cells = [
        (Markup(f'<span class="{about["status"]}">{about["status"]}</span>'), None),
        (about["algo"] or "", None),
        (run.task_name, None),
        (", ".join(map(str, about["seeds"])), None),
        ("" if progress is None else f"{progress:.0%}", progress),
        (in_words(about["metric"] or ""), None),
        ("" if score is None else number(score), score),
        ("" if seconds is None else duration(seconds), seconds),
    ]
    return (
        f'<tr data-status="{html(about["status"])}"><th scope="row">{html(name)}</th>'
        + "".join(f"<td{_key(key)}>{html(shown)}</td>" for shown, key in cells)
        + "</tr>"
    )


def _key(key: float | None) -> str:
    return "" if key is None else f' data-key="{html(repr(key))}"'
