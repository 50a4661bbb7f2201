"""The sections of a report about one run."""

from __future__ import annotations

from rl_training.reports import figures
from rl_training.reports.charts import Mark, duration
from rl_training.reports.comparison import Comparison
from rl_training.reports.estimates import estimate_parts
from rl_training.reports.extras import Extras
from rl_training.reports.origin import origin_parts, reproduction_parts
from rl_training.reports.page import (
    Markup,
    Tile,
    bullets,
    folded,
    grid,
    html,
    number,
    paragraph,
    table,
    tiles,
)
from rl_training.reports.runs import Run, SeedRun, is_number, mapping_in
from rl_training.reports.words import in_words, sentence
from rl_training.runtime.statistics import Interval, Summary


def run_parts(run: Run, found: Comparison | None, extras: Extras) -> dict[str, list[Markup]]:
    """The sections about a run by their titles; empty ones are left out of a page."""
    return {
        "Result": _result_parts(run, found, extras),
        "Learning curves": _curve_parts(run, found, extras),
        "Evaluation returns": _return_parts(run),
        "Videos": _video_parts(extras),
        "What the model expected": _model_parts(run, extras),
        "Measures on held-out data": _data_metric_parts(run),
        "Off-policy estimates": estimate_parts(run),
        "Where the time went": _time_parts(run),
        "Warnings and notes": _warning_parts(run, extras),
        "What was run": origin_parts(run, extras.data),
        "How to reproduce it": reproduction_parts(run),
    }


def _result_parts(run: Run, found: Comparison | None, extras: Extras) -> list[Markup]:
    unit, budget = figures.unit_of(run), run.budget
    done = f"{run.tick / budget:.0%}" if budget else f"{run.tick:,}"
    counted = f"{run.tick:,}" + (f" of {budget:,}" if budget else "") + f" {unit}"
    facts = [Tile("status", run.status, run.result.get("stop_reason") or "", run.status)]
    if found is not None:
        facts += _score_tiles(run, found, extras)
    if run.wall_seconds is not None:
        counted += f" in {duration(run.wall_seconds)}"
    facts.append(Tile("progress", done, counted))
    if found is None:
        return [tiles(facts), paragraph("No evaluation yet.")]
    parts = [tiles(facts), _seed_table(run, found.metric)]
    if len(run.seeds) > 1:
        parts.append(_summary_table(found))
    return parts


def _score_tiles(run: Run, found: Comparison, extras: Extras) -> list[Tile]:
    """The last and the best score, and that of the data where it can be compared with them."""
    (arm,) = found.arms
    words, several = in_words(found.metric), len(arm.seeds) > 1
    held_out = any(mapping_in(seed.result, "held_out").get("last") for seed in arm.seeds)
    what = "last policy, held-out starts" if held_out else "last evaluation"
    over = f", mean of {len(arm.seeds)} seeds" if several else ""
    facts = [
        Tile(words, number(arm.summary.mean.value), what + over),
        Tile("best evaluation", number(arm.best.mean.value), f"{words}{over}"),
    ]
    if found.metric == "eval/return_mean" and is_number(dict(extras.data), "return mean"):
        best = f"best episode {extras.data['return max']:,.1f}"
        facts.append(Tile("mean return of the data", number(extras.data["return mean"]), best))
    return facts


def _seed_table(run: Run, metric: str) -> Markup:
    """Scores of every seed; columns without any value are left out."""
    heads = ("last evaluation", "best evaluation", "at", "held out, last", "held out, best")
    rows = [_seed_row(seed, metric) for seed in run.seeds]
    kept = [i for i in range(len(heads)) if any(row[i] is not None for row in rows)]
    shown = [
        (seed.seed, *(_cell(row[i], heads[i]) for i in kept))
        for seed, row in zip(run.seeds, rows, strict=True)
    ]
    caption = sentence(f"{in_words(metric)} of every seed")
    if len(heads) - 1 in kept or len(heads) - 2 in kept:
        caption += "; held out: from start states that chose no policy"
    return table(caption, ("seed", *(heads[i] for i in kept)), shown)


def _cell(value: float | None, head: str) -> Markup:
    if head == "at" and value is not None:
        return Markup(f'<data value="{int(value)}">{int(value):,}</data>')
    return number(value)


def _seed_row(seed: SeedRun, metric: str) -> tuple[float | None, ...]:
    values, best = seed.curve(metric).values, seed.best(metric)
    held_out = mapping_in(seed.result, "held_out")
    last, chosen = mapping_in(held_out, "last"), mapping_in(held_out, "best")
    return (
        values[-1] if values else None,
        best[1] if best else None,
        best[0] if best else None,
        last[metric] if is_number(last, metric) else None,
        chosen[metric] if is_number(chosen, metric) else None,
    )


def interval(one: Interval) -> Markup:
    """A number with the interval around it."""
    return Markup(f"{number(one.value)} [{number(one.low)}, {number(one.high)}]")


