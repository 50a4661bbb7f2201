"""Commands that train many runs: sweep, tune."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.compare import comparison_table
from rl_training.cli.launchers import Wanted, resumable, with_launcher
from rl_training.cli.options import (
    ConfigArgument,
    DeviceOption,
    OverridesArgument,
    find_modules_here,
    out,
    overridden,
)

if TYPE_CHECKING:
    from rl_training.search.tune import Tuner
    from rl_training.search.tuning import EndedTrial
    from rl_training.search.verdict import Verdict

app = typer.Typer()


@app.command()
@resumable
@with_launcher()
def sweep(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG", help="Packaged config, algorithm, config file or sweep file."
        ),
    ],
    overrides: OverridesArgument = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Seeds of each point, as a number of them, a range or a list: 5, 2..6 or 0,3,7."
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the study; by default sweeps/CONFIG.")
    ] = None,
    device: DeviceOption = None,
    *,
    wanted: Wanted,
) -> None:
    """Train every combination of values, in parallel, and compare them.

    A value with commas is a list: every combination of all lists is trained, for every seed. The
    same command goes on where it was stopped, and joins in from a second terminal.

    Example: rl-training sweep awr/pendulum algo_kwargs.temperature=0.5,1,2 --seeds 3

    A file: config, set, grid, list and seeds as keys: rl-training sweep mine.yaml
    """
    from rl_training.experiment.errors import RLTrainingError
    from rl_training.experiment.trust import modules_named
    from rl_training.reports.comparison import compare
    from rl_training.reports.runs import find_runs
    from rl_training.search.grid import configs_of, parse_seeds, plan_of
    from rl_training.search.runner import StudyRunner
    from rl_training.search.study import Study

    chosen = None if seeds is None else parse_seeds(seeds)
    flags = [] if device is None else [f"device={device}"]
    plan = plan_of(config, overrides or [], chosen, flags)
    configs = configs_of(plan)
    find_modules_here(any(modules_named(each.to_dict()) for _, each in configs))
    place = _place_of(folder, "sweeps", config)
    runs = wanted.launcher(place, len(configs), [each.device for _, each in configs])
    study = Study(place, configs)
    out.print(f"{len(study.trials)} runs in {study.folder}, {runs.words}", soft_wrap=True)
    outcome = StudyRunner(study, runs, _say).run()
    done = [trial.run_dir for trial in study.trials if trial.name in set(outcome.finished)]
    if done:
        try:
            found = compare(find_runs(done))
        except RLTrainingError as error:  # such as runs without an evaluation
            out.print(f"note: {error}", soft_wrap=True)
        else:
            out.print(comparison_table(found, None))
            rows: list[dict[str, Any]] = [
                {"experiment": arm.name, "seed": seed.seed, found.metric: seed.score(found.metric)}
                for arm in found.arms
                for seed in arm.seeds
            ]
            out.print(f"scores: {study.write_table(rows)}", soft_wrap=True)
    if outcome.failed:
        out.print(f"{len(outcome.failed)} of {len(study.trials)} runs failed; see above")
        raise typer.Exit(1)


@app.command()
@resumable
@with_launcher()
def tune(
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials, the defaults among them.")] = 24,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each trial.")] = 3,
    test_seeds: Annotated[
        int,
        typer.Option(
            min=1, help="Number of test seeds, on which the winner is compared with the defaults."
        ),
    ] = 5,
    search: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY[=RANGE]",
            help="Search this key, in its own range or in log(LOW, HIGH), linear(LOW, HIGH) or "
            "[A, B]; may be repeated.",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Metric of evaluations; by default the one that chooses the best checkpoint."
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            help="Stop trials whose seeds all score poorly, at the earliest after a third "
            "of the budget."
        ),
    ] = True,
    sampler_seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the study; by default tunings/CONFIG.")
    ] = None,
    device: DeviceOption = None,
    *,
    wanted: Wanted,
) -> None:
    """Search for better knobs, and test what was found on seeds of its own.

    Keys that have a value on the command line are not searched. A trial's score is the lower end
    of the interval over its seeds. The same command goes on where it was stopped, takes over the
    trials of processes that died, and joins in from a second terminal.

    Example: rl-training tune awr/pendulum --trials 24 --seeds 3 --test-seeds 5

    Your own ranges: --search 'algo_kwargs.temperature=log(0.1, 10)' --search algo_kwargs.gamma
    """
    from rl_training.experiment.config import load_config
    from rl_training.experiment.config_files import parse_override
    from rl_training.experiment.errors import ConfigError
    from rl_training.experiment.run_sections import known_metric
    from rl_training.experiment.trust import modules_named
    from rl_training.search.grid import refuse_own_keys
    from rl_training.search.space import space_of
    from rl_training.search.tune import Tuner, chosen_metric, evaluated
    from rl_training.search.tuning import TuningFolder, TuningPlan
    from rl_training.search.verdict import judged

    refuse_own_keys([".".join(parse_override(text)[0]) for text in overrides or []])
    own = load_config(config, overridden(overrides, None, device, None))
    find_modules_here(bool(modules_named(own.to_dict())))
    try:
        chosen = known_metric(chosen_metric(own, metric))
    except ValueError as error:
        raise ConfigError(f"--metric: {error}") from None
    base = evaluated(own, chosen, prune)
    plan = TuningPlan(
        base,
        space_of(base, search or [], overrides or [], chosen),
        tuple(range(own.seed, own.seed + seeds)),
        tuple(range(own.seed + seeds, own.seed + seeds + test_seeds)),
        chosen,
        prune,
        sampler_seed,
    )
    place = _place_of(folder, "tunings", config)
    runs = 1 if base.total_timesteps is None else seeds
    jobs = wanted.launcher(place, trials * runs, [base.device])
    study = TuningFolder(place, plan)
    tuner = Tuner(study, jobs, trials, _say)
    out.print(
        f"{trials} trials in {study.folder}, seeds of each: {seeds}, {jobs.words}; "
        f"objective: {chosen}, the {tuner.worse_end} of the interval over seeds",
        soft_wrap=True,
    )
    for key, one in plan.space.items():
        out.print(f"  {key}: {one}", soft_wrap=True, markup=False)
    ended = tuner.run()
    _write_trials(tuner, ended)
    _report(tuner, judged(study, jobs, _say, ended))


def _write_trials(tuner: Tuner, ended: list[EndedTrial]) -> None:
    rows: list[dict[str, Any]] = [
        {
            "trial": one.number,
            "state": one.state,
            "objective": None if one.objective is None else tuner.folder.plan.sign * one.objective,
            **one.values,
            "scores": " ".join(f"{score:g}" for score in one.scores),
            "why": one.why,
        }
        for one in ended
    ]
    out.print(f"trials: {tuner.folder.write_table(rows)}", soft_wrap=True)


def _report(tuner: Tuner, verdict: Verdict) -> None:
    from rl_training.experiment.files import replace_text
    from rl_training.experiment.tracking import write_json
    from rl_training.search.space import configured

    folder, plan = tuner.folder.folder, tuner.folder.plan
    write_json(folder / "verdict.json", verdict.to_dict())
    winner = folder / "winner.yaml"
    replace_text(winner, configured(plan.config, verdict.winner.values).to_yaml())
    out.print(f"winner: trial {verdict.winner.number}")
    for key, value in verdict.winner.values.items():
        out.print(f"  {key}: {json.dumps(value)}", soft_wrap=True, markup=False)
    for who, scores in (("winner", verdict.winner_scores), ("defaults", verdict.defaults_scores)):
        out.print(f"{verdict.metric} of the {who} on test seeds: {scores}", soft_wrap=True)
    if verdict.improvement is not None:
        out.print(f"probability that a seed of the winner is better: {verdict.improvement:.2f}")
    if verdict.metric.startswith("offline/"):
        out.print(
            f"the trials looked at their held-out episodes {verdict.looks:,} times; the test held "
            "out others, from which the trials had learned; judge the winner on episodes that no "
            "run has seen, with 'rl-training ope'",
            soft_wrap=True,
        )
    out.print(f"verdict: {verdict.sentence}", soft_wrap=True)
    out.print(f"its config: {winner}", soft_wrap=True)


def _place_of(folder: Path | None, parent: str, config: str) -> Path:
    """The folder of a study, as it is given or by its config."""
    from rl_training.experiment.storage import refuse_url

    place = folder or _place(parent, config)
    refuse_url(place, "a study needs file locks")
    return place


def _place(parent: str, config: str) -> Path:
    """The folder of a study of this config."""
    name = Path(config).stem if Path(config).is_file() else config
    return Path(parent) / re.sub(r"[^\w.-]+", "_", name)


def _say(line: str) -> None:
    out.print(line, soft_wrap=True, markup=False)
