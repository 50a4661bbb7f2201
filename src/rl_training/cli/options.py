"""Arguments and options that several commands share, and where they print."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

from rl_training.experiment.terminal import terminal

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
        help="Keys to override, e.g. total_updates=5000 algo_kwargs.temperature=0.5",
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
    str,
    typer.Option("--checkpoint", help="Checkpoint of a run: latest, best, or a tick such as 5000."),
]
EnvOption = Annotated[
    str | None,
    typer.Option("--env", help="Environment of the data."),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace an existing target.")]


def find_modules_here(wanted: bool) -> bool:
    """Let `env_id: mymodule:MyEnv-v0` find a module of the current folder.

    The installed command does not search there, unlike `python -m rl_training`. Used only for a
    config that the user passes, or for files that the user trusts.
    """
    if wanted and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return wanted


TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        callback=find_modules_here,
        help="Import the modules that the files name, from any package.",
    ),
]
StochasticOption = Annotated[
    bool,
    typer.Option("--stochastic", help="Sample actions instead of taking the most likely ones."),
]


def overridden(
    overrides: list[str] | None, seed: int | None, device: str | None, output_dir: str | None
) -> list[str]:
    flags = {"seed": seed, "device": device, "output_dir": output_dir}
    return [
        *(overrides or []),
        *(
            f"{key}={json.dumps(value, ensure_ascii=False)}"
            for key, value in flags.items()
            if value is not None
        ),
    ]
