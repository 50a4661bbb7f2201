"""The section `dataset` of a configuration: where data come from and how they are prepared."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from rl_training.experiment.errors import did_you_mean
from rl_training.experiment.section import (
    Bounds,
    Count,
    Finite,
    NonNegativeInt,
    Positive,
    Rate,
    Section,
    Text,
    Whole,
)


def _each(bound: float | tuple[float, ...]) -> tuple[float, ...]:
    """Bounds per component; a single number applies to all."""
    return bound if isinstance(bound, tuple) else (float(bound),)


class RewardProcessing(Section):
    """Processing of the rewards before anything is computed from them, in this order."""

    return_range: Positive | None = None
    """Multiply by this value / (best - worst episode return); 1000 is usual for IQL."""
    scale: Finite = 1.0
    """Multiply every reward."""
    shift: Finite = 0.0
    """Add to every reward, after scaling."""
    clip: Positive | None = None
    """Clip to [-clip, clip], last."""


class ReturnsConfig(Section):
    """How returns-to-go are computed."""

    at_truncation: Literal["bootstrap", "cut"] = "bootstrap"
    """At a time limit: bootstrap with the value of the final state, or cut the sum there."""


class ActionSpace(Section):
    """The actions of a task without an environment."""

    kind: Literal["box", "discrete", "multi_discrete"]
    """Box: real numbers within bounds; discrete: one of n; multi_discrete: several such choices."""
    n: Count | Annotated[tuple[Count, ...], Field(min_length=1, strict=False)] | None = None
    """Number of actions (kind discrete), or of each part's choices (kind multi_discrete)."""
    start: Whole | Annotated[tuple[Whole, ...], Field(min_length=1, strict=False)] = 0
    """The smallest choice as the data write it, or that of each part (kind multi_discrete)."""
    labels: Annotated[tuple[str, ...], Field(strict=False)] | None = None
    """Names of the choices, where the data have names (kind discrete)."""
    low: Bounds | None = None
    """Smallest action, one number for all components or one for each (kind box)."""
    high: Bounds | None = None
    """Largest action, likewise (kind box)."""
    shape: Annotated[tuple[Count, ...], Field(strict=False)] | None = None
    """Shape of an action, where its components do not lie in one row; [] for a single number."""

    @model_validator(mode="after")
    def _keys_fit_the_kind(self) -> Self:
        if self.kind == "multi_discrete":
            self._check_parts()
            return self
        if self.kind == "discrete":
            if not isinstance(self.n, int) or not isinstance(self.start, int):
                raise ValueError("kind 'discrete' needs the key 'n', the number of choices")
            if self.shape is not None:
                raise ValueError("key 'shape' is for kinds box and multi_discrete")
            if self.labels is not None and len(self.labels) != self.n:
                raise ValueError(f"'labels' names {len(self.labels)} of {self.n} choices")
            if self.low is not None or self.high is not None:
                raise ValueError("keys 'low' and 'high' belong to kind box")
            return self
        if self.n is not None or self.start or self.labels is not None:
            raise ValueError("keys 'n', 'start' and 'labels' belong to kind discrete")
        if self.low is None or self.high is None:
            raise ValueError("kind 'box' needs the keys 'low' and 'high'")
        lows, highs = _each(self.low), _each(self.high)
        if len(lows) != len(highs) and 1 not in (len(lows), len(highs)):
            raise ValueError(f"'low' has {len(lows)} components and 'high' {len(highs)}")
        if not all(low < high for low, high in self.bounds(max(len(lows), len(highs)))):
            raise ValueError("every 'low' must be below its 'high'")
        return self

    def _check_parts(self) -> None:
        if not isinstance(self.n, tuple):
            raise ValueError(
                "kind 'multi_discrete' needs the key 'n', a list of numbers of choices"
            )
        if isinstance(self.start, tuple) and len(self.start) != len(self.n):
            raise ValueError(f"'start' has {len(self.start)} parts and 'n' {len(self.n)}")
        if self.low is not None or self.high is not None or self.labels is not None:
            raise ValueError("keys 'low', 'high' and 'labels' are for other kinds")
        if self.shape is not None and math.prod(self.shape) != len(self.n):
            raise ValueError(
                f"'shape' is of {math.prod(self.shape)} parts and 'n' of {len(self.n)}"
            )

    def parts(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Numbers of choices and the smallest choices of a multi_discrete action."""
        assert isinstance(self.n, tuple)
        starts = self.start if isinstance(self.start, tuple) else (self.start,) * len(self.n)
        return self.n, starts

    def bounds(self, components: int) -> list[tuple[float, float]]:
        """(low, high) of every component; more if more are given."""
        sides = [_each(self.low or 0.0), _each(self.high or 0.0)]
        count = max(components, *(len(side) for side in sides))
        lows, highs = (side * count if len(side) == 1 else side for side in sides)
        return list(zip(lows, highs, strict=False))


class LayoutPart(Section):
    """One part of an observation, such as a column of a table."""

    path: Annotated[tuple[str | int, ...], Field(strict=False)] = ()
    """Names and positions on the way to it."""
    shape: Annotated[tuple[Count, ...], Field(strict=False)] = ()
    """Shape of what lies there; () for a single number or choice."""
    choices: Annotated[tuple[Count, ...], Field(strict=False)] = ()
    """Numbers of choices, where it chooses: each is written one-hot."""
    starts: Annotated[tuple[Whole, ...], Field(strict=False)] = ()
    """The smallest of each choice."""
    labels: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Names of the values of its only choice."""
    embeddings: Annotated[tuple[Count, ...], Field(strict=False)] = ()
    """Widths of the learned vectors for each choice; one-hot without any."""
    pixels: Annotated[tuple[Count, ...], Field(strict=False)] = ()
    """Shape of an image."""


class SpacesConfig(Section):
    """Observation and action spaces without an environment."""

    obs_dim: Count | None = None
    """Numbers in an observation; as wide as the data by default."""
    actions: ActionSpace | None = None
    """The actions; by default the range of the data."""
    action_mask: bool = False
    """Whether observations end with a mask of the actions; data with masks say it themselves."""
    layout: Annotated[tuple[LayoutPart, ...], Field(strict=False)] | None = None
    """What the numbers of an observation are, as a run has found it in a table."""
    choice_embedding: Annotated[Whole, Field(ge=1, le=4_096)] | None = None
    """Width of learned vectors for the choices and categories among observations; else one-hot."""
    image_shape: Annotated[tuple[Count, ...], Field(strict=False, max_length=4)] = ()
    """Shape of observations that are uint8 images; that of the data by default."""
    frame_stack: Count | None = None
    """Frames in an image, its first axis; 1 by default, unless an image has four axes."""

    @model_validator(mode="after")
    def _image_fits(self) -> Self:
        shape, stack = self.image_shape, self.frame_stack or 1
        packed = any(part.pixels for part in self.layout or ())
        if shape and self.obs_dim not in (None, math.prod(shape)):
            raise ValueError(
                f"'image_shape' has {math.prod(shape)} bytes, 'obs_dim' {self.obs_dim}"
            )
        if shape and len(shape) - (stack > 1) not in ((1,) if packed else (2, 3)):
            raise ValueError(
                f"'image_shape' {list(shape)} is not the shape of an image of {stack} frames"
            )
        if shape and stack not in (1, shape[0]):
            raise ValueError(f"'frame_stack' {stack} is not the first axis of 'image_shape'")
        return self


SCRIPTED_TASKS = {
    "pendulum-mixed": "Pendulum-v1",
    "pendulum-expert": "Pendulum-v1",
    "pendulum-random": "Pendulum-v1",
    "sparse-pendulum-clumsy": "rl_training/SparsePendulum-v0",
    "fixed-cartpole-expert": "rl_training/FixedCartPole-v0",
    "fixed-cartpole-left": "rl_training/FixedCartPole-v0",
    "fixed-cartpole-random": "rl_training/FixedCartPole-v0",
    "cartpole-mixed": "CartPole-v1",
    "cartpole-expert": "CartPole-v1",
    "cartpole-random": "CartPole-v1",
}
"""Scripted data sets by name, and where each is made."""
FILE_KINDS: dict[str, Literal["npz", "hdf5", "parquet", "csv"]] = {
    ".npz": "npz",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
}
"""Kinds of files by the endings of their names."""
PACKED_MANIFEST = "manifest.json"
"""A folder with this file holds packed data."""
SOURCE_KEY = {
    "scripted": "name",
    "npz": "path",
    "hdf5": "path",
    "minari": "id",
    "parquet": "path",
    "csv": "path",
    "packed": "path",
}
TABLE_KINDS = ("parquet", "csv")


def short_form(text: str) -> dict[str, Any]:
    """The section that a file, a folder of packed data, "minari:ID", "random" or else the name of
    a scripted data set stands for."""
    if text.startswith("minari:"):
        return {"kind": "minari", "id": text.removeprefix("minari:")}
    if text == "random":
        return {"kind": "random"}
    kind = _kind_of_path(text)
    return {"kind": "scripted", "name": text} if kind is None else {"kind": kind, "path": text}


def is_packed(path: str | Path) -> bool:
    """Whether a path is a folder of packed data."""
    return os.path.isfile(os.path.join(path, PACKED_MANIFEST))  # False of a name too long, too


def _kind_of_path(path: str) -> str | None:
    kind = FILE_KINDS.get(Path(path).suffix.lower())
    return "packed" if kind is None and is_packed(path) else kind


Columns = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    Field(min_length=1, strict=False),
]


