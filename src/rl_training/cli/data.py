"""Commands about data sets: inspect, make, collect, convert, pack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rl_training.cli.launchers import WITHOUT_TRAINING, Wanted, resumable, with_launcher
from rl_training.cli.options import (
    EnvOption,
    OverwriteOption,
    QuietOption,
    StochasticOption,
    TrustOption,
    WhichOption,
    out,
)

app = typer.Typer(help="Inspect, make, collect, convert and pack data sets.", no_args_is_help=True)


KeysArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Keys of the section dataset, such as episode=stay columns.rewards=score.",
    ),
]


def with_keys(source: str, keys: list[str] | None) -> Any:
    """A source, or the section that it stands for with some keys set."""
    from rl_training.data.sources import parse_source
    from rl_training.experiment.config_files import apply_overrides

    if not keys:
        return source
    return apply_overrides(parse_source(source).model_dump(mode="json", exclude_unset=True), keys)


@app.command()
def inspect(
    source: Annotated[
        str,
        typer.Argument(
            help="FILE.npz, FILE.hdf5, FILE.parquet, FILE.csv, minari:ID, a folder of packed data, "
            "or a scripted name."
        ),
    ],
    keys: KeysArgument = None,
    env: EnvOption = None,
) -> None:
    """Describe a data set and what can be trained on it."""
    from rl_training.algorithms.loops import loop_family
    from rl_training.data.sources import load_transition_dataset
    from rl_training.data.summary import Requirements, inspect_file, summarize
    from rl_training.data.summary_tables import render, render_file_report
    from rl_training.experiment.errors import DataError
    from rl_training.experiment.registry import working_algorithms

    requirements = {}
    for name, cls in working_algorithms().items():
        if any(loop_family(loop).needs_data for loop in cls.loops()):
            requirements[name] = Requirements(
                cls.action_kinds,
                "image" in cls.observation_kinds,
                cls.needs_returns,
                cls.needs_rewards,
                cls.summary,
            )
    try:
        dataset = load_transition_dataset(with_keys(source, keys), env_id=env, needs_rewards=False)
    except DataError:
        if Path(source).is_file():
            report = inspect_file(source, env_id=env)
            if report.arrays:
                out.print(render_file_report(report))
        raise
    out.print(render(summarize(dataset, requirements)))


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="Scripted name such as pendulum-mixed, or random.")],
    target: Annotated[
        str, typer.Option("--out", help="FILE.npz, .hdf5, .parquet, .csv or minari:ID.")
    ],
    env: EnvOption = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Steps of random data."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data.")] = 0,
    overwrite: OverwriteOption = False,
) -> None:
    """Make a scripted or random data set and write it."""
    from rl_training.data.convert import check_target, save_dataset
    from rl_training.data.sources import load_transition_dataset
    from rl_training.experiment.errors import ConfigError

    check_target(target, overwrite)
    source: dict[str, Any]
    if name == "random":
        if env is None:
            raise ConfigError("data make random: needs --env, the environment to act in")
        source = {"kind": "random", "seed": seed, "steps": steps}
    else:
        if steps is not None:
            raise ConfigError(f"--steps belongs to random data, not to '{name}'")
        source = {"kind": "scripted", "name": name, "seed": seed}
    dataset = load_transition_dataset(source, env_id=env)
    save_dataset(dataset, target, overwrite=overwrite)
    out.print(f"wrote {len(dataset):,} steps to {target}", soft_wrap=True)


@app.command()
@with_launcher(*WITHOUT_TRAINING)
def collect(
    path: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Run or checkpoint folder.")],
    target: Annotated[
        str, typer.Option("--out", help="FILE.npz, .hdf5, .parquet, .csv or minari:ID.")
    ],
    episodes: Annotated[
        int | None,
        typer.Option("--episodes", "-n", min=1, help="Whole episodes to run."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Steps to run instead; the last episode is truncated."),
    ] = None,
    checkpoint: WhichOption = "latest",
    stochastic: StochasticOption = False,
    noise: Annotated[
        float,
        typer.Option(
            metavar="STD", min=0.0, help="Gaussian noise on Box actions in [-1, 1], then clipped."
        ),
    ] = 0.0,
    epsilon: Annotated[
        float,
        typer.Option(metavar="P", min=0.0, max=1.0, help="Probability of a random action."),
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data.")] = 0,
    shard: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Write a folder of Parquet files of so many episodes or steps, in parallel.",
        ),
    ] = None,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
    trust: TrustOption = False,
    *,
    wanted: Wanted,
) -> None:
    """Collect a data set with a trained policy in its environment.

    With --shard it is collected in parallel, the same bytes whatever the number of workers, and
    the same command continues where it stopped.

    Example: rl-training data collect runs/sac-... --episodes 100 --epsilon 0.3 --out mixed.npz

    In shards: rl-training data collect runs/sac-... --steps 1000000 --shard 100000 --out a.parquet
    """
    from rl_training.api.managed import load
    from rl_training.api.support import find_checkpoint
    from rl_training.data.convert import check_target, save_dataset
    from rl_training.experiment.errors import ConfigError
    from rl_training.runtime.collection import CollectionProgress, check_amount

    check_amount(episodes, steps, seed)
    if shard is not None:
        from rl_training.cli.shards import collect_shards
        from rl_training.search.shards import CollectionPlan, fingerprint

        if overwrite:
            raise ConfigError("--overwrite: shards are never replaced; remove the folder yourself")
        chosen = find_checkpoint(path, checkpoint)
        plan = CollectionPlan(
            checkpoint=str(chosen.absolute()),
            fingerprint=fingerprint(chosen),
            unit="episodes" if steps is None else "steps",
            amount=steps or episodes or 0,
            shard=shard,
            noise=noise,
            epsilon=epsilon,
            deterministic=not stochastic,
            seed=seed,
            trust=trust,
        )
        resumable(collect_shards)(Path(target), plan, wanted, shown=not quiet)
        return
    if not wanted.is_default:
        raise ConfigError(
            "--workers, --launcher: only shards are collected in parallel; add --shard"
        )
    check_target(target, overwrite)
    _check_writable(target)
    agent = load(find_checkpoint(path, checkpoint), trust=trust)
    progress = CollectionProgress(episodes, steps, shown=not quiet)
    try:
        dataset = agent.collect(
            episodes,
            steps,
            noise=noise,
            epsilon=epsilon,
            deterministic=not stochastic,
            seed=seed,
            on_step=progress,
        )
    finally:
        progress.stop()
    save_dataset(dataset, target, overwrite=overwrite)
    for note in dataset.notes:
        out.print(f"note: {note}", soft_wrap=True)
    out.print(f"wrote {progress.summary()} to {target}", soft_wrap=True)


def _check_writable(target: str) -> None:
    """Refuse a target that cannot be written, before its contents are computed."""
    import tempfile

    from rl_training.experiment.errors import DataError

    if target.startswith("minari:"):
        return
    folder = Path(target).absolute().parent
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise DataError(
            f"'{target}' cannot be written ({error.strerror or error}); choose another target"
        ) from None


@app.command()
def convert(
    source: Annotated[
        str, typer.Argument(help="FILE.npz, FILE.hdf5, FILE.parquet, FILE.csv or minari:ID.")
    ],
    target: Annotated[
        str, typer.Argument(help="FILE.npz, FILE.hdf5, FILE.parquet, FILE.csv or minari:ID.")
    ],
    keys: KeysArgument = None,
    env: EnvOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Convert between npz, hdf5, Parquet, CSV and Minari; values are kept as 32-bit floats."""
    from rl_training.data.convert import check_target, save_dataset
    from rl_training.data.sources import load_transition_dataset

    check_target(target, overwrite)
    dataset = load_transition_dataset(with_keys(source, keys), env_id=env, needs_rewards=False)
    save_dataset(dataset, target, overwrite=overwrite)
    for note in dataset.notes:
        out.print(f"note: {note}", soft_wrap=True)
    out.print(f"wrote {len(dataset):,} steps to {target}", soft_wrap=True)


@app.command()
def pack(
    source: Annotated[
        str, typer.Argument(help="FILE.npz, FILE.hdf5, FILE.parquet, FILE.csv or minari:ID.")
    ],
    target: Annotated[Path, typer.Option("--out", help="The folder to write.")],
    keys: KeysArgument = None,
    env: EnvOption = None,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> None:
    """Pack data that are larger than memory into a folder to train from.

    The source is read once, in pieces, and checked like any other; training reads only the rows
    that it uses.

    Example: rl-training data pack log.parquet episode=stay order=hour --out log.packed
    """
    import time

    from rl_training.data.sources import pack_source

    began = time.monotonic()
    packed = pack_source(
        with_keys(source, keys), target, env_id=env, overwrite=overwrite, progress=not quiet
    )
    for note in packed.dataset.notes:
        out.print(f"note: {note}", soft_wrap=True)
    rows, seconds = len(packed.dataset), time.monotonic() - began
    size = sum(packed.manifest.files().values())
    out.print(
        f"packed {rows:,} steps, {size / 1e9:,.2f} GB, into {target} in {seconds:,.1f} s "
        f"({rows / seconds:,.0f} steps/s)",
        soft_wrap=True,
    )
