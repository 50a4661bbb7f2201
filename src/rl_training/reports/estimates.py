"""What a policy is worth by data alone, as parts of a report: the estimates of ope.json."""

from __future__ import annotations

from typing import Any

from rl_training.experiment.tracking import OPE_FILE
from rl_training.ope.options import IN_WORDS
from rl_training.reports.charts import interval_chart
from rl_training.reports.page import (
    Markup,
    bullets,
    figure,
    folded,
    grid,
    html,
    number,
    paragraph,
    table,
)
from rl_training.reports.runs import Run, is_number, json_file, mapping_in
from rl_training.reports.words import sentence


def estimate_parts(run: Run) -> list[Markup]:
    """Every evaluation that the run folder or one of its seeds holds, in the order of making."""
    parts = []
    for folder in dict.fromkeys([run.folder, *(seed.folder for seed in run.seeds)]):
        entries = json_file(folder / OPE_FILE).get("evaluations")
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and mapping_in(entry, "estimates"):
                parts += _evaluation(entry)
    return parts


def _evaluation(entry: dict[str, Any]) -> list[Markup]:
    found = mapping_in(entry, "estimates")
    estimates = {name: one for name, one in found.items() if isinstance(one, dict)}
    actions = "sampled actions" if entry.get("stochastic") else "most likely actions"
    caption = (
        f"Value of checkpoint {entry.get('checkpoint')} with its {actions}, on "
        f"{entry.get('episodes')} episodes of the log {entry.get('data')}, discount "
        f"{entry.get('gamma')}"
    )
    verdict = Markup(f"<strong>{html(sentence(str(entry.get('verdict'))))}</strong>")
    return [paragraph(verdict), _table(caption, estimates), *_chart(estimates), *_facts(entry)]


def _table(caption: str, estimates: dict[str, dict[str, Any]]) -> Markup:
    """Columns without any value are left out."""
    rows = []
    for name, one in estimates.items():
        words = Markup(f"{html(sentence(IN_WORDS.get(name, name)))} <code>{html(name)}</code>")
        numbers = (number(one.get(key)) for key in ("value", "low", "high"))
        rows.append((words, *numbers, _coverage(one.get("coverage"))))
    heads = ("estimator", "value", "low", "high", "intervals held the truth in")
    shown = len(heads) if any(row[-1] for row in rows) else len(heads) - 1
    return table(caption, heads[:shown], [row[:shown] for row in rows])


def _coverage(shares: Any) -> str:
    known = isinstance(shares, list) and len(shares) == 2
    if not known or not all(isinstance(share, (int, float)) for share in shares):
        return ""
    return " to ".join(f"{share:.0%}" for share in shares)


def _chart(estimates: dict[str, dict[str, Any]]) -> list[Markup]:
    rows = [
        (IN_WORDS.get(name, name), float(one["value"]), float(one["low"]), float(one["high"]))
        for name, one in estimates.items()
        if all(is_number(one, key) for key in ("value", "low", "high"))
        and one["low"] <= one["high"]
    ]
    if not rows:
        return []
    svg = interval_chart("estimated values", "value of the policy", rows)
    return [grid([figure(svg, "Estimated values with their intervals.")])]


def _facts(entry: dict[str, Any]) -> list[Markup]:
    facts = []
    if is_number(entry, "unusual"):
        share = f"{entry['unusual']:.1%}"
        facts.append(f"Support: {share} of the policy's actions are unusual in the log")
    if is_number(entry, "effective_size"):
        size = f"{entry['effective_size']:.1f}"
        facts.append(f"Effective sample size of the weights: {size} episodes")
    if is_number(entry, "rows_trained_on") and entry["rows_trained_on"] > 0:
        share = f"{entry['rows_trained_on']:.1%}"
        facts.append(f"The policy was trained on {share} of these rows, so it looks too good")
    notes = entry.get("notes")
    listed = [sentence(str(note)) for note in notes] if isinstance(notes, list) else []
    return [bullets(facts), folded(f"Notes ({len(listed)})", [bullets(listed)] if listed else [])]
