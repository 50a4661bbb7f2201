"""The command line: thin, every command a call into the package.

Heavy imports happen inside the commands, so that `--help` and `list` answer at once.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from rl_training.experiment.errors import RLTrainingError, printable
from rl_training.experiment.terminal import terminal

app = typer.Typer(
    name="rl-training",
    help="Train, evaluate, resume and use policies from data, demonstrations and simulators.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Look at, make and convert data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")

out = terminal("stdout")

ConfigArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="Packaged config such as awr/pendulum, an algorithm such as sac, or a file.",
    ),
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Keys to change, e.g. total_updates=5000 algo_kwargs.beta=0.5",
        show_default=False,
    ),
]
SeedOption = Annotated[int | None, typer.Option(help="Seed of the run.")]
DeviceOption = Annotated[
    str | None,
    typer.Option(help="auto, cpu, cuda or cuda:N."),
]
OutputOption = Annotated[
    str | None,
    typer.Option("--output-dir", help="Folder in which the run folder is made."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress output.")]
WhichOption = Annotated[
    str, typer.Option("--checkpoint", help="Of a run: latest, best, or a tick such as 5000.")
]
EnvOption = Annotated[
    str | None,
    typer.Option("--env", help="Environment of the data: checked against, or acted in."),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


def _find_modules_here(wanted: bool) -> bool:
    """Let `env_id: mymodule:MyEnv-v0` find a module of the current folder.

    The installed command does not look there, unlike `python -m rl_training`. Only for a
    config that the user gives, or files that the user trusts.
    """
    if wanted and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return wanted


TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        callback=_find_modules_here,
        help="Import the modules that the files name, of any package.",
    ),
]
StochasticOption = Annotated[
    bool, typer.Option("--stochastic", help="Draw actions instead of taking the likeliest.")
]


def _version(value: bool) -> None:
    if value:
        from rl_training import __version__

        out.print(f"rl-training {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def _overridden(
    overrides: list[str] | None, seed: int | None, device: str | None, output_dir: str | None
) -> list[str]:
    flags = {"seed": seed, "device": device, "output_dir": output_dir}
    return [
        *(_with_section(text) for text in overrides or []),
        *(
            f"{key}={json.dumps(value, ensure_ascii=False)}"
            for key, value in flags.items()
            if value is not None
        ),
    ]


def _with_section(override: str) -> str:
    """`dataset=log.npz` with the keys that the short form of a data set stands for."""
    from rl_training.data.sources import parse_source
    from rl_training.experiment.config_files import parse_override

    value = parse_override(override)[1] if override.startswith("dataset=") else None
    if not isinstance(value, str):
        return override
    section = parse_source(value).model_dump(mode="json", exclude_unset=True)
    return f"dataset={json.dumps(section)}"


@app.command()
def train(
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    output_dir: OutputOption = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Train that many agents at once, with the seed and those after it."),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Train a policy, or one per seed, and write a run folder.

    Example: rl-training train awr/pendulum total_updates=5000 algo_kwargs.beta=0.5 --seed 3

    Your own task: rl-training train sac env_id=mymodule:MyEnv-v0 total_timesteps=100000

    Several seeds at once (offline): --seeds 8, or the key seeds=[3,14,15]
    """
    from rl_training.api.managed import ManagedAlgorithm
    from rl_training.api.seeds import learn_seeds
    from rl_training.experiment.config import load_config
    from rl_training.experiment.trust import modules_named

    resolved = load_config(config, _overridden(overrides, seed, device, output_dir))
    _find_modules_here(bool(modules_named(resolved.to_dict())))
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
    """Continue a run exactly where its newest checkpoint left it.

    Budgets, evaluation, checkpoint, logging and early-stopping keys may change:
    rl-training resume runs/awr-... eval_interval=500
    """
    from rl_training.api.managed import ManagedAlgorithm
    from rl_training.api.seeds import resume_seeds
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.config_files import apply_overrides
    from rl_training.experiment.tracking import read_run_config

    stored = read_run_config(run)
    wanted = apply_overrides(stored, overrides or [])
    resolved = TrainConfig(**wanted)  # refuses what is no config, all mistakes at once
    options = {key: value for key, value in wanted.items() if value != stored.get(key)}
    options["progress"] = not quiet
    if resolved.seeds is not None:
        _run(lambda: resume_seeds(run, trust=trust, **options), _report_seeds)
        return
    _run(lambda: ManagedAlgorithm.resume(run, trust=trust, **options).result, _report)


