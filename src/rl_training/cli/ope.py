"""Commands that say what policies are worth on a log: ope, select."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.table import Table

from rl_training.cli.options import QuietOption, StochasticOption, TrustOption, WhichOption, out

app = typer.Typer()

DataOption = Annotated[
    str,
    typer.Option(
        "--data",
        help="Data that trained none of the policies: FILE.npz, FILE.csv, '{path: ..., ...}'; a "
        "table is read as that of the run.",
    ),
]
EstimatorsOption = Annotated[
    str | None,
    typer.Option("--estimators", help="One or more of fqe,mb,wdr,wdr_full,dr,wis,pdwis,is,pdis."),
]
GammaOption = Annotated[
    float | None, typer.Option("--gamma", help="Discount; by default that of the run.")
]
HorizonOption = Annotated[
    int | None,
    typer.Option("--horizon", help="Steps of an episode that count; required with --gamma 1."),
]
RangeOption = Annotated[
    tuple[float, float] | None,
    typer.Option("--value-range", help="Smallest and largest possible return, if known."),
]
BehaviourOption = Annotated[
    str | None,
    typer.Option(
        "--behaviour", help="Array or column of the data with the probabilities of its actions."
    ),
]
ReplicatesOption = Annotated[
    int, typer.Option("--replicates", min=2, help="Bootstrap replicates of FQE.")
]
UpdatesOption = Annotated[
    int, typer.Option("--updates", min=1, help="Updates of FQE's hidden layers.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass(frozen=True)
class Estimation:
    """The options of every command that estimates values from a log."""

    data: DataOption
    checkpoint: WhichOption = "latest"
    estimators: EstimatorsOption = None
    gamma: GammaOption = None
    horizon: HorizonOption = None
    value_range: RangeOption = None
    behaviour: BehaviourOption = None
    replicates: ReplicatesOption = 16
    updates: UpdatesOption = 2_000
    stochastic: StochasticOption = False
    as_json: JsonOption = False
    quiet: QuietOption = False

    def source(self) -> Any:
        """The data: a short form, or the keys of a section."""
        from rl_training.experiment.config_files import parse_yaml

        if not self.data.lstrip().startswith("{"):
            return self.data
        return parse_yaml(self.data, "--data")

    def settings(self) -> dict[str, Any]:
        """Keyword arguments of `estimate` and `select`."""
        names = None if self.estimators is None else self.estimators.replace(" ", "").split(",")
        values: dict[str, Any] = {
            "estimators": names,
            "gamma": self.gamma,
            "horizon": self.horizon,
            "value_range": self.value_range,
            "behaviour": self.behaviour,
        }
        return {
            **{key: value for key, value in values.items() if value is not None},
            "replicates": self.replicates,
            "updates": self.updates,
            "stochastic": self.stochastic,
            "progress": not self.quiet,
        }


def estimating(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Estimation`, which it takes as `asked`."""
    own = get_type_hints(command, include_extras=True)
    shared = get_type_hints(Estimation, include_extras=True)
    parameters = [
        parameter.replace(annotation=own[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "asked"
    ]
    parameters += [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if option.default is MISSING else option.default,
            annotation=shared[option.name],
        )
        for option in fields(Estimation)
    ]

    @wraps(command)
    def run(**values: Any) -> None:
        asked = {option.name: values.pop(option.name) for option in fields(Estimation)}
        command(**values, asked=Estimation(**asked))

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@app.command(name="ope")
@estimating
def off_policy_evaluation(
    path: Annotated[
        Path, typer.Argument(metavar="RUN_OR_CHECKPOINT", help="Run or checkpoint folder.")
    ],
    asked: Estimation,
    trust: TrustOption = False,
) -> None:
    """Estimate the value of a policy from a log, without a simulator.

    Example: rl-training ope runs/iql-... --data test.npz --gamma 1 --horizon 200
    """
    from rl_training.api.managed import load
    from rl_training.api.support import find_checkpoint
    from rl_training.api.worth import record
    from rl_training.ope.coverage import worth_of

    chosen = find_checkpoint(path, asked.checkpoint)
    agent = load(chosen, trust=trust)
    found = agent.estimate(asked.source(), **asked.settings())
    looks = record(chosen, found)
    if asked.as_json:
        print(json.dumps({**found.to_dict(), "looks": looks}))
        return
    sure = f"{found.options.confidence:.0%} interval"
    heads = ("estimator", "value", sure, "such intervals held the truth in")
    table = Table(*heads, box=None, padding=(0, 2, 0, 0))
    for name, one in found.estimates.items():
        table.add_row(name, f"{one.value:.4g}", f"[{one.low:.4g}, {one.high:.4g}]", worth_of(name))
    own = found.behaviour
    table.add_row("behaviour", f"{own.value:.4g}", f"[{own.low:.4g}, {own.high:.4g}]", "")
    out.print(table)
    if found.lower_bound is not None:
        out.print(
            f"above {found.lower_bound:.4g} with {found.options.confidence:.0%} confidence, "
            "whatever the distribution of returns (empirical Bernstein)",
            soft_wrap=True,
        )
    counted = "" if found.options.horizon is None else f", {found.options.horizon} steps"
    out.print(f"{found.episodes:,} episodes, discount {found.options.gamma:g}{counted}")
    if found.effective_size is not None:
        out.print(f"effective sample size of the weights: {found.effective_size:.1f} episodes")
    out.print(
        f"unusual actions: {found.unusual:.1%} of the policy's, 5% of the log's own", soft_wrap=True
    )
    for note in found.notes:
        out.print(f"note: {note}", soft_wrap=True)
    out.print(f"verdict: {found.verdict}", soft_wrap=True)
    if looks > 1:
        out.print(f"these data have been looked at {looks} times for this run")


@app.command(name="select")
@estimating
def selection(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUNS", help="Run or checkpoint folders, at least two.")
    ],
    asked: Estimation,
) -> None:
    """Rank runs or checkpoints by the value of their policies, estimated from a log.

    Example: rl-training select runs/iql-* --data test.npz
    """
    from rl_training.api.worth import select

    found = select(runs, asked.source(), checkpoint=asked.checkpoint, **asked.settings())
    if asked.as_json:
        listed = [
            {"rank": one.rank, "path": str(one.path), **one.evaluation.to_dict()}
            for one in found.candidates
        ]
        print(json.dumps({"candidates": listed, "looks": found.looks}))
        return
    table = Table("rank", box=None, padding=(0, 2, 0, 0))
    table.add_column("run", overflow="fold")  # names of runs differ at their ends
    for head in ("value", "interval", "unusual", ""):
        table.add_column(head)
    for one in found.candidates:
        value, said = one.evaluation.value, one.evaluation.verdict.partition(":")[0]
        interval = f"[{value.low:.4g}, {value.high:.4g}]"
        share = f"{one.evaluation.unusual:.1%}"
        table.add_row(str(one.rank), str(one.path), f"{value.value:.4g}", interval, share, said)
    out.print(table)
    out.print(f"chosen: {found.best.path}", soft_wrap=True)
    known = found.best.evaluation.notes
    for note in known:
        out.print(f"note: {note}", soft_wrap=True)
    for one in found.candidates:
        for note in one.evaluation.notes:
            if note not in known:
                out.print(f"note on {one.path}: {note}", soft_wrap=True)
    out.print(f"note: {found.caution}", soft_wrap=True)
