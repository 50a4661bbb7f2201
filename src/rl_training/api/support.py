"""What the managed class needs around it: options, stored data, checkpoints, a fast policy."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import BaseModel

from rl_training.algorithms.base import Algorithm
from rl_training.data.convert import save_dataset
from rl_training.data.dataset import TransitionDataset
from rl_training.envs.spaces import Spaces
from rl_training.experiment.checkpoint import MANIFEST, CheckpointInfo, CheckpointStore
from rl_training.experiment.config import (
    CHANGEABLE_ON_RESUME,
    DatasetConfig,
    DataSource,
    TrainConfig,
)
from rl_training.experiment.config_errors import shortened
from rl_training.experiment.console import Console
from rl_training.experiment.errors import (
    CheckpointError,
    ConfigError,
    NewerFormatError,
    UnfitStateError,
    did_you_mean,
)
from rl_training.experiment.foreign_names import name_here
from rl_training.experiment.registry import algorithm_class
from rl_training.experiment.renames import older_names, with_current_names
from rl_training.experiment.state import Stored
from rl_training.experiment.tracking import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    DATASET_FILE,
    resume_command,
    versions,
)
from rl_training.export.contract import is_export
from rl_training.models.carry import Carry, num_rows, reset_rows
from rl_training.runtime.loops import Loop

Array = np.ndarray[Any, Any]
Source = TypeVar("Source", bound=DataSource)


PREPARATION = ("keep", "split", "rewards", "returns", "normalize_observations", "home")
"""Keys of a data section that say what is done to the data."""


def preparation(dataset: DatasetConfig | None, same_data: bool = False) -> dict[str, Any]:
    """The keys of a data section that say what is done to the data, wherever they come from;
    with `same_data`, also what is known of these data."""
    keys = (*PREPARATION, "spaces") if same_data else PREPARATION
    return {} if dataset is None else {key: getattr(dataset, key) for key in keys}


def with_absolute_paths(config: TrainConfig) -> TrainConfig:
    """The same run from any folder: files are named by absolute paths."""
    if config.init_from is not None:
        config = config.settled(init_from=os.path.abspath(config.init_from))
    return _with_data_at(config, os.path.abspath)


def with_paths_found(config: TrainConfig, run_dir: Path) -> TrainConfig:
    """Of a stored run: files that are not where its config says, but where it began or in its
    folder, which may have been moved. That data are the same is checked by their fingerprint."""
    output, parents = Path(config.output_dir), run_dir.absolute().parents
    began = None  # the working folder of the run, where output_dir was relative to it
    if not output.is_absolute() and len(output.parts) < len(parents):
        began = parents[len(output.parts)]

    def found(path: str) -> str:
        name = Path(path).name
        places = [Path(path), run_dir / name, run_dir.parent / name]
        if began is not None:
            places.insert(1, began / path)
        return next((str(place) for place in places if place.exists()), path)

    return _with_data_at(config, found)


def _with_data_at(config: TrainConfig, place: Callable[[str], str]) -> TrainConfig:
    """A copy in which every data file is at its new place."""
    if config.dataset is None:
        return config
    dataset = _at(config.dataset, place)
    if dataset.mix is not None:
        parts = tuple(_at(part, place) for part in dataset.mix)
        dataset = dataset.model_copy(update={"mix": parts})
    return config.settled(dataset=dataset)


def _at(source: Source, place: Callable[[str], str]) -> Source:
    return source if source.path is None else source.model_copy(update={"path": place(source.path)})


def store_in(run_dir: Path, dataset: TransitionDataset) -> dict[str, Any]:
    """Write data that were in memory into the run folder, one file per part of a mix.

    The keys returned make the run's config rebuild the same data.
    """
    stored, start = [], 0
    for i, (rows, weight) in enumerate(dataset.parts):
        name = DATASET_FILE if len(dataset.parts) == 1 else f"{i}-{DATASET_FILE}"
        part = dataset.rows(start, start + rows)
        path = Path(save_dataset(part, run_dir / name)).resolve()
        stored.append({"kind": "npz", "path": str(path), "weight": weight})
        start += rows
    if len(stored) == 1:
        return {"kind": "npz", "path": stored[0]["path"]}
    return {"mix": stored}


def announce(console: Console, run_dir: Path, loop: Loop) -> None:
    """Say where a run that begins is written, how it is executed and what its data lack."""
    console.say(f"run folder: {run_dir}")
    console.say(f"engine: {loop.engine.mode} ({loop.engine.reason})")
    for note in loop.data_notes:
        console.say(f"note on the data: {note}")


def find_checkpoint(path: Path, which: str = "latest") -> Path:
    """The checkpoint folder that a path means: itself, or one of a run's."""
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
    """The newest of some ticks."""
    more = f" (and {len(ticks) - TICKS_SHOWN:,} earlier ones)" if len(ticks) > TICKS_SHOWN else ""
    return ", ".join(str(tick) for tick in ticks[-TICKS_SHOWN:]) + more


