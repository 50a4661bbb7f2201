"""Commands that show what is available: list, show, doctor."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from rl_training.cli.options import ConfigArgument, OverridesArgument, out, overridden

app = typer.Typer()


@app.command(name="list")
def list_all(
    runs: Annotated[Path, typer.Option("--runs", help="Folder with run folders.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the runs alone, as JSON.")] = False,
    status: Annotated[
        str | None,
        typer.Option(
            help="Show only runs of this status: running, finished, interrupted, failed or dead."
        ),
    ] = None,
    algo: Annotated[str | None, typer.Option(help="Show only runs of this algorithm.")] = None,
    sort: Annotated[str, typer.Option(help="Order of the runs: name, score or progress.")] = "name",
) -> None:
    """Show algorithms, packaged configs, data sets and runs."""
    found = _runs(runs, status, algo, sort)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    from rl_training.data.scripted import SCRIPTED
    from rl_training.envs.spaces import ACTION_NAMES
    from rl_training.experiment.config_files import packaged_config_names
    from rl_training.experiment.errors import ConfigError
    from rl_training.experiment.registry import algorithm_class, algorithm_names

    algorithms = _plain_table("name", "learns", "actions", "what it does")
    configs, data = _plain_table(), _plain_table()
    for name in algorithm_names():
        try:
            cls = algorithm_class(name)
        except ConfigError as error:  # a broken plugin hides nothing else
            algorithms.add_row(name, "", "", str(error))
            continue
        kinds = ", ".join(sorted(ACTION_NAMES[kind] for kind in cls.action_kinds))
        learns = ", ".join(cls.loops()).replace("_", " ")
        algorithms.add_row(name, learns, kinds, f"{cls.summary} ({cls.paper})")
    for _, own in groupby(packaged_config_names(), key=lambda config: config.partition("/")[0]):
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
    for run in found:
        out.print(f"  {_in_words(run)}", soft_wrap=True)
    if not found:
        out.print("  none yet")


def _plain_table(*names: str) -> Table:
    """Indented columns without lines, with wrapped cells."""
    return Table(*names, box=None, show_header=bool(names), padding=(0, 0, 0, 2))


def _runs(folder: Path, status: str | None, algo: str | None, sort: str) -> list[dict[str, Any]]:
    from rl_training.experiment.errors import ConfigError, RLTrainingError
    from rl_training.reports.runs import STATUSES, described, find_runs

    if status is not None and status not in STATUSES:
        raise ConfigError(f"--status: '{status}' is none of {', '.join(STATUSES)}")
    if sort not in SORTED_BY:
        raise ConfigError(f"--sort: '{sort}' is none of {', '.join(SORTED_BY)}")
    try:
        listed = [described(run) for run in find_runs([folder])]
    except RLTrainingError:
        return []  # none yet
    kept = [
        run for run in listed if status in (None, run["status"]) and algo in (None, run["algo"])
    ]
    return sorted(kept, key=SORTED_BY[sort])


SORTED_BY: dict[str, Callable[[dict[str, Any]], Any]] = {
    "name": lambda run: run["name"],
    "score": lambda run: -math.inf if run["score"] is None else run["score"],
    "progress": lambda run: run["progress"] or 0.0,
}


def _in_words(run: dict[str, Any]) -> str:
    from rl_training.experiment.tracking import resume_command

    unit = f"{run['tick']:,}" + (f" of {run['budget']:,}" if run["budget"] else "")
    score = "" if run["score"] is None else f", {run['metric']} {run['score']:,.1f}"
    ended = run["status"] in ("finished", "running")
    remedy = "" if ended else f"; go on with: {resume_command(Path(run['folder']))}"
    return f"{run['name']}  {run['status']}, {unit}{score}{remedy}"


@app.command()
def show(config: ConfigArgument, overrides: OverridesArgument = None) -> None:
    """Print a resolved config: every key with its value and meaning."""
    from rl_training.experiment.config import load_config

    resolved = load_config(config, overridden(overrides, None, None, None))
    for line in _commented(resolved, ""):
        print(line)


def _commented(section: Any, indent: str) -> Iterator[str]:
    """YAML lines of a section, each with the field's comment."""
    import yaml
    from pydantic import BaseModel

    from rl_training.experiment.ranges import search_range

    for name, field in type(section).model_fields.items():
        value = section.params if name == "algo_kwargs" else getattr(section, name)
        comment = f"  # {field.description}" if field.description else ""
        if (found := search_range(field)) is not None:
            comment += f" Search: {found}."
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
            text = text.removesuffix("...\n").strip()  # YAML's end marker after a bare value
            yield f"{indent}{name}: {text}{comment}"


@app.command()
def doctor() -> None:
    """Check versions, devices, extras and writable folders."""
    import importlib.util
    import os
    import shutil
    import tempfile

    import torch

    from rl_training.experiment.errors import install_command
    from rl_training.experiment.storage import cache_folder
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
    extras |= {"tables": "pyarrow"}
    extras |= {"box2d": "Box2D", "video": "imageio_ffmpeg", "dmc": "dm_control"}
    extras |= {"export": "onnxscript", "serve": "uvicorn", "tune": "optuna"}
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
