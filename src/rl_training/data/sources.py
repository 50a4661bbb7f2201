"""The one public loader of transition data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from rl_training.data.dataset import TransitionDataset
from rl_training.data.episode_lists import holds_episodes, read_episodes
from rl_training.data.episodes import chosen_episodes
from rl_training.data.homes import MemoryHome, to_be_packed
from rl_training.data.inference import spaces_without_environment
from rl_training.data.keys import ALIASES
from rl_training.data.masks import check_masks
from rl_training.data.packed import Packed, open_packed, source_file
from rl_training.data.packing import (
    STREAMED,
    PackingProgress,
    existing_files,
    pack,
    packed_copy,
    prepared,
    source_bytes,
    source_rows,
)
from rl_training.data.pieces import pieces_of
from rl_training.data.readers import (
    read_arrays,
    read_hdf5,
    read_minari,
    read_npz,
)
from rl_training.data.rewards import apply_reward_processing
from rl_training.data.scripted import recipe_for, scripted_arrays
from rl_training.data.table_files import is_frame
from rl_training.data.tables import read_frame, read_table
from rl_training.data.validation import RawTransitions, build_dataset
from rl_training.envs.contract import close_env
from rl_training.envs.episodes import roll_out, uniform_controller
from rl_training.envs.make import env_spaces, make_env, spaces_of
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import (
    TABLE_KINDS,
    DatasetConfig,
    DataSource,
    SpacesConfig,
)
from rl_training.experiment.data_config import short_form
from rl_training.experiment.errors import ConfigError, DataError
from rl_training.experiment.memory import host_memory
from rl_training.experiment.storage import local_data, url_of

DEFAULT_RANDOM_STEPS = 10_000


def load_transition_dataset(
    source: Any,
    *,
    env_id: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    spaces: Spaces | SpacesConfig | None = None,
    needs_rewards: bool = True,
    widen_constants: bool = True,
) -> TransitionDataset:
    """Load, check, mix and process transitions from any source.

    `source` is a configuration section (`DatasetConfig` or its keys in a mapping), arrays
    in a mapping with the key `observations`, a list of episodes, a data frame (alone, or under
    the key `frame` beside those of a section), a data set (returned as it is), or a string: a
    scripted name such as "pendulum-mixed", "random", a path that ends in .npz, .h5, .hdf5,
    .parquet or .csv, a folder of packed data, or "minari:ID".

    Of packed data nothing is read but what is used; a file that is large, or that is to stay on
    disk, is packed first.

    The data are checked against `spaces`; where those are left out, against the
    environment `env_id`; where that is left out too, against what the source says of
    itself, or else the action space is inferred from the data, which a note then says; a
    `SpacesConfig`, as the section `dataset.spaces`, goes before both.

    A component of the actions that never changes shows no bounds: it gets a range of 1 to
    either side, or is refused without `widen_constants`.

    Arrays and files without rewards are refused unless `needs_rewards` is False, as it is
    for imitation.
    """
    given = None
    if isinstance(spaces, SpacesConfig):
        given, spaces = spaces, None
    if isinstance(source, TransitionDataset):
        if needs_rewards:
            source.require_rewards()
        if spaces is None and env_id is not None:
            spaces = env_spaces(env_id, env_kwargs)
        return _refitted(source, spaces)
    config = None
    raws: Sequence[RawTransitions | Packed]
    if holds_frame(source):
        config = frame_config(source)
        given = given or config.spaces
        raws = [read_frame(source["frame"], config, needs_rewards, given)]
    elif is_frame(source):
        raws = [read_frame(source, DataSource(), needs_rewards, given)]
    elif holds_episodes(source):
        raws = [read_episodes(source, needs_rewards)]
    elif holds_arrays(source):
        raws = [read_arrays(source, needs_rewards=needs_rewards)]
    else:
        config = local_config(source)
        given = given or config.spaces
        reading = _Reading(config, env_id, env_kwargs, spaces, needs_rewards, given)
        raws = reading.parts()
    if spaces is None and env_id is not None:
        spaces = env_spaces(env_id, env_kwargs)
    opened = [
        prepared(raw, spaces, given) if isinstance(raw, RawTransitions) else raw for raw in raws
    ]
    heads = [raw.head() if isinstance(raw, Packed) else raw for raw in opened]
    note = None
    if spaces is None:
        spaces, note = spaces_without_environment(heads, given, widen_constants)
    datasets = []
    for raw in opened:
        if isinstance(raw, Packed):
            if needs_rewards:
                raw.dataset.require_rewards()
            datasets.append(_for_environment(raw.fitted(spaces), env_id))
        else:
            check_masks(raw, spaces)
            datasets.append(_for_environment(build_dataset(raw, spaces), env_id))
    dataset = datasets[0] if config is None else _combine(config, datasets)
    if note is not None:
        dataset = replace(dataset, notes=(*dataset.notes, note))
    if config is None:
        return dataset
    return apply_reward_processing(chosen_episodes(dataset, config), config.rewards)


def pack_source(
    source: DatasetConfig | Mapping[str, Any] | str | Path,
    target: str | Path,
    *,
    env_id: str | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> Packed:
    """Pack a file, a table or a Minari data set into the folder `target`, read in pieces."""
    config = local_config(source)
    if config.kind not in STREAMED:
        raise DataError(
            f"data of kind '{config.kind or 'mix'}' cannot be packed; give a file that ends in "
            ".npz, "
            ".h5, .hdf5, .parquet or .csv, or minari:ID"
        )
    spaces = None if env_id is None else env_spaces(env_id, None)
    shown = PackingProgress(source_rows(config), shown=progress)
    try:
        return pack(
            pieces_of(config, False, config.spaces),
            target,
            spaces=spaces,
            given=config.spaces,
            sources=tuple(source_file(file) for file in existing_files(config)),
            overwrite=overwrite,
            on_rows=shown,
        )
    finally:
        shown.stop()


def holds_frame(source: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether `source` is a mapping of configuration keys with a data frame in place of a
    file."""
    return isinstance(source, Mapping) and is_frame(source.get("frame"))