def _another(found: list[CheckpointInfo]) -> str:
    """How to say that another checkpoint is to be used, which is never used unasked."""
    if not found:
        return ""
    last = found[-1]
    return f" (for that: --checkpoint {last.tick}, or its folder '{last.path}')"


SB3_POLICIES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")


def refuse_misplaced(kind: str, first: Any, others: tuple[Any, ...]) -> None:
    """Refuse the positional arguments of other libraries; `kind` is the class that got them."""
    if isinstance(first, str) and first in SB3_POLICIES:
        env = repr(others[0]) if others and isinstance(others[0], str) else "'Pendulum-v1'"
        raise ConfigError(
            f"env_id: '{first}' is a policy of Stable-Baselines3; here the networks follow from "
            f"the spaces of the environment, so leave it out: {kind}({env})"
        )
    if others:
        raise ConfigError(
            f"{kind} takes one argument by position, the environment, and got "
            f"{shortened(others[0])}, too; give everything else by name, such as dataset= or seed="
        )


def how_to_name(env: Any) -> str:
    """The way from an environment, its class or a function that makes it to an id."""
    known = getattr(getattr(env, "spec", None), "id", None)
    prefix = "env_id: give the id of an environment, such as 'Pendulum-v1', or a TrainConfig, "
    made = "the agent makes environments of its own"
    if known is not None:
        return f"{prefix}not a {type(env).__name__}; {made}, so give its id, {known!r}"
    if not (callable(env) or hasattr(env, "reset")):
        return f"{prefix}not {type(env).__name__}"
    source = env if callable(env) else type(env)
    name = getattr(source, "__name__", "")
    if not name.isidentifier():  # a lambda, or an object that can be called
        name = "make_env"
    described = f"the class {name}" if isinstance(env, type) else f"a {type(env).__name__}"
    label = "".join(part.capitalize() for part in name.split("_")) if name.islower() else name
    return (
        f"{prefix}not {described}; {made}, so register it first: "
        f'gymnasium.register("{label}-v0", entry_point={name}), and give "{label}-v0"'
    )


def with_options(
    base: TrainConfig | Mapping[str, Any], options: Mapping[str, Any], algo: str
) -> TrainConfig:
    """Sort loose keyword arguments into run keys and knobs, and check what they change."""
    if isinstance(base, TrainConfig) and not options:
        return base
    keys: dict[str, Any] = {}
    loose: dict[str, Any] = {}
    unknown = []
    params = algorithm_class(algo).Params
    older = older_names(params)
    for key, value in options.items():
        if key in TrainConfig.model_fields:
            keys[key] = value
        elif key in params.model_fields or key in older:
            loose[key] = value
        else:
            there = [*TrainConfig.model_fields, *params.model_fields]
            hint = name_here(key, there, {}) or did_you_mean(key, there)
            unknown.append(f"{key}: unknown option for {algo}{hint}")
    if unknown:
        raise ConfigError("\n".join(unknown))
    given = keys.get("algo_kwargs", {})
    if isinstance(given, BaseModel):
        given = given.model_dump(mode="json")
    if (given or loose) and isinstance(given, Mapping):  # anything else is refused with the rest
        known = base.algo_kwargs if isinstance(base, TrainConfig) else base.get("algo_kwargs", {})
        keys["algo_kwargs"] = {
            key: value
            for source in (known, given, loose)
            for key, value in with_current_names(params, source).items()
        }
    if isinstance(base, TrainConfig):
        return base.replace(**keys)
    return TrainConfig(**{**base, **keys})


