"""The configuration of a run: the keys of a YAML file, checked before anything starts.

Every section is immutable and refuses unknown keys. A field's docstring is its only
comment; `rl-training show` prints it next to the value.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from rl_training.experiment.config_errors import readable_errors
from rl_training.experiment.config_files import apply_overrides, read_config_values
from rl_training.experiment.errors import ConfigError, did_you_mean
from rl_training.experiment.registry import algorithm_class
from rl_training.experiment.renames import Renamed, with_current_names, with_current_path

LARGEST = 3e38
"""The largest float32, because networks compute in float32."""

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Rate = Annotated[float, Field(gt=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0, le=LARGEST, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, le=LARGEST, allow_inf_nan=False)]
Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]


def whole_number(value: Any) -> Any:
    """Convert 1e6 and NumPy integers to int; other values are refused later."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value


def _text(value: Any) -> Any:
    """Convert paths and devices to text; other values are refused later."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    kind = type(value)  # by name, because a config does not import torch
    return str(value) if (kind.__module__, kind.__name__) == ("torch", "device") else value


Whole = Annotated[int, BeforeValidator(whole_number)]
Count = Annotated[Whole, Field(ge=1, le=10**15)]
NonNegativeInt = Annotated[Whole, Field(ge=0)]
Text = Annotated[str, BeforeValidator(_text)]
Bounds = Finite | Annotated[tuple[Finite, ...], Field(min_length=1, strict=False)]
HiddenSizes = Annotated[tuple[Count, ...], Field(min_length=1, strict=False)]


def _each(bound: float | tuple[float, ...]) -> tuple[float, ...]:
    """Bounds per component; a single number applies to all."""
    return bound if isinstance(bound, tuple) else (float(bound),)


class Section(BaseModel):
    """A part of the configuration: immutable, strict about types and keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
        validate_default=True,
    )

    renamed: ClassVar[Mapping[str, Renamed]] = {}
    """Older names of keys, which are still accepted."""

    @model_validator(mode="before")
    @classmethod
    def _current_names(cls, values: Any) -> Any:
        return with_current_names(cls, values) if isinstance(values, dict) else values

    @classmethod
    def parse(cls, values: Mapping[str, Any], prefix: str = "") -> Self:
        """Build from plain values; errors have one line per mistake."""
        try:
            return cls.model_validate(with_current_names(cls, values, prefix))
        except ValidationError as error:
            raise ConfigError("\n".join(readable_errors(error, cls, prefix))) from None


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


SOURCE_KEY = {
    "scripted": "name",
    "npz": "path",
    "hdf5": "path",
    "minari": "id",
    "parquet": "path",
    "csv": "path",
}
TABLE_KINDS = ("parquet", "csv")

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
    """Where the task ended."""
    truncations: str | None = None
    """Where the episode was cut."""
    dones: str | None = None
    """Where an episode ended, without saying how: 'dones' says it."""
    action_mask: Columns | None = None
    """One column of lists, or a column per Discrete action: 1 where it was allowed, 0 where not."""
    next_action_mask: Columns | None = None
    """Likewise after the step; only where an episode was cut and next_observations are given."""

    def chosen(self) -> dict[str, tuple[str, ...]]:
        """Those that are given."""
        given = {name: value for name, value in self if value is not None}
        return {
            name: (value,) if isinstance(value, str) else value for name, value in given.items()
        }


class DataSource(Section):
    """The source of transitions."""

    kind: Literal["scripted", "random", "npz", "hdf5", "minari", "parquet", "csv"] | None = None
    """Kind of source."""
    name: str | None = None
    """Name of a scripted data set (kind scripted)."""
    path: Text | None = None
    """File to read (kind npz or hdf5); of a table also a folder or a pattern such as log-*.csv."""
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

    @model_validator(mode="after")
    def _keys_fit_the_kind(self) -> Self:
        needed = SOURCE_KEY.get(self.kind or "")
        if needed and getattr(self, needed) is None:
            raise ValueError(f"kind '{self.kind}' needs the key '{needed}'")
        for key in ("name", "path", "id"):
            if getattr(self, key) is not None and key != needed:
                fits = " or ".join(kind for kind, k in SOURCE_KEY.items() if k == key)
                raise ValueError(f"key '{key}' belongs to kind {fits}, not to {self.kind}")
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

    @model_validator(mode="after")
    def _one_source_or_a_mix(self) -> Self:
        if (self.kind is None) == (self.mix is None):
            raise ValueError("give either the key 'kind' or the key 'mix'")
        return self