def _summary_table(found: Comparison) -> Markup:
    (arm,) = found.arms
    values = [seed.curve(found.metric).values for seed in arm.seeds]
    summaries = [("last evaluations", Summary.of([own[-1] for own in values if own]))]
    summaries.append(("best evaluations", arm.best))
    if any(mapping_in(seed.result, "held_out") for seed in arm.seeds):
        summaries.append(("held out, last policies", arm.summary))
    rows = [
        (name, interval(summary.mean), interval(summary.iqm), number(len(summary.scores)))
        for name, summary in summaries
    ]
    heads = ("scores", "mean", "interquartile mean", "seeds")
    return table(sentence(f"{in_words(found.metric)} over seeds, with 95% intervals"), heads, rows)


def data_marks(found: Comparison, extras: Extras) -> list[Mark]:
    """What the data earned, where evaluations earn the same."""
    return [
        Mark(f"{words} return of the data", float(extras.data[key]))
        for words, key in (("mean", "return mean"), ("best", "return max"))
        if found.metric == "eval/return_mean" and key in extras.data
    ]


def _curve_parts(run: Run, found: Comparison | None, extras: Extras) -> list[Markup]:
    charts = [] if found is None else figures.learning_curves(found, data_marks(found, extras))
    if found is not None and len(run.seeds) > 1:
        charts += figures.seed_curves(run, [found.metric])
    charts += figures.seed_curves(run, ["rollout/return_mean"])
    names = [name for name in figures.training_metrics(run.seeds) if name != "rollout/return_mean"]
    more = grid(figures.seed_curves(run, names))
    parts = [grid(charts), folded(f"Training metrics ({len(names)})", [more] if more else [])]
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
    spread = figures.return_distribution(returns, caption)
    return [grid([spread, *figures.return_range(run)])]


def _model_parts(run: Run, extras: Extras) -> list[Markup]:
    """What a learned model of the environment expected, beside what came."""
    names = figures.model_metrics(run.seeds)
    if not names:
        return []
    charts = figures.expected_rewards(run)
    parts = [grid(charts)] if charts else []
    if extras.predictions:
        caption = (
            "From top to bottom: what came, what the model expected, the difference. The model "
            "sees the first steps (green edge) and then only the actions (red edge)."
        )
        parts.append(
            Markup(
                f'<figure><img src="{html(extras.predictions)}" alt="{html(caption)}">'
                f"<figcaption>{html(caption)}</figcaption></figure>"
            )
        )
    return parts + _measure_parts(run, names, "Last values of the model")


def _measure_parts(run: Run, names: list[str], caption: str) -> list[Markup]:
    """The last values of metrics for every seed, and their curves on request."""
    rows = []
    for name in names:
        words = in_words(name)
        label = html(sentence(words)) + ("" if words == name else f" <code>{html(name)}</code>")
        ends = [seed.curve(name).values[-1:] for seed in run.seeds]
        rows.append((Markup(label), *(number(end[0] if end else None) for end in ends)))
    heads = ("measure", *(f"seed {seed.seed}" for seed in run.seeds))
    charts = grid(figures.seed_curves(run, names))
    return [table(caption, heads, rows), folded("Curves", [charts] if charts else [])]


def _video_parts(extras: Extras) -> list[Markup]:
    shown = [
        f'<figure><video controls muted loop playsinline src="{html(uri)}" '
        f'aria-label="{html(caption)}"></video><figcaption>{html(caption)}</figcaption></figure>'
        for caption, uri in extras.videos
    ]
    return [Markup(f'<div class="videos">{"".join(shown)}</div>')] if shown else []


def _data_metric_parts(run: Run) -> list[Markup]:
    names = [name for s in run.seeds[:1] for name in s.metrics() if name.startswith("offline/")]
    caption = "Last values on episodes that no update learned from"
    return _measure_parts(run, names, caption) if names else []


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
        (in_words(name).removesuffix(" per second"), number(values[-1]))
        for name in ("time/env_steps_per_second", "time/updates_per_second")
        if run.seeds and (values := run.seeds[0].curve(name).values)
    ]
    if rates:
        parts.append(table("Newest rates", ("what", "per second"), rates))
    return parts


def _warning_parts(run: Run, extras: Extras) -> list[Markup]:
    """What asks for attention, and below it what is merely worth knowing."""
    warnings: list[str] = []
    notes: list[str] = []
    if run.status in ("failed", "dead", "interrupted"):
        ends = {"dead": "its process ended without a result", "failed": "it failed",
                "interrupted": "it was interrupted"}  # fmt: skip
        warnings.append(f"The run is not complete: {ends[run.status]}.")
    results = [run.result, *(seed.result for seed in run.seeds if seed.folder != run.folder)]
    for result in results:
        for key, listed in (("warnings", warnings), ("data_notes", notes)):
            found = result.get(key)
            listed += [str(one) for one in found] if isinstance(found, list) else []
        failures = mapping_in(result, "failures")
        warnings += [f"seed {seed} failed: {why}" for seed, why in failures.items()]
        if result.get("inexact_because"):
            warnings.append(f"A resume is not exact: {result['inexact_because']}.")
    notes += extras.notes
    if 1 < len(run.seeds) < 3:
        warnings.append("Fewer than three seeds: intervals over seeds say little.")
    parts = [
        bullets(map(sentence, dict.fromkeys(listed)), kind)
        for listed, kind in ((warnings, "warn"), (notes, ""))
        if listed
    ]
    return parts or [paragraph("None.")]