def _run(learn: Callable[[], Any], report: Callable[[Any], None]) -> None:
    """Train and report how it ended; a signal is passed on as the exit code."""
    from rl_training.experiment.tracking import resume_command
    from rl_training.runtime.signals import InterruptedRun, TerminatedRun

    code = 0
    try:
        result = learn()
    except InterruptedRun as end:
        result, code = end.result, 130
    except TerminatedRun as end:
        result, code = end.result, int(end.code or 0)
    with suppress(OSError):  # the run has ended as it has, whether its report is read or not
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
        out.print(f"best evaluation: {result.best_score:,.1f} at {result.best_tick:,}")
    for which, held_out in (("last", result.held_out), ("best", result.best_held_out)):
        if held_out is not None:
            out.print(f"held-out start states, {which} policy: {held_out}")
    out.print(f"run folder: {result.run_dir}", soft_wrap=True)


def _report_seeds(result: Any) -> None:
    table = Table(title=f"stopped: {result.stop_reason}", title_justify="left")
    for name in ("seed", "last return", "best return", "at update"):
        table.add_column(name, justify="right")
    for seed, one in result.results.items():
        last = "" if one.return_mean is None else f"{one.return_mean:,.1f}"
        best = "" if one.best_score is None else f"{one.best_score:,.1f}"
        table.add_row(str(seed), last, best, "" if one.best_tick is None else f"{one.best_tick:,}")
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


@app.command(name="eval")
def evaluate(
    path: Annotated[
        Path, typer.Argument(metavar="RUN_OR_CHECKPOINT", help="Run or checkpoint folder.")
    ],
    episodes: Annotated[
        int, typer.Option("--episodes", "-n", min=1, help="Whole episodes to run.")
    ] = 20,
    checkpoint: WhichOption = "latest",
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the start states; by default those held out from training."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    video: Annotated[
        Path | None,
        typer.Option("--video", help="FILE.mp4 or FILE.gif for a video of the first episode."),
    ] = None,
    overwrite: OverwriteOption = False,
    stochastic: StochasticOption = False,
    trust: TrustOption = False,
    env: Annotated[
        str | None,
        typer.Option("--env", help="Another environment to run in, with the same spaces."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Keyword argument of the environment."),
    ] = None,
) -> None:
    """Run whole episodes with a trained policy and report their returns."""
    from rl_training.api.managed import load
    from rl_training.api.support import find_checkpoint
    from rl_training.experiment.config_files import apply_overrides
    from rl_training.experiment.errors import ConfigError

    if overwrite and video is None:
        raise ConfigError("eval: --overwrite belongs to --video; nothing else is written")
    chosen = find_checkpoint(path, checkpoint)
    agent = load(chosen, trust=trust)
    # first, because much can be wrong with a video and little with an evaluation
    mode: dict[str, Any] = {"seed": seed, "deterministic": not stochastic, "env_id": env}
    if settings:
        own = agent.config.env_kwargs if env is None else {}
        mode["env_kwargs"] = apply_overrides(own, settings)
    filmed = None if video is None else agent.record_video(video, overwrite=overwrite, **mode)
    result = agent.evaluate(episodes, **mode)
    if as_json:
        values: dict[str, Any] = {**result.metrics(), "eval/returns": list(result.returns)}
        if filmed is not None:
            values["video"] = {"path": str(video), "return": filmed.returns[0]}
        print(json.dumps(values))
        return
    title = printable(f"{agent.config.algo} on {env or agent.config.env_id}")
    table = Table(title=title, title_justify="left")
    for name in ("mean", "std", "min", "max", "length"):
        table.add_column(name, justify="right")
    metrics = result.metrics()
    names = ("return_mean", "return_std", "return_min", "return_max", "length_mean")
    table.add_row(*(f"{metrics[f'eval/{name}']:,.1f}" for name in names))
    out.print(table)
    out.print(f"{result}, checkpoint {chosen}", soft_wrap=True)
    note = result.note()
    if note:
        out.print(f"note: {note}", soft_wrap=True)
    if filmed is not None:
        earned = f"return {filmed.returns[0]:,.1f} in {filmed.lengths[0]:,} steps"
        out.print(f"video of the first episode, {earned}: {video}", soft_wrap=True)