FRAME: Mapping[str, Any] = {"kind": "parquet", "path": "data frame"}
"""What a configuration says of a data frame, which has no file."""
READING = ("layout", "columns", "episode", "order", "categories", "dones", "group")
"""Keys of a data section that say how a table is read."""


def frame_config(source: Mapping[str, Any]) -> DatasetConfig:
    """The configuration that stands beside a data frame."""
    keys = {key: value for key, value in source.items() if key != "frame"}
    return DatasetConfig.parse({**FRAME, **keys}, prefix="dataset.")


def in_memory(source: object) -> bool:
    """Whether `source` is data rather than a path or a name."""
    known = (holds_frame, is_frame, holds_episodes, holds_arrays)
    return isinstance(source, TransitionDataset) or any(holds(source) for holds in known)


def parse_source(source: DatasetConfig | Mapping[str, Any] | str | Path) -> DatasetConfig:
    """The configuration that a short form such as "pendulum-mixed" or "data.npz" stands for, or
    that a section or its keys are."""
    if isinstance(source, DatasetConfig):
        return source
    if isinstance(source, Mapping):
        return DatasetConfig.parse(source, prefix="dataset.")
    if isinstance(source, (str, Path)):
        return DatasetConfig.parse(short_form(str(source)), prefix="dataset.")
    raise DataError(
        f"a data set cannot be made from {type(source).__name__}; give a DatasetConfig, a "
        "mapping of its keys, a mapping of arrays, a list of episodes, a data frame, a "
        "TransitionDataset, a name or a path"
    )


def local_config(source: DatasetConfig | Mapping[str, Any] | str | Path) -> DatasetConfig:
    """The configuration of a source, with copies in place of data in object storage."""

    def local(part: Any) -> Any:
        if part.path is None or url_of(part.path) is None:
            return part
        return part.model_copy(update={"path": local_data(part.path)})

    config: DatasetConfig = local(parse_source(source))
    if config.mix is None:
        return config
    return config.model_copy(update={"mix": tuple(local(part) for part in config.mix)})