class TableColumns(Section):
    """Columns of a table; those with a usual name need not be given."""

    observations: Columns | None = None
    """One column of lists, or the columns that make up an observation."""
    actions: Columns | None = None
    """One column, or the components of a Box or the parts of a MultiDiscrete action."""
    rewards: str | None = None
    """Rewards."""
    next_observations: Columns | None = None
    """As observations; the next row of the episode by default."""
    terminations: str | None = None
    """Column of flags: the task ended."""
    truncations: str | None = None
    """Column of flags: the episode was cut."""
    dones: str | None = None
    """Where an episode ended, without saying how: 'dones' says it."""
    action_mask: Columns | None = None
    """One column of lists, or a column per Discrete action: 1 where it was allowed, 0 where not."""
    next_action_mask: Columns | None = None
    """Likewise after the step; only where an episode was cut and next_observations are given."""

    def chosen(self) -> dict[str, tuple[str, ...]]:
        """The columns that are given."""
        given = {name: value for name, value in self if value is not None}
        return {
            name: (value,) if isinstance(value, str) else value for name, value in given.items()
        }


class DataSource(Section):
    """The source of transitions."""

    kind: (
        Literal["scripted", "random", "npz", "hdf5", "minari", "parquet", "csv", "packed"] | None
    ) = None
    """Kind of source; where it is left out, the name, the id or the ending of the path says it."""
    name: str | None = None
    """Name of a scripted data set (kind scripted)."""
    path: Text | None = None
    """File to read; of a table also a folder or a pattern such as log-*.csv; of packed data."""
    id: str | None = None
    """Minari data set id (kind minari)."""
    steps: Count | None = None
    """Number of random steps to take (kind random; 10000 when left out)."""
    seed: NonNegativeInt = 0
    """Seed of scripted and random data; independent of the run's seed."""
    max_episodes: Count | None = None
    """Keep only the first episodes."""
    group: str | None = None
    """Array or column that says who an episode belongs to, such as a patient; 'groups' if any."""
    dones: Literal["terminated", "truncated"] | None = None
    """What 'dones', or the last row of an episode in a table without flags, means."""
    layout: Literal["rllib", "lerobot"] | None = None
    """Column names of another library (kind parquet or csv)."""
    columns: TableColumns = TableColumns()
    """Column names of your own (kind parquet or csv)."""
    episode: str | None = None
    """Column that says which episode a row belongs to (kind parquet or csv)."""
    order: str | None = None
    """Column by which the rows of an episode are sorted (kind parquet or csv)."""
    categories: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Columns of numbers that are names of something; text is always taken so (tables)."""

    @model_validator(mode="before")
    @classmethod
    def _kind_said_otherwise(cls, values: Any) -> Any:
        """A short form in full, and the kind that another key says."""
        if isinstance(values, str):
            return short_form(values)
        if not isinstance(values, dict) or values.get("kind") is not None:
            return values
        path = values.get("path")
        if path is not None:
            kind = _kind_of_path(str(path))
        else:
            given = (key for key in ("name", "id") if values.get(key) is not None)
            kind = {"name": "scripted", "id": "minari"}.get(next(given, ""))
        return values if kind is None else {**values, "kind": kind}

    @model_validator(mode="after")
    def _keys_fit_the_kind(self) -> Self:
        needed = SOURCE_KEY.get(self.kind or "")
        if needed and getattr(self, needed) is None:
            raise ValueError(f"kind '{self.kind}' needs the key '{needed}'")
        if self.kind == "scripted" and self.name not in SCRIPTED_TASKS:
            raise ValueError(
                f"'{self.name}' is unknown{did_you_mean(str(self.name), SCRIPTED_TASKS)}; expected "
                f"one of {', '.join(SCRIPTED_TASKS)}, 'random', a path ending in "
                f"{', '.join(FILE_KINDS)}, a folder of packed data, or minari:ID"
            )
        for key in ("name", "path", "id"):
            if getattr(self, key) is not None and key != needed:
                fits = " or ".join(kind for kind, k in SOURCE_KEY.items() if k == key)
                if self.kind is None:
                    raise ValueError(
                        f"'{getattr(self, key)}' does not say what it holds; give the key 'kind', "
                        f"one of {fits}"
                    )
                raise ValueError(
                    f"key '{key}' belongs to kind {fits}, not to {self.kind}; set it to null, or "
                    f"give the whole section, such as dataset={{{key}: {getattr(self, key)}}}"
                )
        for key in ("layout", "columns", "episode", "order", "categories"):
            if (
                self.kind not in TABLE_KINDS
                and getattr(self, key) != type(self).model_fields[key].default
            ):
                raise ValueError(f"key '{key}' belongs to kind parquet or csv, not to {self.kind}")
        if self.steps is not None and self.kind != "random":
            raise ValueError(f"key 'steps' belongs to kind random, not to {self.kind}")
        return self


class SplitConfig(Section):
    """Held-out episodes: no update learns from them, and every evaluation measures the policy
    on them."""

    holdout: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """Fraction of the episodes, or of the groups if the data have groups."""
    seed: NonNegativeInt = 0
    """Seed of the choice; independent of the run's seed."""


