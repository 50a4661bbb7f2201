"""The configuration of a run: the keys of a YAML file, checked before anything starts.

Every section is immutable and refuses unknown keys. A field's docstring is its only
comment; `rl-training show` prints it next to the value.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from rl_training.experiment.config_errors import readable_errors
from rl_training.experiment.config_files import apply_overrides, read_config_values
from rl_training.experiment.data_config import (
    SOURCE_KEY,
    TABLE_KINDS,
    ActionSpace,
    Columns,
    DatasetConfig,
    DataSource,
    KeepConfig,
    LayoutPart,
    MixPart,
    ReturnsConfig,
    RewardProcessing,
    SpacesConfig,
    SplitConfig,
    TableColumns,
)
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.registry import algorithm_class
from rl_training.experiment.renames import with_current_names, with_current_path
from rl_training.experiment.run_sections import (
    EVAL_METRICS,
    LOGGERS,
    OFFLINE_METRICS,
    RETURN_METRICS,
    Better,
    EarlyStoppingConfig,
    LoggerConfig,
    Schedule,
    WrapperConfig,
    folder_name,
    known_metric,
    parsed_wrappers,
    with_wrappers,
)
from rl_training.experiment.section import (
    LARGEST,
    Bounds,
    Count,
    Finite,
    Fraction,
    HiddenSizes,
    NonNegative,
    NonNegativeInt,
    Positive,
    Rate,
    Section,
    Text,
    Whole,
    whole_number,
)

__all__ = [
    "CHANGEABLE_ON_RESUME",
    "EVAL_METRICS",
    "LARGEST",
    "LOGGERS",
    "OFFLINE_METRICS",
    "RETURN_METRICS",
    "SOURCE_KEY",
    "TABLE_KINDS",
    "ActionSpace",
    "Better",
    "Bounds",
    "Columns",
    "Count",
    "DataSource",
    "DatasetConfig",
    "EarlyStoppingConfig",
    "Finite",
    "Fraction",
    "HiddenSizes",
    "KeepConfig",
    "LayoutPart",
    "LoggerConfig",
    "MixPart",
    "NonNegative",
    "NonNegativeInt",
    "Positive",
    "Rate",
    "ReturnsConfig",
    "RewardProcessing",
    "Schedule",
    "Section",
    "SpacesConfig",
    "SplitConfig",
    "TableColumns",
    "Text",
    "TrainConfig",
    "Whole",
    "WrapperConfig",
    "known_metric",
    "load_config",
    "parsed_wrappers",
    "whole_number",
    "with_wrappers",
]


class TrainConfig(Section):
    """The complete configuration of one run, which alone reproduces it."""

    algo: str
    """Algorithm, as `rl-training list` names it."""
    env_id: str | None = None
    """Gymnasium environment of the policy; learning from data alone needs none."""
    env_kwargs: dict[str, Any] = {}
    """Keyword arguments for gymnasium.make."""
    wrappers: Annotated[tuple[WrapperConfig, ...], Field(strict=False)] = ()
    """Wrappers of every environment, the first innermost: package.module:Class, or with options."""
    train_env_kwargs: dict[str, Any] = {}
    """Keyword arguments of the training environments only; they override env_kwargs (online)."""
    seed: NonNegativeInt = 0
    """Seed of everything random in the run."""
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1, strict=False)] | None = None
    """Seeds of several agents trained at once, each as with `seed` (offline, or in worlds)."""
    device: Text = "auto"
    """auto, cpu, cuda or cuda:N; auto uses a GPU if there is one."""
    engine: Literal["auto", "eager", "compile", "graph", "compiled_graph"] = "auto"
    """How updates are executed; auto uses CUDA graphs if possible and compiles long runs."""
    tf32: bool = False
    """Let a GPU round the inputs of matrix products to TF32: faster, less precise."""
    products: Literal["library", "tiled"] = "library"
    """Batched products of compiled updates on a GPU: PyTorch's, or tiles on its tensor cores."""
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
    num_envs: Annotated[Count, Field(le=1_000_000)] = 1
    """Environments that are stepped together (online)."""
    vectorization: Literal["sync", "async"] = "sync"
    """sync: in this process, for fast environments; async: one process each (online)."""
    env_workers: Annotated[Whole, Field(ge=0, le=1024)] = 0
    """Processes that share the environments, at most one each; 0: see vectorization (online)."""
    overlap_updates: bool = False
    """Update while the environments make the next step, whose actions were chosen before."""
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
    report: bool = False
    """Write report.html into the run folder, at evaluations and at the end."""
    output_dir: Text = "runs"
    """Folder in which the run folder is made."""
    run_name: Annotated[Text, AfterValidator(folder_name)] | None = None
    """Name of the run folder; by default made of algorithm, task, seed and time."""
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
        """Read the values of a run or checkpoint; older names are accepted without a warning, and
        a knob that there was not at its time has the value that stands for what the run did."""
        algorithm, knobs = _named_algorithm(values.get("algo")), values.get("algo_kwargs")
        if algorithm is not None and isinstance(knobs, Mapping):
            current = with_current_names(algorithm.Params, knobs, "algo_kwargs.", warn=False)
            values = {**values, "algo_kwargs": {**algorithm.Params.before_stored, **current}}
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
    def task_kwargs(self) -> dict[str, Any]:
        """All that makes the task's environments of its id: arguments and wrappers."""
        return with_wrappers(self.env_kwargs, self.wrappers)

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
        free = CHANGEABLE_ON_RESUME | {"run_name"}
        fixed = {k: v for k, v in self.to_dict().items() if k not in free}
        (fixed.get("dataset") or {}).pop("home", None)
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
        "report",
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