def holds_arrays(source: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether `source` is a mapping of arrays rather than of configuration keys."""
    if not isinstance(source, Mapping):
        return False
    if any(key in source for key in ("observations", *ALIASES["observations"])):
        return True
    # the key of the observations may be misspelt
    return any(getattr(value, "shape", ()) for value in source.values())


def _parts(config: DatasetConfig) -> tuple[DataSource, ...]:
    return (config,) if config.mix is None else config.mix


@dataclass(frozen=True)
class _Reading:
    """The properties of a task that are known while its sources are read."""

    config: DatasetConfig
    env_id: str | None
    env_kwargs: Mapping[str, Any] | None
    spaces: Spaces | None
    needs_rewards: bool
    given: SpacesConfig | None

    def parts(self) -> list[RawTransitions | Packed]:
        config = self.config
        if config.mix is not None and config.max_episodes is not None:
            raise ConfigError(
                "dataset.max_episodes: belongs to the parts of a mix; write it inside 'mix', "
                "in each part that should be shortened"
            )
        # Checked before the slow part: a wrong name must not cost the making of other parts.
        for part in _parts(config):
            if part.kind == "scripted":
                recipe_for(str(part.name), self.env_id)
        return [self._part(part) for part in _parts(config)]

    def _part(self, part: DataSource) -> RawTransitions | Packed:
        if part.kind == "packed":
            return open_packed(str(part.path))
        if part.kind in STREAMED and to_be_packed(self.config.home, source_bytes(part), free()):
            return self._packed(part)
        if part.kind in TABLE_KINDS:
            return read_table(part, self.needs_rewards, self.given)
        if part.kind == "scripted":
            return _read_scripted(str(part.name), part.seed, self.env_id, self.env_kwargs)
        if part.kind == "random":
            return _read_random(part, self.env_id, self.env_kwargs)
        if part.kind == "minari":
            return read_minari(str(part.id))
        read = read_npz if part.kind == "npz" else read_hdf5
        rewarded = self.needs_rewards
        return read(str(part.path), needs_rewards=rewarded, group=part.group, dones=part.dones)

    def _packed(self, part: DataSource) -> Packed:
        spaces = self.spaces
        if spaces is None and self.env_id is not None:
            spaces = env_spaces(self.env_id, self.env_kwargs)
        progress = PackingProgress(source_rows(part))
        try:
            packed, made = packed_copy(part, self.needs_rewards, self.given, spaces, progress)
        finally:
            progress.stop()
        how = "was packed into" if made else "is read from its packed copy in"
        note = f"the source {how} '{packed.folder}'"
        return replace(packed, dataset=replace(packed.dataset, notes=(*packed.dataset.notes, note)))


def free() -> MemoryHome:
    """The host's memory as a home of data."""
    return MemoryHome(host_memory(), "cpu")


def _combine(config: DatasetConfig, datasets: list[TransitionDataset]) -> TransitionDataset:
    kept = [
        dataset if part.max_episodes is None else dataset.take_episodes(part.max_episodes)
        for part, dataset in zip(_parts(config), datasets, strict=True)
    ]
    if config.mix is None:
        return kept[0]
    return TransitionDataset.concatenate(kept, [part.weight for part in config.mix])


def _read_scripted(
    name: str, seed: int, env_id: str | None, env_kwargs: Mapping[str, Any] | None
) -> RawTransitions:
    recipe = recipe_for(name, env_id)
    return RawTransitions(
        label=f"scripted data set '{name}'",
        name=name,
        arrays=scripted_arrays(name, seed),
        notes=("made in the environment without env_kwargs",) if env_kwargs else (),
        spaces=env_spaces(recipe.env_id),
        env_id=recipe.env_id,
    )


def _read_random(
    part: DataSource, env_id: str | None, env_kwargs: Mapping[str, Any] | None
) -> RawTransitions:
    if env_id is None:
        raise DataError(
            "dataset.kind: random data need an environment to act in; give env_id, "
            "e.g. env_id: Pendulum-v1"
        )
    env = make_env(env_id, env_kwargs)
    try:
        spaces = spaces_of(env, env_id)
        arrays = roll_out(
            env,
            uniform_controller(spaces),
            seed=part.seed,
            steps=part.steps or DEFAULT_RANDOM_STEPS,
        )
    finally:
        close_env(env)
    return RawTransitions(
        label=f"random data in '{env_id}'",
        name=f"random:{env_id}",
        arrays=arrays,
        spaces=spaces,
        env_id=env_id,
    )


def _for_environment(dataset: TransitionDataset, env_id: str | None) -> TransitionDataset:
    """Record the task; data that say they come from elsewhere fit its spaces, and get a note."""
    if env_id is None or env_id == dataset.env_id:
        return dataset
    notes = dataset.notes
    if dataset.env_id is not None:
        notes = (*notes, f"made in {dataset.env_id}, used for {env_id}")
    return replace(dataset, env_id=env_id, notes=notes)


def _refitted(dataset: TransitionDataset, spaces: Spaces | None) -> TransitionDataset:
    """The data set itself, carrying `spaces` after a check where those are not its own."""
    if spaces is None or spaces == dataset.spaces:
        return dataset
    arrays = dataset.in_memory().known_arrays()
    raw = RawTransitions(label=dataset.name, name=dataset.name, arrays=arrays)
    build_dataset(raw, spaces)
    return replace(dataset, spaces=spaces)
