"""Commands that train: train, resume."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from rl_training.cli.options import (
    ConfigArgument,
    DeviceOption,
    OutputOption,
    OverridesArgument,
    QuietOption,
    SeedOption,
    TrustOption,
    find_modules_here,
    out,
    overridden,
)

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig

app = typer.Typer()


@app.command()
def train(
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    output_dir: OutputOption = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of agents to train at once, with consecutive seeds."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run of this run_name if there is one."),
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Train a policy, or one per seed, and write a run folder.

    Example: rl-training train awr/pendulum total_updates=5000 algo_kwargs.temperature=0.5 --seed 3

    Your own task: rl-training train sac env_id=mymodule:MyEnv-v0 total_timesteps=100000

    Several seeds at once, offline or in worlds on the device: --seeds 8, or seeds=[3,14,15]

    For schedulers, which start a command again: run_name=mine --resume
    """
    from rl_training.api.managed import ManagedAlgorithm
    from rl_training.api.seeds import learn_seeds
    from rl_training.experiment.config import load_config
    from rl_training.experiment.trust import modules_named

    resolved = load_config(config, overridden(overrides, seed, device, output_dir))
    find_modules_here(bool(modules_named(resolved.to_dict())))
    if resume and (begun := _begun(resolved)):
        _go_on(begun, _changed_since(begun, resolved), quiet, trust=True)
        return
    if seeds is not None or resolved.seeds is not None:
        _run(lambda: learn_seeds(resolved, seeds, progress=not quiet), _report_seeds)
        return
    agent = ManagedAlgorithm(resolved)
    _run(lambda: agent.learn(progress=not quiet), _report)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    overrides: OverridesArgument = None,
    quiet: QuietOption = False,
    trust: TrustOption = False,
) -> None:
    """Continue a run exactly from its newest checkpoint.

    Budgets, evaluation, checkpoint, logging and early-stopping keys may change:
    rl-training resume runs/awr-... eval_interval=500
    """
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.config_files import apply_overrides
    from rl_training.experiment.storage import local_run
    from rl_training.experiment.tracking import read_run_config

    run = local_run(run)
    stored = read_run_config(run)
    wanted = apply_overrides(stored, overrides or [])
    TrainConfig.stored(wanted)  # refuses wrong keys, all mistakes at once
    options = {key: value for key, value in wanted.items() if value != stored.get(key)}
    _go_on(run, options, quiet, trust)


def _go_on(run: Path, options: dict[str, Any], quiet: bool, trust: bool) -> None:
    from rl_training.api.managed import ManagedAlgorithm
    from rl_training.api.seeds import resume_seeds
    from rl_training.experiment.tracking import read_run_config

    options = {**options, "progress": not quiet}
    if read_run_config(run).get("seeds") is not None:
        _run(lambda: resume_seeds(run, trust=trust, **options), _report_seeds)
        return
    _run(lambda: ManagedAlgorithm.resume(run, trust=trust, **options).result, _report)


def _begun(config: TrainConfig) -> Path | None:
    """The run folder of the config's name, if its run has begun."""
    from rl_training.experiment.errors import ConfigError
    from rl_training.experiment.storage import begun_run
    from rl_training.experiment.tracking import CONFIG_FILE

    if config.run_name is None:
        raise ConfigError("--resume: name the run that may be there, such as run_name=mine")
    folder = begun_run(config.output_dir, config.run_name)
    return folder if (folder / CONFIG_FILE).is_file() else None


SETTLED = frozenset(("engine", "threads", "device", "output_dir", "dataset", "total_epochs"))
"""Keys that a run keeps in another form than they were given in."""


def _changed_since(begun: Path, config: TrainConfig) -> dict[str, Any]:
    """What the config changes of a run that may be changed; refuses anything else."""
    from rl_training.experiment.config import CHANGEABLE_ON_RESUME
    from rl_training.experiment.errors import ConfigError
    from rl_training.experiment.tracking import read_run_config

    stored, wanted = read_run_config(begun), config.to_dict()
    knobs = {"algo_kwargs"} if config.algo_kwargs.get("policy") else set()  # gets a fingerprint
    other = [
        key
        for key in wanted
        if key not in SETTLED | CHANGEABLE_ON_RESUME | knobs and wanted[key] != stored.get(key)
    ]
    if other:
        raise ConfigError(
            f"run_name: '{begun}' was begun with another {', '.join(other)}; choose another name, "
            "or give the same values"
        )
    free = CHANGEABLE_ON_RESUME - SETTLED
    return {key: wanted[key] for key in free if key in wanted and wanted[key] != stored.get(key)}


def _run(learn: Callable[[], Any], report: Callable[[Any], None]) -> None:
    """Train and report the result; a signal determines the exit code."""
    from rl_training.experiment.tracking import resume_command
    from rl_training.runtime.build import keep_freed_memory
    from rl_training.runtime.signals import InterruptedRun, TerminatedRun

    keep_freed_memory()  # this process runs nothing else
    code = 0
    try:
        result = learn()
    except InterruptedRun as end:
        result, code = end.result, 130
    except TerminatedRun as end:
        result, code = end.result, int(end.code or 0)
    with suppress(OSError):  # a failure to print the report does not change the result
        report(result)
        if result.interrupted:
            out.print(f"go on with: {resume_command(result.run_dir)}", soft_wrap=True)
    if code:
        raise typer.Exit(code)


def _report(result: Any) -> None:
    out.print(f"stopped: {result.stop_reason}")
    if result.last_eval is not None:
        out.print(f"last evaluation: {result.last_eval}")
    if result.best_tick is not None:
        best = f"{_metric(result)} {_value(result)} at {result.best_tick:,}"
        out.print(f"best evaluation: {best}")
    for which, held_out in (("last", result.held_out), ("best", result.best_held_out)):
        if held_out is not None:
            out.print(f"held-out start states, {which} policy: {held_out}")
    out.print(f"run folder: {result.run_dir}", soft_wrap=True)


def _metric(result: Any) -> str:
    """The metric of the best evaluation in words."""
    from rl_training.runtime.selection import short_name

    return short_name(result.best_metric) if result.best_metric else "return"


def _value(result: Any) -> str:
    """The best evaluation; returns are large, metrics of the data are small."""
    if result.best_value is None:
        return ""
    return f"{result.best_value:,.{1 if _metric(result) == 'return' else 4}f}"


def _report_seeds(result: Any) -> None:
    table = Table(title=f"stopped: {result.stop_reason}", title_justify="left")
    metric = _metric(next(iter(result.results.values())))
    for name in ("seed", "last return", f"best {metric}", "at update"):
        table.add_column(name, justify="right")
    for seed, one in result.results.items():
        last = "" if one.return_mean is None else f"{one.return_mean:,.1f}"
        table.add_row(
            str(seed), last, _value(one), "" if one.best_tick is None else f"{one.best_tick:,}"
        )
    for seed in result.failures:
        table.add_row(str(seed), "failed", "", "")
    out.print(table)
    for name, summary in (
        ("last evaluations", result.last),
        ("best evaluations", result.best),
        ("held-out start states, last policies", result.held_out),
        ("held-out start states, best policies", result.best_held_out),
    ):
        if summary is not None:
            out.print(f"{name}: {summary}", soft_wrap=True)
    out.print(f"run folder: {result.run_dir}", soft_wrap=True)