def refuse_changes(stored: TrainConfig, wanted: TrainConfig) -> None:
    """Refuse a config that would learn, or choose the best checkpoint, differently."""
    algorithm = algorithm_class(wanted.algo)
    before, now = (algorithm.loop_of(c) for c in (stored, wanted))
    if before != now:
        key = "total_timesteps" if now == algorithm.online_loop else "total_updates"
        key = key if algorithm.offline_loop is None else "dataset"
        raise ConfigError(
            f"{key}: this run is {before.replace('_', ' ')} and cannot turn into one that is "
            f"{now.replace('_', ' ')}; start a new run with init_from=RUN"
        )
    changed = changes(stored.to_dict(), wanted.to_dict(), CHANGEABLE_ON_RESUME)
    # data may move and be packed: that they are the same is checked by their fingerprint
    place = re.compile(r"dataset(\.mix\.\d+)?\.(path|kind|home): ")
    changed = [text for text in changed if not place.match(text)]
    for key, default in (("metric", "eval/return_mean"), ("mode", "max")):
        old = getattr(stored.early_stopping, key, default)
        new = getattr(wanted.early_stopping, key, default)
        if old != new:  # evaluations so far were compared by it
            changed.append(f"early_stopping.{key}: {old!r} -> {new!r}")
    if changed:
        raise ConfigError(
            "resume cannot change what is learned (" + "; ".join(changed) + "); "
            "start a new run with the changed config"
        )


def changes(old: Mapping[str, Any], new: Mapping[str, Any], free: frozenset[str]) -> list[str]:
    """`key: old -> new` for every difference between two configs outside the `free` keys."""
    return [
        f"{key}: {before!r} -> {after!r}"
        for key, before, after in _differences(old, new)
        if key.partition(".")[0] not in free
    ]


def _differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(key, old value, new value) wherever two nested configs differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in {**old, **new}:
            below = f"{key}.{name}" if key else str(name)
            yield from _differences(old.get(name), new.get(name), below)
    elif _parts(old) and _parts(new) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(one, other, f"{key}.{index}")
    elif old != new:
        yield key, old, new


def _parts(value: Any) -> bool:
    """Whether a value is a list of sections, as the parts of a mix are."""
    return isinstance(value, list) and all(isinstance(part, Mapping) for part in value)


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


def _task_of(info: CheckpointInfo) -> Any:
    """What has to be looked at once for all checkpoints that have it."""
    return [info.manifest.get(key) for key in ("algo", "config", "spaces")]


def stored_config(info: CheckpointInfo, **here: Any) -> TrainConfig:
    """The config in a checkpoint, with keys that are decided here."""
    values = {**Stored(info.manifest).section("config").values, **here}
    try:
        return TrainConfig.stored(values)
    except ConfigError as error:
        written = _versions_of(info).get("rl-training")
        by = f"rl-training {written}" if written else "another version"
        own = versions()["rl-training"]
        raise CheckpointError(
            f"checkpoint '{info.path}' was written by {by}, and its config means nothing to this "
            f"version, {own} ({str(error).splitlines()[0]}); use the version that wrote it, or a "
            "later one"
        ) from None


def version_note(info: CheckpointInfo | None) -> str | None:
    """A sentence where a checkpoint was written with other versions than these."""
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
    """Say which checkpoint it is whose values a component could not take."""
    try:
        yield
    except UnfitStateError as error:
        raise CheckpointError(
            f"checkpoint '{path}' does not fit ({error}): it was written for other networks, by "
            "another version, or changed; use one that belongs to this run"
        ) from error


@contextmanager
def removed_on_failure(run_dir: Path) -> Iterator[None]:
    """Leave no run folder behind when it cannot be filled."""
    try:
        yield
    except OSError as error:
        shutil.rmtree(run_dir, ignore_errors=True)
        raise ConfigError(
            f"output_dir: the run folder '{run_dir}' cannot be filled: "
            f"{error.strerror or error}; make room or choose another folder with --output-dir"
        ) from None
    except BaseException:
        shutil.rmtree(run_dir, ignore_errors=True)
        raise


def state_before(algorithm: Algorithm, state: Any, episode_start: Any, rows: int) -> Carry | None:
    """What a recurrent policy carries into a call of `predict` for `rows` observations."""
    if state is None:
        return None
    kind = type(algorithm.initial_carry(1))
    if not isinstance(state, kind) or num_rows(state) != rows:
        held = f"{num_rows(state)} rows" if isinstance(state, kind) else type(state).__name__
        raise ConfigError(
            f"predict: expected the state that the call before returned, for {rows} "
            f"observation{'' if rows == 1 else 's'}, got {held}; give state=None where all "
            "episodes begin"
        )
    if episode_start is None:
        return state
    first = np.atleast_1d(np.asarray(episode_start, np.bool_))
    if first.shape not in ((1,), (rows,)):
        raise ConfigError(
            f"predict: episode_start must hold one flag per observation, {rows}, got the shape "
            f"{first.shape}"
        )
    return reset_rows(state, torch.from_numpy(np.broadcast_to(first, (rows,)).copy()))
