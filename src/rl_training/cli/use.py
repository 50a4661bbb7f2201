"""Commands that use a trained or an exported policy: eval, predict."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from rl_training.cli.evaluations import evaluate_many, holds_many
from rl_training.cli.launchers import WITHOUT_TRAINING, Wanted, resumable, with_launcher
from rl_training.cli.options import (
    OverwriteOption,
    QuietOption,
    StochasticOption,
    TrustOption,
    WhichOption,
    out,
)
from rl_training.experiment.errors import ConfigError, printable

if TYPE_CHECKING:
    from rl_training.envs.spaces import Spaces

app = typer.Typer()


def _policy(path: Path, checkpoint: str, trust: bool = False) -> tuple[Any, Path]:
    """The agent of a run or checkpoint folder, or the policy of an export, with its path."""
    from rl_training.export.contract import is_export

    if is_export(path):
        from rl_training.export.exported import ExportedPolicy

        if checkpoint != "latest":
            raise ConfigError(
                f"--checkpoint: '{path}' is an exported policy and has no checkpoints; remove it"
            )
        return ExportedPolicy(path, trust=trust), path
    from rl_training.api.managed import load
    from rl_training.api.support import find_checkpoint

    chosen = find_checkpoint(path, checkpoint)
    return load(chosen, trust=trust), chosen


@app.command(name="eval")
@with_launcher(*WITHOUT_TRAINING)
def evaluate(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_OR_CHECKPOINT...",
            help="Run, checkpoint or export folders, or folders with runs in them.",
        ),
    ],
    episodes: Annotated[
        int, typer.Option("--episodes", "-n", min=1, help="Whole episodes to run.")
    ] = 20,
    max_steps: Annotated[
        int | None,
        typer.Option(
            "--max-steps",
            min=1,
            help="Steps after which an episode is cut; by default eval_max_steps of the run.",
        ),
    ] = None,
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint", help="Checkpoint of a run: latest, best, a tick such as 5000, or all."
        ),
    ] = "latest",
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
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder that keeps the results of many policies; by default evaluations."
        ),
    ] = None,
    quiet: QuietOption = False,
    *,
    wanted: Wanted,
) -> None:
    """Run whole episodes with a trained policy and report their returns.

    Several policies are evaluated in parallel from the same start states. Their results do not
    depend on the number of workers, and the same command continues where it stopped.

    Example: rl-training eval runs/sac-... --episodes 50 --video swing-up.mp4

    Many: rl-training eval runs --checkpoint all --workers 8
    """
    parallel = folder is not None or not wanted.is_default
    mode: dict[str, Any] = {"seed": seed, "deterministic": not stochastic, "env_id": env}
    mode["max_steps"] = max_steps
    if len(paths) > 1 or checkpoint == "all" or parallel or holds_many(paths[0]):
        if video is not None:
            raise ConfigError("--video: it shows one policy; name a single run, or remove it")
        mode |= {"episodes": episodes, "settings": tuple(settings or ()), "trust": trust}
        resumable(evaluate_many)(
            paths,
            checkpoint,
            wanted,
            folder or Path("evaluations"),
            again=overwrite,
            shown=not quiet,
            as_json=as_json,
            **mode,
        )
        return
    from rl_training.experiment.config_files import apply_overrides
    from rl_training.experiment.task_names import task_name
    from rl_training.export.contract import is_export

    if overwrite and video is None:
        raise ConfigError(
            "eval: --overwrite belongs to --video, or to many policies; nothing else is written"
        )
    (path,) = paths
    agent, chosen = _policy(path, checkpoint, trust)
    # the video first, because more can go wrong with it
    kwargs = agent.config.env_kwargs if env is None else {}
    if settings:
        kwargs = mode["env_kwargs"] = apply_overrides(kwargs, settings)
    filmed = None if video is None else agent.record_video(video, overwrite=overwrite, **mode)
    result = agent.evaluate(episodes, **mode)
    if as_json:
        values: dict[str, Any] = {**result.metrics(), "eval/returns": list(result.returns)}
        if filmed is not None:
            values["video"] = {"path": str(video), "return": filmed.returns[0]}
        print(json.dumps(values))
        return
    task = task_name(str(env or agent.config.env_id), kwargs)
    title = printable(f"{agent.config.algo} on {task}")
    table = Table(title=title, title_justify="left")
    for name in ("mean", "std", "min", "max", "length"):
        table.add_column(name, justify="right")
    metrics = result.metrics()
    names = ("return_mean", "return_std", "return_min", "return_max", "length_mean")
    table.add_row(*(f"{metrics[f'eval/{name}']:,.1f}" for name in names))
    out.print(table)
    kind = "export" if is_export(path) else "checkpoint"
    out.print(f"{result}, {kind} {chosen}", soft_wrap=True)
    note = result.note(options=True)
    if note:
        out.print(f"note: {note}", soft_wrap=True)
    if filmed is not None:
        earned = f"return {filmed.returns[0]:,.1f} in {filmed.lengths[0]:,} steps"
        out.print(f"video of the first episode, {earned}: {video}", soft_wrap=True)


@app.command()
def predict(
    path: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="Run, checkpoint or export folder.")
    ],
    observation: Annotated[
        str | None,
        typer.Argument(
            help="One observation as JSON, e.g. '[1.0, 0.0, 0.0]', of an image whole numbers from "
            "0 to 255; - for stdin."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "--npz",
            help="File of n observations: .npz or .hdf5 with an array 'observations', (n, width) "
            "of vectors, such as (n, 4, 84, 84) of images, or .csv or .parquet with the columns "
            "of the training data.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--out", help="With --file: file for the 'actions', .npz, .csv or .parquet."),
    ] = None,
    checkpoint: WhichOption = "latest",
    stochastic: StochasticOption = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Also print the probabilities, log-probability, value and Q-values that exist.",
        ),
    ] = False,
    trust: TrustOption = False,
) -> None:
    """Print the action for one observation, or write actions for a file of many."""
    import numpy as np

    from rl_training.data.table_files import write_table
    from rl_training.experiment.config_errors import shortened
    from rl_training.experiment.data_config import FILE_KINDS, TABLE_KINDS
    from rl_training.experiment.errors import DataError
    from rl_training.experiment.files import draft_of

    if (observation is None) == (file is None):
        raise ConfigError("predict: give one observation as JSON, or a file with --file")
    if output is not None and file is None:
        raise ConfigError("predict: --out belongs to --file; one action is printed")
    kind = None if output is None else FILE_KINDS.get(output.suffix)
    if output is not None and kind not in ("npz", *TABLE_KINDS):
        raise ConfigError(f"predict: --out '{output}' must end in .npz, .csv or .parquet")
    if output is not None and output.exists():
        raise ConfigError(f"predict: --out '{output}' exists already; choose another name")
    agent, _ = _policy(path, checkpoint, trust)
    if file is None:
        text = sys.stdin.read() if observation == "-" else str(observation)
        try:
            whole = int if agent._task_spaces().is_image else float
            parsed = json.loads(text, parse_int=whole)
            values: Any = parsed if isinstance(parsed, dict) else np.asarray(parsed)
            if not isinstance(values, dict) and values.dtype.kind not in "fib":  # in quotes, say
                raise TypeError
        except (ValueError, TypeError, RecursionError):
            raise ConfigError(
                "predict: the observation must be a JSON list of numbers, or of parts by name, got "
                f"{shortened(text.strip())}"
            ) from None
    else:
        values = _observations_in(file, agent._task_spaces())
    if explain and stochastic:
        raise ConfigError(
            "predict: --explain is about the most likely actions; remove --stochastic"
        )
    answers = agent.explain(values) if explain else {}
    actions = answers.pop("action", None)
    if actions is None:
        actions, _ = agent.predict(values, deterministic=not stochastic)
    if output is not None:
        parts = answers.get("action_probabilities")
        if isinstance(parts, list):  # of MultiDiscrete actions
            del answers["action_probabilities"]
            answers |= {f"action_probabilities_{i}": part for i, part in enumerate(parts)}
        try:
            with draft_of(output) as draft:
                if kind == "npz":
                    np.savez_compressed(draft, actions=actions, **answers)
                else:
                    write_table({"actions": actions, **answers}, draft, str(kind))
        except OSError as error:
            raise DataError(
                f"'{output}' cannot be written ({error.strerror or error}); choose another name"
            ) from None
        out.print(f"wrote {len(actions)} actions to {output}", soft_wrap=True)
    else:
        shown = {"action": actions, **answers} if explain else actions
        print(json.dumps(shown, default=lambda array: np.asarray(array).tolist()))


def _observations_in(file: Path, spaces: Spaces) -> Any:
    """The array 'observations' of a file, or the columns of a table by name; refused if they are
    not those of the spaces."""
    import numpy as np

    from rl_training.data.readers import read_file_arrays
    from rl_training.data.tables import numbered_columns
    from rl_training.envs.layout import Part, value_at
    from rl_training.experiment.data_config import FILE_KINDS, TABLE_KINDS
    from rl_training.experiment.errors import DataError

    arrays = read_file_arrays(file, "--file")
    parts = () if spaces.layout is None else spaces.layout.parts
    if FILE_KINDS.get(file.suffix.lower()) in TABLE_KINDS:
        if parts and parts[0].path:
            return arrays
        if numbered := numbered_columns("observations", list(arrays)):
            arrays["observations"] = np.stack([arrays[name] for name in numbered], 1)
    if "observations" not in arrays:
        raise DataError(f"'{file}' has no array 'observations'; it has {', '.join(arrays)}")
    values = value_at(arrays, Part(("observations",), spaces.obs_shape), "predict")
    shapes = [spaces.obs_shape]
    if len(parts) == 1 and not (parts[0].path or parts[0].pixels):
        own = parts[0].shape  # as the environment gives it; a single choice is a whole number
        shapes += [own] if own or values.dtype.kind in "iu" else []
    if values.dtype.kind not in "fiub" or values.ndim == 0 or values.shape[1:] not in shapes:
        rows = " or ".join(f"(n, {', '.join(map(str, shape))})" for shape in dict.fromkeys(shapes))
        raise DataError(
            f"'{file}': array 'observations' must hold numbers in the shape {rows}, it holds "
            f"{values.dtype} in the shape {values.shape}; give one row per observation"
        )
    return values
