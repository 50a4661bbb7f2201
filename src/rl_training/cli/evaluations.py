"""Evaluates many policies and shows them in a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from rl_training.cli.launchers import Wanted
from rl_training.cli.options import out
from rl_training.experiment.errors import printable

if TYPE_CHECKING:
    from rl_training.search.evaluations import Evaluation

COLUMNS = ("return_mean", "return_std", "return_min", "return_max", "length_mean")


def holds_many(path: Path) -> bool:
    """Whether a folder is a run of several seeds, or holds runs."""
    from rl_training.experiment.checkpoint import MANIFEST
    from rl_training.experiment.tracking import CONFIG_FILE
    from rl_training.export.contract import is_export

    if any(path.glob(f"seed-*/{CONFIG_FILE}")):
        return True
    is_policy = (path / CONFIG_FILE).is_file() or (path / MANIFEST).is_file() or is_export(path)
    return not is_policy and any(path.rglob(CONFIG_FILE))


def evaluate_many(
    paths: list[Path],
    checkpoint: str,
    wanted: Wanted,
    folder: Path,
    *,
    again: bool,
    shown: bool,
    as_json: bool,
    **mode: Any,
) -> None:
    """Evaluate all policies in `paths` that have no result in the folder yet."""
    from rl_training.search.evaluations import EvaluationPlan, Evaluations, candidates_of

    candidates = candidates_of(paths, checkpoint)
    launcher = wanted.launcher(folder, len(candidates))
    plan = EvaluationPlan(candidates, env_kwargs=None, **mode)
    target = Evaluations(folder, plan, again=again)

    def say(text: str) -> None:
        if not as_json:
            out.print(text, soft_wrap=True)

    policies = "1 policy" if len(candidates) == 1 else f"{len(candidates)} policies"
    episodes = "1 episode" if plan.episodes == 1 else f"{plan.episodes} episodes"
    say(f"{policies}, {episodes} each, {launcher.words}")
    found = target.run(launcher, shown=shown, say=say)
    if as_json:
        print(json.dumps({"evaluations": [one.to_dict() for one in found]}))
        return
    out.print(evaluation_table(found))
    notes = {note for one in found if (note := one.result.note(options=True))}
    for note in sorted(notes):
        out.print(f"note: {note}", soft_wrap=True)
    out.print(f"results: {folder}", soft_wrap=True)


def evaluation_table(found: list[Evaluation]) -> Table:
    success = any(one.result.success_rate is not None for one in found)
    scales = sorted({one.result.reference.name for one in found if one.result.reference})
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("run", overflow="fold")
    names = ["checkpoint", "mean", "std", "min", "max", "length"]
    names += ["success"] if success else []
    names += [f"{' or '.join(scales)} %"] if scales else []
    for name in names:
        table.add_column(name, justify="right")
    for one in found:
        metrics = one.result.metrics()
        row = [printable(one.run), "export" if one.tick is None else f"{one.tick:,}"]
        row += [f"{metrics[f'eval/{name}']:,.1f}" for name in COLUMNS]
        if success:
            rate = one.result.success_rate
            row.append("" if rate is None else f"{rate:.0%}")
        if scales:
            normalized = one.result.normalized_mean
            row.append("" if normalized is None else f"{normalized:,.1f}")
        table.add_row(*row)
    return table