class Schedule(Section):
    """A factor between 0 and 1 as a function of the fraction of the budget spent."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after the warm-up."""
    warmup: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Fraction of the horizon over which the factor rises from 0 to 1."""
    end: Fraction = 0.0
    """Factor at the end of a linear or cosine schedule."""
    over: Count | None = None
    """Horizon in updates (offline) or environment steps (online); the run's budget by default."""
    optimizers: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] | None = None
    """Optimisers that follow the schedule; all by default."""

    @property
    def is_constant(self) -> bool:
        return self.kind == "constant" and self.warmup == 0.0

    def at(self, tick: int, horizon: int) -> float:
        """The factor at `tick`, over the schedule's own horizon or this one."""
        return self(tick / (self.over or horizon))

    def __call__(self, fraction: float) -> float:
        fraction = min(max(fraction, 0.0), 1.0)
        if fraction < self.warmup:
            return fraction / self.warmup
        position = (fraction - self.warmup) / (1.0 - self.warmup)
        if self.kind == "constant":
            return 1.0
        if self.kind == "linear":
            shape = 1.0 - position
        else:
            shape = 0.5 * (1.0 + math.cos(math.pi * position))
        return self.end + (1.0 - self.end) * shape


Better = Literal["max", "min"]

RETURN_METRICS: dict[str, Better] = {
    "eval/return_mean": "max",
    "eval/return_std": "min",
    "eval/return_min": "max",
    "eval/return_max": "max",
    "eval/length_mean": "max",
    "eval/success_rate": "max",
}
"""Metrics of an evaluation in the environment, and whether larger or smaller is better; the
success rate only if the environment reports it."""
OFFLINE_METRICS: dict[str, Better] = {
    "offline/td_error": "min",
    "offline/log_likelihood": "max",
    "offline/action_agreement": "max",
    "offline/action_gap": "max",
    "offline/value_start": "max",
    "offline/data_distance": "min",
}
"""Metrics of an evaluation on held-out episodes, likewise."""
EVAL_METRICS: dict[str, Better] = {**RETURN_METRICS, **OFFLINE_METRICS}


def known_metric(name: str) -> str:
    """Return the name of a metric; refuse a name that no evaluation reports."""
    if name not in EVAL_METRICS:
        raise ValueError(
            f"unknown metric '{name}'{did_you_mean(name, EVAL_METRICS)}; "
            f"known are {', '.join(EVAL_METRICS)}"
        )
    return name


class EarlyStoppingConfig(Section):
    """Stop when an evaluated metric no longer improves, or is good enough."""

    metric: str = "eval/return_mean"
    """The evaluation metric."""
    mode: Better = "max"
    """Whether larger or smaller is better; by default as fits the metric."""
    patience: Count | None = None
    """Evaluations without improvement after which the run stops."""
    min_delta: NonNegative = 0.0
    """Smallest change that counts as an improvement."""
    target: Finite | None = None
    """Stop as soon as the metric is at least (at most, in mode min) this good."""

    @model_validator(mode="before")
    @classmethod
    def _mode_of_the_metric(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(metric := values.get("metric"), str):
            return {"mode": EVAL_METRICS.get(metric, "max"), **values}
        return values

    @model_validator(mode="after")
    def _can_stop(self) -> Self:
        known_metric(self.metric)
        if self.patience is None and self.target is None:
            raise ValueError("give 'patience', 'target' or both")
        return self


LOGGERS = ("tensorboard", "csv", "wandb", "mlflow")


class LoggerConfig(Section):
    """A further place where metrics are written."""

    kind: str
    """tensorboard, csv, wandb, mlflow, or your own class as package.module:Class."""
    options: dict[str, Any] = {}
    """Options of the logger, such as the project of wandb."""

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, values: Any) -> Any:
        return {"kind": values} if isinstance(values, str) else values

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        module, colon, name = self.kind.partition(":")
        own = colon and all(part.isidentifier() for part in (*module.split("."), name))
        if not own and self.kind not in LOGGERS:
            raise ValueError(
                f"unknown logger '{self.kind}'{did_you_mean(self.kind, LOGGERS)}; known are "
                f"{', '.join(LOGGERS)}, and your own class as package.module:Class"
            )
        return self


