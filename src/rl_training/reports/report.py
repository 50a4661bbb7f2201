"""The report of one run, or of several runs of one task, as a page that stands alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.experiment.files import replace_text
from rl_training.reports import figures
from rl_training.reports.charts import duration
from rl_training.reports.comparison import Comparison, compare
from rl_training.reports.extras import Extras
from rl_training.reports.page import (
    Markup,
    bullets,
    document,
    grid,
    html,
    joined,
    number,
    paragraph,
    section,
    table,
)
from rl_training.reports.run_parts import data_marks, interval, run_parts
from rl_training.reports.runs import Run, SeedRun
from rl_training.reports.words import in_words, sentence

REFRESH_SECONDS = 10
"""How often the page of a run that goes on is loaded again."""
MOST_DETAILED = 12
"""Runs of a comparison that are described one by one."""
REPORT_FILE = "report.html"


def write_report(
    runs: Sequence[Run], target: Path, extras: Mapping[Path, Extras] | None = None
) -> None:
    """Write the report of runs of one task, whole or not at all."""
    replace_text(target, report(runs, extras))


def report(runs: Sequence[Run], extras: Mapping[Path, Extras] | None = None) -> str:
    """The page; runs of different tasks are refused. `extras` are by run folder."""
    given = extras or {}
    found = None
    if len(runs) > 1 or any(run.chosen_metric for run in runs):
        found = compare(runs)
    if len(runs) == 1:
        (run,) = runs
        title = f"{run.config.get('algo', 'run')} on {run.task_name}"
        parts = run_parts(run, found, given.get(run.folder, Extras()))
        intro = paragraph(f"Run folder: {run.folder}", "soft")
    else:
        assert found is not None
        title = f"{len(runs)} runs on {runs[0].task_name}"
        parts = {"Comparison": _comparison_parts(found, given), "Runs": [_runs_table(runs)]}
        for i, run in enumerate(runs[:MOST_DETAILED]):
            own = compare([run]) if run.chosen_metric else None
            own_parts = run_parts(run, own, given.get(run.folder, Extras()))
            parts[f"Run {i + 1}: {run.folder.name}"] = [
                section(name, inner, f"run{i}-{_slug(name)}", 3)
                for name, inner in own_parts.items()
            ]
        intro = paragraph("Runs that differ in their seed alone are one experiment.", "soft")
    names = [name for name, inner in parts.items() if inner]
    links = bullets(Markup(f'<a href="#{_slug(name)}">{html(name)}</a>') for name in names)
    body = joined([
        Markup(f"<header><h1>{html(title)}</h1>{intro}</header>"),
        Markup(f'<nav aria-label="Contents">{links}</nav>'),
        Markup("<main>"),
        *(section(name, parts[name], _slug(name)) for name in names),
        Markup("</main>"),
    ])  # fmt: skip
    running = any(run.status == "running" for run in runs)
    return document(title, body, REFRESH_SECONDS if running else None)


def _slug(name: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower())


# --- several runs -------------------------------------------------------------------------------


def _comparison_parts(found: Comparison, given: Mapping[Path, Extras]) -> list[Markup]:
    first = found.arms[0]
    rows = []
    for arm in found.arms:
        improves = Markup("–") if arm is first else interval(found.improvement(arm, first))
        row = (
            arm.name,
            number(len(arm.seeds)),
            interval(arm.summary.mean),
            interval(arm.summary.iqm),
        )
        rows.append((*row, improves, duration(arm.wall_seconds), arm.statuses))
    heads = ("experiment", "seeds", "mean", "interquartile mean", "improves", "time", "status")
    caption = (
        f"{sentence(in_words(found.metric))} of the last policies with 95% intervals over seeds; "
        f"improves: the probability that a seed is better than one of '{first.name}'"
    )
    used = [given.get(run.folder, Extras()) for arm in found.arms for run in arm.runs]
    same = all(one.data == used[0].data for one in used)
    charts = figures.learning_curves(found, data_marks(found, used[0]) if same else ())
    if max(len(arm.seeds) for arm in found.arms) > 1:
        charts += [figures.interval_figure(found), figures.profile_chart(found)]
    parts = [table(caption, heads, rows), grid(charts)]
    few = [arm.name for arm in found.arms if len(arm.seeds) < 3]
    if few:
        shown = ", ".join(few[:5]) + (" and others" if len(few) > 5 else "")
        parts.append(paragraph(f"Fewer than three seeds of {shown}: such intervals say little."))
    return parts


def _runs_table(runs: Sequence[Run]) -> Markup:
    score: Callable[[Run, SeedRun], Any] = lambda run, seed: number(  # noqa: E731
        seed.score(run.chosen_metric) if run.chosen_metric else None
    )
    rows = [
        (run.folder.name, run.config.get("algo"), seed.seed, run.status, score(run, seed))
        for run in runs
        for seed in run.seeds
    ]
    return table("All runs", ("run", "algorithm", "seed", "status", "last score"), rows)