@app.command()
def predict(
    path: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Run or checkpoint folder.")],
    observation: Annotated[
        str | None,
        typer.Argument(help="One observation as JSON, e.g. '[1.0, 0.0, 0.0]'; - for stdin."),
    ] = None,
    npz: Annotated[
        Path | None,
        typer.Option("--npz", help="File with an array 'observations' of shape (n, width)."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--out", help="With --npz: file for the array 'actions'."),
    ] = None,
    checkpoint: WhichOption = "latest",
    stochastic: StochasticOption = False,
) -> None:
    """Print the action for one observation, or write actions for a file of many."""
    import numpy as np

    from rl_training.api.managed import load
    from rl_training.api.support import find_checkpoint
    from rl_training.data.readers import read_file_arrays
    from rl_training.experiment.config_errors import shortened
    from rl_training.experiment.errors import ConfigError, DataError
    from rl_training.experiment.files import draft_of

    if (observation is None) == (npz is None):
        raise ConfigError("predict: give one observation as JSON, or a file with --npz")
    if output is not None and npz is None:
        raise ConfigError("predict: --out belongs to --npz; one action is printed")
    if output is not None and output.suffix != ".npz":
        raise ConfigError(f"predict: --out '{output}' must end in .npz")
    if output is not None and output.exists():
        raise ConfigError(f"predict: --out '{output}' exists already; choose another name")
    agent = load(find_checkpoint(path, checkpoint))
    if npz is None:
        text = sys.stdin.read() if observation == "-" else str(observation)
        try:
            values = np.asarray(json.loads(text, parse_int=float))
            if values.dtype.kind not in "fb":  # numbers in quotes, say
                raise TypeError
        except (ValueError, TypeError, RecursionError):
            raise ConfigError(
                "predict: the observation must be a JSON list of numbers, got "
                f"{shortened(text.strip())}"
            ) from None
    else:
        arrays = read_file_arrays(npz)
        if "observations" not in arrays:
            raise DataError(f"'{npz}' has no array 'observations'; it has {', '.join(arrays)}")
        values = arrays["observations"]
        if values.dtype.kind not in "fiub" or values.ndim != 2:
            raise DataError(
                f"'{npz}': array 'observations' must hold numbers in the shape (n, width), it "
                f"holds {values.dtype} in the shape {values.shape}"
            )
    actions, _ = agent.predict(values, deterministic=not stochastic)
    if output is not None:
        try:
            with draft_of(output) as draft:
                np.savez_compressed(draft, actions=actions)
        except OSError as error:
            raise DataError(
                f"'{output}' cannot be written ({error.strerror or error}); choose another name"
            ) from None
        out.print(f"wrote {len(actions)} actions to {output}", soft_wrap=True)
    else:
        print(json.dumps(np.asarray(actions).tolist()))


@app.command(name="list")
def list_all(
    runs: Annotated[Path, typer.Option("--runs", help="Folder with run folders.")] = Path("runs"),
) -> None:
    """Show algorithms, packaged configs, data sets and runs."""
    from rl_training.data.scripted import SCRIPTED
    from rl_training.experiment.config_files import packaged_config_names
    from rl_training.experiment.registry import algorithm_class, algorithm_names

    algorithms = _plain_table("name", "learns", "actions", "what it does")
    configs, data = _plain_table(), _plain_table()
    for name in algorithm_names():
        cls = algorithm_class(name)
        kinds = ", ".join(sorted(kind.capitalize() for kind in cls.action_kinds))
        learns = ", ".join(cls.loops()).replace("_", " ")
        algorithms.add_row(name, learns, kinds, f"{cls.summary} ({cls.paper})")
        own = [config for config in packaged_config_names() if config.startswith(f"{name}/")]
        configs.add_row(", ".join(own))
    for name, recipe in SCRIPTED.items():
        made_of = " and ".join(f"{part.count} {part.behaviour}" for part in recipe.segments)
        data.add_row(name, f"{recipe.env_id}: {made_of} episodes")
    data.add_row("random", "random actions in the run's environment")
    data.add_row("your own", "FILE.npz, FILE.hdf5, minari:ID")
    parts = (("Algorithms", algorithms), ("\nConfigs", configs), ("\nData sets", data))
    for title, table in parts:
        out.print(f"{title}:")
        out.print(table)
    out.print(f"\nRuns in {runs}:", soft_wrap=True)
    found = list(_runs(runs))
    for line in found:
        out.print(f"  {line}", soft_wrap=True)
    if not found:
        out.print("  none yet")


def _plain_table(*names: str) -> Table:
    """Indented columns without lines, whose cells wrap within themselves."""
    return Table(*names, box=None, show_header=bool(names), padding=(0, 0, 0, 2))


def _runs(folder: Path) -> Iterator[str]:
    for config in sorted(folder.glob("*/config.yaml")):
        run = config.parent
        try:
            result = json.loads((run / "result.json").read_text(encoding="utf-8"))
            done = f"{result['status']}, {result['updates']:,} updates"
            score = (result["last_eval"] or {}).get("eval/return_mean")
            returned = f", return {score:,.1f}" if score is not None else ""
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            yield f"{run.name}  unfinished"  # or written by something else
        else:
            yield f"{run.name}  {done}{returned}"


@app.command()
def show(config: ConfigArgument, overrides: OverridesArgument = None) -> None:
    """Print a config resolved: every key, its value and what it means."""
    from rl_training.experiment.config import load_config

    resolved = load_config(config, _overridden(overrides, None, None, None))
    for line in _commented(resolved, ""):
        print(line)


def _commented(section: Any, indent: str) -> Iterator[str]:
    """YAML lines of a section with each field's comment behind it."""
    import yaml
    from pydantic import BaseModel

    for name, field in type(section).model_fields.items():
        value = section.params if name == "algo_kwargs" else getattr(section, name)
        comment = f"  # {field.description}" if field.description else ""
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:{comment}"
            yield from _commented(value, indent + "  ")
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            yield f"{indent}{name}:{comment}"
            for part in value:
                lines = list(_commented(part, indent + "    "))
                yield f"{indent}  - {lines[0].lstrip()}"
                yield from lines[1:]
        else:
            plain = list(value) if isinstance(value, tuple) else value
            text = yaml.safe_dump(plain, default_flow_style=True, width=math.inf)
            text = text.removesuffix("...\n").strip()  # YAML's end mark behind a bare value
            yield f"{indent}{name}: {text}{comment}"


@data_app.command()
def inspect(
    source: Annotated[
        str, typer.Argument(help="FILE.npz, FILE.hdf5, minari:ID, or a scripted name.")
    ],
    env: EnvOption = None,
) -> None:
    """Say what a data set is and what can be trained on it."""
    from rl_training.algorithms.families import family
    from rl_training.data.sources import load_transition_dataset
    from rl_training.data.summary import (
        Requirements,
        inspect_file,
        render,
        render_file_report,
        summarize,
    )
    from rl_training.experiment.errors import DataError
    from rl_training.experiment.registry import algorithm_class, algorithm_names

    requirements = {}
    for name in algorithm_names():
        cls = algorithm_class(name)
        if family(cls.loop).reads_data:
            requirements[name] = Requirements(
                cls.action_kinds, cls.needs_returns, cls.needs_rewards, cls.summary
            )
    try:
        dataset = load_transition_dataset(source, env_id=env, needs_rewards=False)
    except DataError:
        if Path(source).is_file():
            report = inspect_file(source, env_id=env)
            if report.arrays:
                out.print(render_file_report(report))
        raise
    out.print(render(summarize(dataset, requirements)))


@data_app.command()
def make(
    name: Annotated[str, typer.Argument(help="Scripted name such as pendulum-mixed, or random.")],
    target: Annotated[str, typer.Option("--out", help="FILE.npz, FILE.hdf5 or minari:ID.")],
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


@data_app.command()
def collect(
    path: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Run or checkpoint folder.")],
    target: Annotated[str, typer.Option("--out", help="FILE.npz, FILE.hdf5 or minari:ID.")],
    episodes: Annotated[
        int | None,
        typer.Option("--episodes", "-n", min=1, help="Whole episodes to run."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Steps to run instead; the last episode is cut."),
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
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
    trust: TrustOption = False,
) -> None:
    """Let a trained policy act in its environment and write what happened.

    Example: rl-training data collect runs/sac-... --episodes 100 --epsilon 0.3 --out mixed.npz
    """
    from rl_training.api.managed import load
    from rl_training.api.support import find_checkpoint
    from rl_training.data.convert import check_target, save_dataset
    from rl_training.runtime.collection import CollectionProgress, check_amount

    check_amount(episodes, steps, seed)
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
    """Refuse a file that could not be made, before time is spent on what it shall hold."""
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


@data_app.command()
def convert(
    source: Annotated[str, typer.Argument(help="FILE.npz, FILE.hdf5 or minari:ID.")],
    target: Annotated[str, typer.Argument(help="FILE.npz, FILE.hdf5 or minari:ID.")],
    env: EnvOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Convert between npz, hdf5 and Minari; values are kept as 32-bit floats."""
    from rl_training.data.convert import check_target, save_dataset
    from rl_training.data.sources import load_transition_dataset

    check_target(target, overwrite)
    dataset = load_transition_dataset(source, env_id=env)
    save_dataset(dataset, target, overwrite=overwrite)
    for note in dataset.notes:
        out.print(f"note: {note}", soft_wrap=True)
    out.print(f"wrote {len(dataset):,} steps to {target}", soft_wrap=True)


@app.command()
def doctor() -> None:
    """Check versions, devices, extras and writable folders."""
    import importlib.util
    import os
    import shutil
    import tempfile

    import torch

    from rl_training.data.scripted import cache_folder
    from rl_training.experiment.errors import install_command
    from rl_training.experiment.tracking import versions

    table = Table(show_header=False, box=None)
    for name, version in versions().items():
        table.add_row(name, version)
    table.add_row("cpu cores", str(os.cpu_count()))
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    table.add_row("cuda", ", ".join(gpus) or "none found; training runs on the CPU")
    compiler = shutil.which("g++") or shutil.which("clang++")
    table.add_row("engine=compile", compiler or "not available: no C++ compiler")
    extras = {"minari": "minari", "hdf5": "h5py", "mujoco": "mujoco", "atari": "ale_py"}
    extras |= {"box2d": "Box2D", "video": "imageio_ffmpeg", "dmc": "dm_control"}
    for extra, module in extras.items():
        present = importlib.util.find_spec(module) is not None
        table.add_row(
            f"extra {extra}",
            "installed" if present else f"missing: {install_command(extra)}",
        )
    for label, folder in (("runs folder", Path("runs")), ("cache folder", cache_folder())):
        if folder is None:
            table.add_row(label, "none: this user has no home; set RL_TRAINING_CACHE")
            continue
        base = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        try:
            with tempfile.TemporaryFile(dir=base):
                table.add_row(label, f"{folder} is writable")
        except OSError as error:
            table.add_row(label, f"{folder} is NOT writable: {error.strerror}")
    out.print(table)


def _sentence_about_the_machine(error: Exception) -> str | None:
    """What to say when disk or memory run out, which no check at the door can foresee."""
    if isinstance(error, OSError):
        where = f" '{error.filename}'" if error.filename else ""
        return (
            f"cannot read or write{where}: {error.strerror or error}; make room or change the path"
        )
    if isinstance(error, MemoryError) or "allocate" in str(error):
        return (
            "not enough memory; lower algo_kwargs.hidden_sizes, algo_kwargs.batch_size or the "
            "size of the data set"
        )
    return None


UsageError: Any = typer.BadParameter.__bases__[0]
"""Whatever click, be it typer's own copy, raises for a command line that it cannot read."""


def _sentence_about_usage(error: Any) -> str:
    """What is wrong with a command line, and where its options are explained."""
    command = error.ctx.command_path if error.ctx else "rl-training"
    text = " ".join(error.format_message().split()).rstrip(".")
    text = re.sub(r"\. Did you mean (.*?)\?$", r" (did you mean \1?)", text)
    takes_keys = error.ctx and any(p.name == "overrides" for p in error.ctx.command.params)
    if takes_keys and "no such option" in text.lower():
        text += "; keys of the configuration are written key=value"
    return f"{command}: {text[:1].lower()}{text[1:]}; '{command} --help' explains its arguments"


def main() -> None:
    """Entry point: user errors become one line each and exit code 2."""
    try:
        # typer's own reports of a wrong flag take many lines; asked so, it hands over the exit code
        sys.exit(app(prog_name="rl-training", standalone_mode=False))
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # known to newer versions only
            error.show()
        else:
            print(f"error: {_sentence_about_usage(error)}", file=sys.stderr)
        sys.exit(2)
    except RLTrainingError as error:
        for line in str(error).splitlines():
            print(f"error: {printable(line)}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except (OSError, MemoryError, RuntimeError) as error:
        sentence = _sentence_about_the_machine(error)
        if sentence is None:
            raise
        print(f"error: {printable(sentence)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