class TrainConfig(Section):
    """The complete configuration of one run, which alone reproduces it."""

    algo: str
    """Algorithm, as `rl-training list` names it."""
    env_id: str | None = None
    """Gymnasium environment of the policy; learning from data alone needs none."""
    env_kwargs: dict[str, Any] = {}
    """Keyword arguments for gymnasium.make."""
    train_env_kwargs: dict[str, Any] = {}
    """Keyword arguments of the training environments only; they override env_kwargs (online)."""
    seed: NonNegativeInt = 0
    """Seed of everything random in the run."""
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1, strict=False)] | None = None
    """Seeds of several agents trained at once, each as with `seed` (offline)."""
    device: Text = "auto"
    """auto, cpu, cuda or cuda:N; auto uses a GPU if there is one."""
    engine: Literal["auto", "eager", "compile", "graph", "compiled_graph"] = "auto"
    """How updates are executed; auto uses CUDA graphs if possible and compiles long runs."""
    tf32: bool = False
    """Let a GPU round the inputs of matrix products to TF32: faster, less precise."""
    threads: Annotated[Whole, Field(ge=0, le=1024)] = 0
    """CPU threads for tensor operations; 0 chooses by network size."""
    profile: bool = False
    """Report where the time of the run goes, early on and at its end."""
    dataset: DatasetConfig | None = None
    """The data to learn from offline, prior data from offline to online, or demonstrations."""
    init_from: Text | None = None
    """Run or checkpoint folder with the policy to start from."""
    total_updates: Count | None = None
    """Budget in gradient updates (offline)."""
    total_epochs: Count | None = None
    """Budget in passes over the data set, instead of total_updates (offline)."""
    total_timesteps: Count | None = None
    """Budget in environment steps (online)."""
    num_envs: Annotated[Count, Field(le=10_000)] = 1
    """Environments that are stepped together (online)."""
    vectorization: Literal["sync", "async"] = "sync"
    """sync: in this process, for fast environments; async: one process each (online)."""
    eval_interval: NonNegativeInt = 0
    """Updates or environment steps between evaluations; 0 evaluates only at the end."""
    eval_episodes: Annotated[Count, Field(le=1_000_000)] = 10
    """Episodes per evaluation."""
    eval_max_steps: Count = 100_000
    """Steps after which an evaluation truncates an episode, with a note."""
    final_eval: bool = True
    """Evaluate when the run ends."""
    checkpoint_interval: NonNegativeInt = 0
    """Updates or environment steps between checkpoints; 0: only checkpoint_minutes applies."""
    checkpoint_minutes: NonNegative = 10.0
    """Also save after this many minutes; 0 turns that off."""
    keep_last: Count = 2
    """Number of newest checkpoints that are kept."""
    keep_best: bool = True
    """Save and keep the checkpoint with the best evaluation."""
    best_metric: Annotated[str, AfterValidator(known_metric)] | None = None
    """Evaluation metric that selects the best checkpoint; by default that of early_stopping."""
    log_interval: Count = 500
    """Updates or environment steps between two lines of training metrics."""
    lr_schedule: Schedule = Schedule()
    """Learning-rate factor over the run, for every optimiser."""
    early_stopping: EarlyStoppingConfig | None = None
    """Optional early stopping on evaluations."""
    tensorboard: bool = True
    """Write TensorBoard events in addition to metrics.jsonl."""
    loggers: Annotated[tuple[LoggerConfig, ...], Field(strict=False)] = ()
    """Further loggers, by name or with options: csv, wandb, mlflow, package.module:Class."""
    output_dir: Text = "runs"
    """Folder in which the run folder is made."""
    algo_kwargs: dict[str, Any] = {}
    """Knobs of the algorithm."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.early_stopping and self.eval_interval == 0:
            raise ValueError(
                "early_stopping needs evaluations: set eval_interval to 1 or more, "
                "or remove early_stopping"
            )
        for key in ("total_updates", "total_timesteps"):
            budget = getattr(self, key)
            if self.early_stopping and budget is not None and self.eval_interval > budget:
                raise ValueError(
                    f"early_stopping needs evaluations, but eval_interval {self.eval_interval} is "
                    f"larger than {key} {budget}; lower eval_interval"
                )
        if self.seeds is not None and len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: each may occur once, got {list(self.seeds)}")
        kinds = [logger.kind for logger in self.loggers]
        if len(set(kinds)) < len(kinds):
            raise ValueError(f"loggers: each may occur once, got {', '.join(kinds)}")
        if self.total_updates is not None and self.total_epochs is not None:
            raise ValueError(
                "give total_updates or total_epochs, not both; total_updates=null removes one"
            )
        return self

    _params: Any = PrivateAttr(None)

    def __init__(self, /, **values: Any) -> None:
        algorithm, knobs, mistakes = _read_knobs(values.get("algo"), values.get("algo_kwargs", {}))
        if knobs is not None:
            values["algo_kwargs"] = knobs.model_dump(mode="json")
        elif isinstance(values.get("algo_kwargs"), Section):
            values["algo_kwargs"] = {}  # refused already
        try:
            super().__init__(**values)
        except ValidationError as error:
            names = algorithm.Params.model_fields if algorithm else ()
            own = readable_errors(error, type(self), below={"algo_kwargs": tuple(names)})
            mistakes = [*own, *mistakes]
        if mistakes:
            raise ConfigError("\n".join(mistakes)) from None
        self._params = knobs
        algorithm.check_config(self)

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> TrainConfig:
        """Read the values of a run or checkpoint; older names are accepted without a warning."""
        algorithm, knobs = _named_algorithm(values.get("algo")), values.get("algo_kwargs")
        if algorithm is not None and isinstance(knobs, Mapping):
            current = with_current_names(algorithm.Params, knobs, "algo_kwargs.", warn=False)
            values = {**values, "algo_kwargs": current}
        return cls(**values)

    @property
    def named_metrics(self) -> dict[str, str]:
        """Metrics of evaluations that the run depends on, by the key that names each."""
        named = {"best_metric": self.best_metric}
        if self.early_stopping is not None:
            named["early_stopping.metric"] = self.early_stopping.metric
        return {key: metric for key, metric in named.items() if metric is not None}

    @property
    def environment(self) -> str:
        """The environment's id; an error if there is none."""
        if self.env_id is None:
            raise ConfigError(
                "env_id: this run has data alone and no environment; give one, such as "
                "env_id: Pendulum-v1"
            )
        return self.env_id

    @property
    def logs_media(self) -> bool:
        """Whether a logger shows histograms and videos."""
        return self.tensorboard or any(one.kind not in ("csv", "mlflow") for one in self.loggers)

    @property
    def params(self) -> Any:
        """The algorithm's typed knobs; `algo_kwargs` holds them as plain values."""
        return self._params

    def replace(self, **changes: Any) -> TrainConfig:
        """A copy with some keys changed and checked; unchanged knobs are not parsed again."""
        kept = {name: getattr(self, name) for name in type(self).model_fields}
        if changes.get("algo", self.algo) == self.algo:
            kept["algo_kwargs"] = self._params
        return TrainConfig(**{**kept, **changes})

    def settled(self, **values: Any) -> TrainConfig:
        """A copy with keys set by the program itself: typed values, not checked."""
        return self.model_copy(update=values)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, defaults included."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    def hash(self) -> str:
        """Fingerprint of the keys that affect the results."""
        fixed = {k: v for k, v in self.to_dict().items() if k not in CHANGEABLE_ON_RESUME}
        return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]


