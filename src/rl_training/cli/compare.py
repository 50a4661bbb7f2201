"""The command that compares runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from rl_training.cli.options import out

if TYPE_CHECKING:
    from rl_training.reports.comparison import Arm, Comparison

app = typer.Typer()


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders with runs in them.")],
    metric: Annotated[
        str | None,
        typer.Option(
            help="Metric of evaluations; by default the one that chose the best checkpoint."
        ),
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Also show the steps until evaluations reach this.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Write the learning curves with bands to this .svg file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compare experiments over their seeds.

    Runs that differ in their seed alone are one experiment. Scores are those of the last policies.

    Example: rl-training compare runs/sac-* --threshold -200 --figure curves.svg
    """
    from rl_training.experiment.errors import ConfigError
    from rl_training.experiment.files import replace_text
    from rl_training.reports.comparison import compare as compared
    from rl_training.reports.runs import find_runs

    if figure is not None and figure.suffix != ".svg":
        raise ConfigError(f"--figure: '{figure}' is not an .svg file; name one, such as curves.svg")
    found = compared(find_runs(runs), metric)
    if figure is not None:
        replace_text(figure, curves(found))
    if as_json:
        out.print_json(json.dumps(found.to_dict(threshold)))
        return
    out.print(f"{found.metric} on {found.task}, last policies, 95% intervals over seeds")
    out.print(comparison_table(found, threshold))
    if len(found.arms) > 1:
        first = found.arms[0].name
        out.print(f"improves: the probability that a seed is better than one of '{first}'")
    few = [arm.name for arm in found.arms if len(arm.seeds) < 3]
    if few:
        out.print(f"note: fewer than three seeds of {', '.join(few)}; such intervals say little")
    if figure is not None:
        out.print(f"curves: {figure}", soft_wrap=True)


def comparison_table(found: Comparison, threshold: float | None) -> Table:
    from rl_training.reports.charts import duration

    columns = ["experiment", "seeds", "mean", "interquartile mean", "improves", "time"]
    all_ended = all(arm.statuses == "finished" for arm in found.arms)
    if threshold is not None:
        columns.append(f"steps to {threshold:g}")
    table = Table(*columns, *([] if all_ended else ["status"]), box=None, padding=(0, 2, 0, 0))
    for arm in found.arms:
        first = arm is found.arms[0]
        improves = "" if first else f"{found.improvement(arm, found.arms[0]):.2f}"
        numbers = ",.0f" if max(map(abs, arm.summary.scores)) >= 100 else ",.2f"
        summary = [format(arm.summary.mean, numbers), format(arm.summary.iqm, numbers)]
        row = [arm.name, str(len(arm.seeds)), *summary, improves, duration(arm.wall_seconds)]
        if threshold is not None:
            row.append(_steps(found, arm, threshold))
        table.add_row(*row, *([] if all_ended else [arm.statuses]))
    return table


def _steps(found: Comparison, arm: Arm, threshold: float) -> str:
    """The median over seeds, of those that reach it, and how many do."""
    steps = sorted(tick for tick in found.steps_to(arm, threshold) if tick is not None)
    if not steps:
        return "never"
    share = "" if len(steps) == len(arm.seeds) else f" ({len(steps)} of {len(arm.seeds)} seeds)"
    return f"{steps[len(steps) // 2]:,}{share}"


def curves(found: Comparison) -> str:
    """The learning curves as SVG."""
    from rl_training.reports.charts import line_chart
    from rl_training.reports.figures import arm_lines, unit_of
    from rl_training.reports.words import in_words

    unit = unit_of(found.arms[0].runs[0])
    title = f"{found.task}: interquartile means with 95% intervals"
    return line_chart(title, unit, in_words(found.metric), arm_lines(found, found.arms))