class KeepConfig(Section):
    """Selects training episodes by their undiscounted return before any processing."""

    top: Rate | None = None
    """Fraction of the episodes, the best ones."""
    return_at_least: Finite | None = None
    """Smallest return."""

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if (self.top is None) == (self.return_at_least is None):
            raise ValueError("give either the key 'top' or the key 'return_at_least'")
        return self


class MixPart(DataSource):
    """One part of a mixture."""

    weight: Positive = 1.0
    """Weight of this part in each batch, relative to the other weights."""

    @model_validator(mode="after")
    def _has_a_kind(self) -> Self:
        if self.kind is None:
            raise ValueError("each part of a mix needs the key 'kind'")
        return self


class DatasetConfig(DataSource):
    """The data set of a run: one source or a weighted mix, and how it is prepared."""

    mix: Annotated[tuple[MixPart, ...], Field(min_length=1, strict=False)] | None = None
    """Several sources instead of one, each with a weight."""
    read_as: DataSource | None = None
    """How tables of such data are read; a run that was given a data frame stores its keys here."""
    spaces: SpacesConfig | None = None
    """Spaces of a task without an environment; a run stores here what it inferred."""
    keep: KeepConfig | None = None
    """Learn from the best episodes only; before the split."""
    split: SplitConfig | None = None
    """Hold out episodes to measure the policy on (offline)."""
    rewards: RewardProcessing = RewardProcessing()
    """Reward processing, before returns are computed."""
    returns: ReturnsConfig = ReturnsConfig()
    """Returns-to-go."""
    normalize_observations: bool = False
    """Standardise observations with the data's statistics, which are stored with the policy."""
    home: Literal["auto", "device", "host", "disk"] = "auto"
    """Where the table of transitions lives; by default the fastest home that has room for it."""

    @model_validator(mode="after")
    def _one_source_or_a_mix(self) -> Self:
        if (self.kind is None) == (self.mix is None):
            raise ValueError("give either the key 'kind' or the key 'mix'")
        return self
