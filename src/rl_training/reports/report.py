"""The report of one run, or of several runs of one task, as a page that stands alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.experiment.files import replace_text
from rl_training.experiment.tracking import OPE_FILE
from rl_training.reports import figures
from rl_training.reports.charts import Mark, duration
from rl_training.reports.comparison import Comparison, compare
from rl_training.reports.origin import origin_parts, reproduction_parts
from rl_training.reports.page import (
    Markup,
    bullets,
    document,
    folded,
    html,
    joined,
    number,
    paragraph,
    section,
    table,
)
from rl_training.reports.runs import Run, SeedRun, is_number, json_file, mapping_in
from rl_training.runtime.statistics import Interval, Summary

REFRESH_SECONDS = 10
"""How often the page of a run that goes on is loaded again."""
MOST_DETAILED = 12
"""Runs of a comparison that are described one by one."""
REPORT_FILE = "report.html"


@dataclass(frozen=True)
class Extras:
    """What a report holds beside the files of a run folder."""

    videos: tuple[tuple[str, str], ...] = ()
    """Captions, and videos as data URIs."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """A summary of the data, by name; `return mean` and `return max` are drawn in."""
    notes: tuple[str, ...] = ()


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
        title = f"{run.config.get('algo', 'run')} on {run.task}"
        parts = _run_parts(run, found, given.get(run.folder, Extras()))
        intro = paragraph(f"Run folder: {run.folder}", "soft")
    else:
        assert found is not None
        title = f"{len(runs)} runs on {found.task}"
        parts = {"Comparison": _comparison_parts(found), "Runs": [_runs_table(runs)]}
        for i, run in enumerate(runs[:MOST_DETAILED]):
            own = compare([run]) if run.chosen_metric else None
            own_parts = _run_parts(run, own, given.get(run.folder, Extras()))
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


# --- one run ------------------------------------------------------------------------------------


def _run_parts(run: Run, found: Comparison | None, extras: Extras) -> dict[str, list[Markup]]:
    """The sections about a run by their titles; empty ones are left out of a page."""
    return {
        "Result": _result_parts(run, found),
        "Learning curves": _curve_parts(run, found, extras),
        "Evaluation returns": _return_parts(run),
        "Videos": _video_parts(extras),
        "Measures on held-out data": _data_metric_parts(run),
        "Off-policy estimates": _estimate_parts(run),
        "Where the time went": _time_parts(run),
        "Warnings and notes": _warning_parts(run, extras),
        "What was run": origin_parts(run, extras.data),
        "How to reproduce it": reproduction_parts(run),
    }


def _result_parts(run: Run, found: Comparison | None) -> list[Markup]:
    unit, budget = figures.unit_of(run), run.budget
    done = f"{run.tick:,}" + (f" of {budget:,}" if budget else "") + f" {unit}"
    rows: list[tuple[Any, Any]] = [("status", run.status), ("progress", done)]
    if reason := run.result.get("stop_reason"):
        rows.append(("ended because", reason))
    if run.wall_seconds is not None:
        rows.append(("time", duration(run.wall_seconds)))
    parts = [table("State of the run", (), rows)]
    if found is None:
        return [*parts, paragraph("No evaluation yet.")]
    heads = ("seed", "last evaluation", "best evaluation", "at", "held out, last", "held out, best")
    parts.append(
        table(
            f"{found.metric} of every seed; held out: from start states that chose no policy",
            heads,
            [_seed_row(seed, found.metric) for seed in run.seeds],
        )
    )
    if len(run.seeds) > 1:
        parts.append(_summary_table(found))
    return parts


def _seed_row(seed: SeedRun, metric: str) -> tuple[Any, ...]:
    values, best = seed.curve(metric).values, seed.best(metric)
    held_out = mapping_in(seed.result, "held_out")
    last, chosen = mapping_in(held_out, "last"), mapping_in(held_out, "best")
    return (
        seed.seed,
        number(values[-1] if values else None),
        number(best[1] if best else None),
        f"{best[0]:,}" if best else "–",
        number(last.get(metric)),
        number(chosen.get(metric)),
    )


def _interval(one: Interval) -> Markup:
    return Markup(f"{number(one.value)} [{number(one.low)}, {number(one.high)}]")


def _summary_table(found: Comparison) -> Markup:
    (arm,) = found.arms
    values = [seed.curve(found.metric).values for seed in arm.seeds]
    summaries = [("last evaluations", Summary.of([own[-1] for own in values if own]))]
    summaries.append(("best evaluations", arm.best))
    if any(mapping_in(seed.result, "held_out") for seed in arm.seeds):
        summaries.append(("held out, last policies", arm.summary))
    rows = [
        (name, _interval(summary.mean), _interval(summary.iqm), len(summary.scores))
        for name, summary in summaries
    ]
    heads = ("scores", "mean", "interquartile mean", "seeds")
    return table(f"{found.metric} over seeds, with 95% intervals", heads, rows)


def _curve_parts(run: Run, found: Comparison | None, extras: Extras) -> list[Markup]:
    marks = [
        Mark(f"{words} return of the data", float(extras.data[key]))
        for words, key in (("mean", "return mean"), ("best", "return max"))
        if found is not None and found.metric == "eval/return_mean" and key in extras.data
    ]
    parts = [] if found is None else figures.learning_curves(found, marks)
    if found is not None and len(run.seeds) > 1:
        parts += figures.seed_curves(run, [found.metric])
    names = figures.training_metrics(run.seeds)
    parts.append(folded(f"Training metrics ({len(names)})", figures.seed_curves(run, names)))
    return [part for part in parts if part]


def _return_parts(run: Run) -> list[Markup]:
    newest = [seed.evaluations[-1] for seed in run.seeds if seed.evaluations]
    returns = [
        float(value)
        for event in newest
        if isinstance(event.get("eval/returns"), list)
        for value in event["eval/returns"]
        if isinstance(value, (int, float)) and abs(value) < 1e300
    ]
    if not returns:
        return []
    of = "" if len(newest) == 1 else f" of {len(newest)} seeds"
    caption = f"Returns of {len(returns):,} episodes in the last evaluation{of}"
    return [figures.return_distribution(returns, caption)]


def _video_parts(extras: Extras) -> list[Markup]:
    shown = [
        f'<figure><video controls muted loop playsinline src="{html(uri)}" '
        f'aria-label="{html(caption)}"></video><figcaption>{html(caption)}</figcaption></figure>'
        for caption, uri in extras.videos
    ]
    return [Markup(f'<div class="videos">{"".join(shown)}</div>')] if shown else []


def _data_metric_parts(run: Run) -> list[Markup]:
    names = [name for s in run.seeds[:1] for name in s.metrics() if name.startswith("offline/")]
    if not names:
        return []
    rows = []
    for name in names:
        values = [v[-1] for s in run.seeds if (v := s.curve(name).values)]
        rows.append((name, *(number(value) for value in values)))
    heads = ("measure", *(f"seed {seed.seed}" for seed in run.seeds))
    measured = table("Last values on episodes that no update learned from", heads, rows)
    return [measured, folded("Curves", figures.seed_curves(run, names))]


def _estimate_parts(run: Run) -> list[Markup]:
    parts = []
    for folder in dict.fromkeys([run.folder, *(seed.folder for seed in run.seeds)]):
        entries = json_file(folder / OPE_FILE).get("evaluations")
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get("estimates"), dict):
                parts += _estimate(entry)
    return parts


def _estimate(entry: dict[str, Any]) -> list[Markup]:
    rows = [
        (name, *(number(one.get(key)) for key in ("value", "low", "high")))
        for name, one in entry["estimates"].items()
        if isinstance(one, dict)
    ]
    caption = (
        f"Value of checkpoint {entry.get('checkpoint')} on {entry.get('episodes')} episodes of "
        f"the log {entry.get('data')}, discount {entry.get('gamma')}"
    )
    facts = [f"Verdict: {entry.get('verdict')}"]
    unusual = entry.get("unusual")
    if isinstance(unusual, (int, float)):
        facts.append(f"Support: {unusual:.1%} of the policy's actions are unusual in the log")
    size = entry.get("effective_size")
    if isinstance(size, (int, float)):
        facts.append(f"Effective sample size of the weights: {size:.1f} episodes")
    return [table(caption, ("estimator", "value", "low", "high"), rows), bullets(facts)]


def _time_parts(run: Run) -> list[Markup]:
    parts = []
    profile = mapping_in(run.result, "profile")
    if profile:
        known = {name: float(profile[name]) for name in profile if is_number(profile, name)}
        total = max(run.wall_seconds or 0.0, sum(known.values())) or 1.0
        known["everything else"] = max(total - sum(known.values()), 0.0)
        rows = [
            (
                name,
                number(seconds),
                f"{seconds / total:.1%}",
                Markup(f'<div class="bar" style="width:{seconds / total:.1%}"></div>'),
            )
            for name, seconds in sorted(known.items(), key=lambda item: -item[1])
        ]
        parts.append(table("Seconds by part", ("part", "seconds", "share", "share as a bar"), rows))
    else:
        parts.append(paragraph("Not measured; the key profile=true measures it.", "soft"))
    rates = [
        (name.removeprefix("time/").replace("_", " "), number(values[-1]))
        for name in ("time/env_steps_per_second", "time/updates_per_second")
        if run.seeds and (values := run.seeds[0].curve(name).values)
    ]
    if rates:
        parts.append(table("Newest rates", ("what", "per second"), rates))
    return parts


def _warning_parts(run: Run, extras: Extras) -> list[Markup]:
    listed: list[str] = []
    if run.status in ("failed", "dead", "interrupted"):
        ends = {"dead": "its process ended without a result", "failed": "it failed",
                "interrupted": "it was interrupted"}  # fmt: skip
        listed.append(f"The run is not complete: {ends[run.status]}.")
    results = [run.result, *(seed.result for seed in run.seeds if seed.folder != run.folder)]
    for result in results:
        for key in ("warnings", "data_notes"):
            found = result.get(key)
            listed += [str(one) for one in found] if isinstance(found, list) else []
        failures = mapping_in(result, "failures")
        listed += [f"seed {seed} failed: {why}" for seed, why in failures.items()]
        if result.get("inexact_because"):
            listed.append(f"A resume is not exact: {result['inexact_because']}.")
    listed += extras.notes
    if 1 < len(run.seeds) < 3:
        listed.append("Fewer than three seeds: intervals over seeds say little.")
    unique = list(dict.fromkeys(listed))
    return [bullets(unique, "warn")] if unique else [paragraph("None.")]


# --- several runs -------------------------------------------------------------------------------


def _comparison_parts(found: Comparison) -> list[Markup]:
    first = found.arms[0]
    rows = []
    for arm in found.arms:
        improves = Markup("–") if arm is first else _interval(found.improvement(arm, first))
        row = (arm.name, len(arm.seeds), _interval(arm.summary.mean), _interval(arm.summary.iqm))
        rows.append((*row, improves, duration(arm.wall_seconds), arm.statuses))
    heads = ("experiment", "seeds", "mean", "interquartile mean", "improves", "time", "status")
    caption = (
        f"{found.metric} of the last policies with 95% intervals over seeds; improves: the "
        f"probability that a seed scores more than one of '{first.name}'"
    )
    parts = [table(caption, heads, rows), *figures.learning_curves(found)]
    if max(len(arm.seeds) for arm in found.arms) > 1:
        parts.append(figures.profile_chart(found))
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
