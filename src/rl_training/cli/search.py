"""The command that trains many runs: sweep."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from rl_training.cli.compare import comparison_table
from rl_training.cli.options import DeviceOption, OverridesArgument, find_modules_here, out

app = typer.Typer()


@app.command()
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
        typer.Option(help="How many seeds of each point, a range or a list: 5, 2..6 or 0,3,7."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the study; by default sweeps/CONFIG.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; by default one for each core.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each run; by default a fair share.")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(help="GPUs that the runs take in turn, such as 0,1.")
    ] = None,
    device: DeviceOption = None,
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
    from rl_training.search.local import LocalLauncher, Slots
    from rl_training.search.study import Study

    chosen = None if seeds is None else parse_seeds(seeds)
    flags = [] if device is None else [f"device={device}"]
    plan = plan_of(config, overrides or [], chosen, flags)
    configs = configs_of(plan)
    find_modules_here(any(modules_named(each.to_dict()) for _, each in configs))
    place = folder or Path("sweeps") / re.sub(r"[^\w.-]+", "_", Path(config).stem if
                                              Path(config).is_file() else config)  # fmt: skip
    study = Study(place, configs)
    named = [gpu.strip() for gpu in gpus.split(",") if gpu.strip()] if gpus else []
    slots = Slots.of(workers, threads, named, len(study.trials))
    out.print(
        f"{len(study.trials)} runs in {place}, {slots.workers} at a time, "
        f"{slots.threads} thread{'s' if slots.threads > 1 else ''} each",
        soft_wrap=True,
    )
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        outcome = LocalLauncher(study, slots, lambda line: out.print(line, soft_wrap=True)).run()
    except (KeyboardInterrupt, _Terminated) as stop:
        out.print("stopped; the runs are saved, and the same command goes on with them")
        raise typer.Exit(130 if isinstance(stop, KeyboardInterrupt) else 143) from None
    finally:
        signal.signal(signal.SIGTERM, before)
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


class _Terminated(BaseException):
    """SIGTERM."""


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise _Terminated
