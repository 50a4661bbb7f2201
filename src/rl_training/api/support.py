"""Checkpoints that an agent comes from: which one a path means, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl_training.api.options import refuse_changes
from rl_training.envs.spaces import Spaces
from rl_training.experiment.checkpoint import MANIFEST, CheckpointInfo
from rl_training.experiment.checkpoint_store import CheckpointStore
from rl_training.experiment.config import (
    TrainConfig,
)
from rl_training.experiment.console import Console
from rl_training.experiment.errors import (
    CheckpointError,
    ConfigError,
    NewerFormatError,
    UnfitStateError,
)
from rl_training.experiment.state import Stored
from rl_training.experiment.storage import local_run
from rl_training.experiment.tracking import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    resume_command,
    versions,
)
from rl_training.export.contract import is_export
from rl_training.runtime.loops import Loop
from rl_training.runtime.saving import BUDGETS


def find_checkpoint(path: Path, which: str = "latest") -> Path:
    """The checkpoint folder for a path: the path itself, or a checkpoint of the run there."""
    path = local_run(path)
    if is_export(path):
        raise CheckpointError(
            f"'{path}' is an exported policy, not a run or a checkpoint; it is for eval, predict "
            "and serve, and in Python for rl_training.ExportedPolicy"
        )
    if not (path / CONFIG_FILE).is_file():
        if which != "latest" and (path / MANIFEST).is_file():
            raise CheckpointError(
                f"'{path}' is one checkpoint already; '{which}' can be chosen of a run folder only"
            )
        return path
    parts = sorted(folder.parent.name for folder in path.glob(f"seed-*/{CONFIG_FILE}"))
    if parts:
        raise CheckpointError(
            f"run '{path}' holds an agent per seed; choose one, such as {path / parts[0]}"
        )
    store = CheckpointStore(path / CHECKPOINT_FOLDER, keep_last=1, keep_best=True)
    found = {info.tick: info for info in store.all()}
    damaged = store.unreadable()
    if which == "latest":
        info = store.latest()
        problems = {tick: error for tick, error in damaged.items() if tick > max(found, default=-1)}
    elif which == "best":  # any of those that cannot be read may be it
        info, problems = store.best(), damaged
    else:
        tick = int(which) if which.isdecimal() else -1
        info = found.get(tick)
        problems = {tick: damaged[tick]} if tick in damaged else {}
    if problems:
        problem = problems[max(problems)]
        raise type(problem)(f"{problem}{_another(list(found.values()))}")
    if info is not None:
        return info.path
    if not found:
        raise CheckpointError(
            f"run '{path}' has no checkpoint yet; go on with: {resume_command(path)}"
        )
    raise CheckpointError(
        f"run '{path}' has no checkpoint '{which}'; expected latest, best (of those evaluated) or "
        f"one of: {_listed(list(found))}"
    )


TICKS_SHOWN = 20


def _listed(ticks: list[int]) -> str:
    """A list of the newest ticks."""
    more = f" (and {len(ticks) - TICKS_SHOWN:,} earlier ones)" if len(ticks) > TICKS_SHOWN else ""
    return ", ".join(str(tick) for tick in ticks[-TICKS_SHOWN:]) + more


def _another(found: list[CheckpointInfo]) -> str:
    """Advice to choose another checkpoint; none is chosen silently."""
    if not found:
        return ""
    last = found[-1]
    return f" (for that: --checkpoint {last.tick}, or its folder '{last.path}')"


def check_checkpoints(
    store: CheckpointStore, config: TrainConfig, spaces: Spaces, console: Console
) -> None:
    """Refuse to resume from checkpoints that are not this run's, or were made for other spaces
    than the task has; name those left out."""
    for problem in store.unreadable().values():
        if isinstance(problem, NewerFormatError):
            raise problem
        console.say(f"warning: {problem}")
    known: list[Any] = []  # most often the same in all checkpoints
    for info in store.all():
        if _task_of(info) in known:
            continue
        with refused_if_unfit(info.path):
            algo = Stored(info.manifest)["algo"]
            if algo != config.algo:
                raise CheckpointError(
                    f"checkpoint '{info.path}' is of '{algo}', but the run trains "
                    f"'{config.algo}'; remove it, or restore the run's own checkpoints"
                )
            # parsed, so that keys which did not exist then have their default
            refuse_changes(stored_config(info), config)
            made_for = Spaces.from_dict(Stored(info.manifest)["spaces"])
            where = f"environment '{config.env_id}'" if config.env_id else "the data set"
            made_for.refuse_other(spaces, where, "env_id" if config.env_id else "dataset")
        known.append(_task_of(info))


def refuse_spent(stored: TrainConfig, config: TrainConfig, loop: Loop) -> None:
    """Refuse another budget than the stored one if the restored loop has done as much already.

    The loop is closed then. The stored budget itself may be spent.
    """
    key = _new_budget(stored, config)
    if key is None or loop.tick < loop.total:
        return
    loop.close()
    if key == "total_epochs":
        updates = loop.total // getattr(config, key)  # of one epoch
        raise _spent(key, f"{loop.tick:,} {loop.unit}", loop.tick // updates)
    done = loop.tick - (loop.total - getattr(config, key))  # the rest is pretraining
    raise _spent(key, f"{done:,} {'updates' if key == 'total_updates' else 'env steps'}", done)


@contextmanager
def spent_budget_named(
    stored: TrainConfig, config: TrainConfig, store: CheckpointStore
) -> Iterator[None]:
    """Around the building of a loop: where it refuses a budget that is done already, name the
    budget, because the knob that it would name cannot change on resume."""
    try:
        yield
    except ConfigError:
        newest = store.latest()
        if newest is not None and _new_budget(stored, config) == "total_timesteps":
            done = Stored(newest.manifest).section("progress").whole("env_steps")
            if done >= (config.total_timesteps or 0):
                raise _spent("total_timesteps", f"{done:,} env steps", done) from None
        raise


def _new_budget(stored: TrainConfig, config: TrainConfig) -> str | None:
    """The key of the budget, if it is not the stored one."""
    given = {key: getattr(config, key) for key in BUDGETS}
    return next(
        (k for k, value in given.items() if value is not None and value != getattr(stored, k)), None
    )


def _spent(key: str, done: str, most: int) -> ConfigError:
    return ConfigError(f"{key}: {done} are done already; give more than {most:,}")


def _task_of(info: CheckpointInfo) -> Any:
    """The part of a checkpoint that is checked once for all that share it."""
    return [info.manifest.get(key) for key in ("algo", "config", "spaces")]


def stored_config(info: CheckpointInfo, **here: Any) -> TrainConfig:
    """The config in a checkpoint, with the keys in `here` replaced."""
    values = {**Stored(info.manifest).section("config").values, **here}
    try:
        return TrainConfig.stored(values)
    except ConfigError as error:
        written = _versions_of(info).get("rl-training")
        by = f"rl-training {written}" if written else "another version"
        own = versions()["rl-training"]
        raise CheckpointError(
            f"checkpoint '{info.path}' was written by {by}, and this version, {own}, cannot read "
            f"its config ({str(error).splitlines()[0]}); use the version that wrote it, or a later "
            "one"
        ) from None


def version_note(info: CheckpointInfo | None) -> str | None:
    """A note if a checkpoint was written with other versions than these."""
    stored = {} if info is None else _versions_of(info)
    differ = [
        f"{name} {stored[name]}, now {own}"
        for name, own in versions().items()
        if name in stored and stored[name] != own
    ]
    if not differ:
        return None
    return (
        f"warning: the checkpoint was written with {'; '.join(differ)}: the run goes on, but "
        "perhaps not bit for bit"
    )


def _versions_of(info: CheckpointInfo) -> dict[str, str]:
    stored = info.manifest.get("versions")
    return stored if isinstance(stored, dict) else {}


@contextmanager
def refused_if_unfit(path: Path) -> Iterator[None]:
    """Name the checkpoint if its values do not fit a component."""
    try:
        yield
    except UnfitStateError as error:
        raise CheckpointError(
            f"checkpoint '{path}' does not fit ({error}): it was written for other networks, by "
            "another version, or changed; use one that belongs to this run"
        ) from error