def _read_knobs(algo: Any, values: Any) -> tuple[Any, Any, list[str]]:
    """The algorithm's class, its typed knobs, and the mistakes in naming or setting them.

    Values of a wrong type are refused by the check of the whole configuration.
    """
    algorithm = None
    try:
        if isinstance(algo, str):
            algorithm = algorithm_class(algo)
            clash = sorted(algorithm.Params.model_fields.keys() & TrainConfig.model_fields.keys())
            if clash:
                raise ConfigError(
                    f"algo: the knob '{clash[0]}' of {algo} has the name of a key of the "
                    "configuration, so that neither could be given alone; rename the knob"
                )
        if algorithm is not None and isinstance(values, Mapping):
            return algorithm, algorithm.Params.parse(values, prefix="algo_kwargs."), []
        if algorithm is not None and isinstance(values, algorithm.Params):
            return algorithm, values, []
        if algorithm is not None and isinstance(values, Section):
            expected, got = algorithm.Params.__name__, type(values).__name__
            raise ConfigError(f"algo_kwargs: {algo} takes {expected}, got {got}; give those knobs")
    except ConfigError as error:
        return algorithm, None, [str(error)]
    return algorithm, None, []


CHANGEABLE_ON_RESUME = frozenset(
    {
        "total_updates",
        "total_epochs",
        "total_timesteps",
        "eval_interval",
        "eval_episodes",
        "eval_max_steps",
        "final_eval",
        "checkpoint_interval",
        "checkpoint_minutes",
        "keep_last",
        "keep_best",
        "log_interval",
        "profile",
        "early_stopping",
        "tensorboard",
        "loggers",
    }
)
"""Keys that may change on resume, because none of them affects what is learned."""


def load_config(source: str | Path, overrides: list[str] | None = None) -> TrainConfig:
    """Load a packaged config or a file with `key=value` overrides, resolved and checked."""
    values, texts = read_config_values(source), overrides or []
    algorithm = _named_algorithm(apply_overrides(values, texts).get("algo"))
    if algorithm is None:
        return TrainConfig(**apply_overrides(values, texts))
    params = algorithm.Params

    def current(path: list[str], value: Any) -> tuple[list[str], Any]:
        if path[0] != "algo_kwargs":
            return path, value
        if len(path) == 1:
            named = isinstance(value, Mapping)
            return path, with_current_names(params, value, "algo_kwargs.") if named else value
        below, value = with_current_path(params, path[1:], value, "algo_kwargs.")
        return ["algo_kwargs", *below], value

    if "algo_kwargs" in values:
        _, values["algo_kwargs"] = current(["algo_kwargs"], values["algo_kwargs"])
    return TrainConfig(**apply_overrides(values, texts, current))


def _named_algorithm(name: Any) -> Any:
    """The class of that name; None if it does not exist, which is refused with the rest."""
    try:
        return algorithm_class(name) if isinstance(name, str) else None
    except ConfigError:
        return None
