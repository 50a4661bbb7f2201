"""The configuration of a run: what a YAML file may say, checked at the door.

Every section is frozen and refuses unknown keys. A field's docstring is its one
comment; `rl-training show` prints it beside the value.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import Self

from rl_training.experiment.errors import ConfigError, did_you_mean
from rl_training.experiment.registry import algorithm_class

PACKAGED_CONFIGS = Path(__file__).resolve().parent.parent / "assets" / "configs"

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Interval = Annotated[int, Field(ge=0)]
HiddenSizes = Annotated[tuple[Count, ...], Field(min_length=1, strict=False)]


class Section(BaseModel):
    """A part of the configuration: immutable, strict about types and keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
        validate_default=True,
    )

    @classmethod
    def parse(cls, values: Mapping[str, Any], prefix: str = "") -> Self:
        """Build from plain values; one readable line per mistake."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError("\n".join(readable_errors(error, cls, prefix))) from None


class RewardProcessing(Section):
    """What happens to the rewards before anything is computed from them, in this order."""

    return_range: Positive | None = None
    """Multiply by this value over (best - worst episode return); 1000 is the habit of IQL."""
    scale: Finite = 1.0
    """Multiply every reward."""
    shift: Finite = 0.0
    """Add to every reward, after scaling."""
    clip: Positive | None = None
    """Clip to [-clip, clip], last."""


class ReturnsConfig(Section):
    """How returns-to-go are computed."""

    at_truncation: Literal["bootstrap", "cut"] = "bootstrap"
    """At a time limit: add the value of the final state, or sum only to the cut."""


SOURCE_KEY = {"scripted": "name", "npz": "path", "hdf5": "path", "minari": "id"}


class DataSource(Section):
    """Where transitions come from."""

    kind: Literal["scripted", "random", "npz", "hdf5", "minari"] | None = None
    """Kind of source."""
    name: str | None = None
    """Name of a scripted data set (kind scripted)."""
    path: str | None = None
    """File to read (kind npz or hdf5)."""
    id: str | None = None
    """Minari data set id (kind minari)."""
    steps: Count | None = None
    """Number of random steps to take (kind random; 10000 when left out)."""
    seed: Interval = 0
    """Seed with which scripted and random data are made; independent of the run's seed."""
    max_episodes: Count | None = None
    """Keep only the first episodes."""

    @model_validator(mode="after")
    def _keys_fit_the_kind(self) -> Self:
        needed = SOURCE_KEY.get(self.kind or "")
        if needed and getattr(self, needed) is None:
            raise ValueError(f"kind '{self.kind}' needs the key '{needed}'")
        for key in ("name", "path", "id"):
            if getattr(self, key) is not None and key != needed:
                fits = " or ".join(kind for kind, k in SOURCE_KEY.items() if k == key)
                raise ValueError(f"key '{key}' belongs to kind {fits}, not to {self.kind}")
        if self.steps is not None and self.kind != "random":
            raise ValueError(f"key 'steps' belongs to kind random, not to {self.kind}")
        return self


class MixPart(DataSource):
    """One part of a mixture."""

    weight: Positive = 1.0
    """Share of each batch that is drawn from this part, relative to the other weights."""

    @model_validator(mode="after")
    def _has_a_kind(self) -> Self:
        if self.kind is None:
            raise ValueError("each part of a mix needs the key 'kind'")
        return self


class DatasetConfig(DataSource):
    """The data set of a run: one source or a weighted mix, and how it is prepared."""

    mix: Annotated[tuple[MixPart, ...], Field(min_length=1, strict=False)] | None = None
    """Several sources instead of one, each with a weight."""
    rewards: RewardProcessing = RewardProcessing()
    """Reward processing, before returns are computed."""
    returns: ReturnsConfig = ReturnsConfig()
    """Returns-to-go."""
    normalize_observations: bool = False
    """Standardise observations with the data's mean and deviation, which the policy carries."""

    @model_validator(mode="after")
    def _one_source_or_a_mix(self) -> Self:
        if (self.kind is None) == (self.mix is None):
            raise ValueError("give either the key 'kind' or the key 'mix'")
        return self


class Schedule(Section):
    """A factor between 0 and 1 as a function of the share of the budget spent."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after the warm-up."""
    warmup: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of the horizon over which the factor rises from 0 to 1."""
    end: Fraction = 0.0
    """Factor at the end of a linear or cosine schedule."""
    over: Count | None = None
    """Horizon in updates (offline) or environment steps (online); the run's budget by default."""
    optimizers: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] | None = None
    """Optimisers that follow the schedule; all by default."""

    @property
    def is_constant(self) -> bool:
        return self.kind == "constant" and self.warmup == 0.0

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


class EarlyStoppingConfig(Section):
    """Stop when an evaluated metric no longer improves, or is good enough."""

    metric: str = "eval/return_mean"
    """Metric of the evaluation that is watched."""
    mode: Literal["max", "min"] = "max"
    """Whether larger or smaller is better."""
    patience: Count | None = None
    """Evaluations without improvement after which the run stops."""
    min_delta: NonNegative = 0.0
    """Smallest change that counts as an improvement."""
    target: Finite | None = None
    """Stop as soon as the metric is at least (at most, in mode min) this good."""

    @model_validator(mode="after")
    def _can_stop(self) -> Self:
        if self.patience is None and self.target is None:
            raise ValueError("give 'patience', 'target' or both")
        return self


class TrainConfig(Section):
    """One run, whole: this object alone rebuilds it."""

    algo: str
    """Algorithm, as `rl-training list` names it."""
    env_id: str
    """Gymnasium environment the policy is for; evaluation runs in it."""
    env_kwargs: dict[str, Any] = {}
    """Keyword arguments for gymnasium.make."""
    seed: Interval = 0
    """Seed of everything random in the run."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N; auto takes a GPU where there is one."""
    engine: Literal["auto", "eager", "compile"] = "auto"
    """How updates are executed; auto takes the mode measured as fastest for the device."""
    threads: Interval = 0
    """CPU threads for tensor operations; 0 chooses by network size."""
    dataset: DatasetConfig | None = None
    """Data set of the offline lane."""
    total_updates: Count | None = None
    """Budget in gradient updates (offline)."""
    total_epochs: Count | None = None
    """Budget in passes over the data set, instead of total_updates (offline)."""
    eval_interval: Interval = 0
    """Evaluate every so many updates; 0 evaluates only at the end."""
    eval_episodes: Count = 10
    """Episodes per evaluation."""
    final_eval: bool = True
    """Evaluate when the run ends."""
    checkpoint_interval: Interval = 0
    """Save every so many updates; 0 saves only the best and the last."""
    keep_last: Count = 2
    """Newest checkpoints that are kept."""
    keep_best: bool = True
    """Save and keep the checkpoint with the best evaluation."""
    log_interval: Count = 500
    """Write training metrics every so many updates."""
    lr_schedule: Schedule = Schedule()
    """Learning-rate factor over the run, for every optimiser."""
    early_stopping: EarlyStoppingConfig | None = None
    """Optional early stopping on evaluations."""
    tensorboard: bool = True
    """Write TensorBoard events beside metrics.jsonl."""
    output_dir: str = "runs"
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
        if self.total_updates is not None and self.total_epochs is not None:
            raise ValueError("give total_updates or total_epochs, not both")
        return self

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError("\n".join(readable_errors(error, type(self)))) from None
        algorithm = algorithm_class(self.algo)
        resolved = algorithm.Params.parse(self.algo_kwargs, prefix="algo_kwargs.")
        # Frozen for users; the resolved knobs replace the partial ones exactly once, here.
        object.__setattr__(self, "algo_kwargs", resolved.model_dump(mode="json"))
        algorithm.check_config(self)

    @property
    def params(self) -> Any:
        """The algorithm's typed knobs."""
        return algorithm_class(self.algo).Params.parse(self.algo_kwargs, prefix="algo_kwargs.")

    def replace(self, **changes: Any) -> TrainConfig:
        """A copy with some keys changed, checked again."""
        return TrainConfig(**{**self.to_dict(), **changes})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, defaults included."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    def hash(self) -> str:
        """Fingerprint of the keys that decide what is computed."""
        fixed = {k: v for k, v in self.to_dict().items() if k not in CHANGEABLE_ON_RESUME}
        return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]


CHANGEABLE_ON_RESUME = frozenset(
    {
        "total_updates",
        "total_epochs",
        "eval_interval",
        "eval_episodes",
        "final_eval",
        "checkpoint_interval",
        "keep_last",
        "keep_best",
        "log_interval",
        "early_stopping",
        "tensorboard",
    }
)
"""Keys that may differ when a run is resumed: none of them changes what is learned."""


# --- reading ---------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads `3e-4` as a number, as YAML 1.2 and everyone expects."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def parse_yaml(text: str) -> Any:
    """Plain values from YAML text; runs no constructors."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506  (a SafeLoader)


def packaged_config_names() -> list[str]:
    """Names such as `awr/pendulum`."""
    found = PACKAGED_CONFIGS.glob("*/*.yaml")
    return sorted(path.relative_to(PACKAGED_CONFIGS).with_suffix("").as_posix() for path in found)


def read_config_values(source: str | Path) -> dict[str, Any]:
    """The values of a packaged config (by name) or of a YAML file (by path)."""
    path = Path(source)
    packaged = PACKAGED_CONFIGS / f"{source}.yaml"
    if path.is_file():
        chosen = path
    elif str(source) in packaged_config_names():
        chosen = packaged
    else:
        raise ConfigError(
            f"config '{source}' is neither a file nor a packaged config"
            f"{did_you_mean(str(source), packaged_config_names())}; "
            "'rl-training list' shows the packaged ones"
        )
    try:
        values = parse_yaml(chosen.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"config '{chosen}' is not valid YAML{where}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"config '{chosen}' must hold 'key: value' lines, e.g. 'algo: awr'")
    return values


def parse_override(text: str) -> tuple[list[str], Any]:
    """`algo_kwargs.beta=0.5` as a key path and a value read as YAML."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"override '{text}' must have the form key=value")
    try:
        return key.strip().split("."), parse_yaml(value)
    except yaml.YAMLError:
        raise ConfigError(f"override '{text}': the value is not valid YAML") from None


def apply_overrides(values: Mapping[str, Any], overrides: list[str]) -> dict[str, Any]:
    """Copy `values` and set each `key.path=value` in it."""
    result: dict[str, Any] = json.loads(json.dumps(dict(values)))
    for text in overrides:
        path, value = parse_override(text)
        node = result
        for depth, part in enumerate(path[:-1]):
            child = node.get(part)
            if child is None:
                child = node[part] = {}
            if not isinstance(child, dict):
                raise ConfigError(
                    f"override '{text}': '{'.'.join(path[: depth + 1])}' has no keys below it"
                )
            node = child
        node[path[-1]] = value
    return result


def load_config(source: str | Path, overrides: list[str] | None = None) -> TrainConfig:
    """A packaged or own config with `key=value` overrides, resolved and checked."""
    return TrainConfig(**apply_overrides(read_config_values(source), overrides or []))


# --- errors in plain words -------------------------------------------------------------------

_Model = TypeVar("_Model", bound=BaseModel)


def _section_at(model: type[BaseModel], location: tuple[Any, ...]) -> type[BaseModel] | None:
    """The section class that a pydantic error location points into."""
    current: type[BaseModel] | None = model
    for part in location:
        if current is None or part not in current.model_fields:
            continue  # a list index or a union tag
        current = _section_in(current.model_fields[part].annotation)
    return current


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _section_in(argument)
        if found:
            return found
    return None


def readable_errors(
    error: ValidationError, model: type[BaseModel], prefix: str = ""
) -> Iterator[str]:
    """One line per mistake: the key, what is wrong, what was expected."""
    for item in error.errors():
        location = item["loc"]
        key = prefix + ".".join(str(part) for part in location)
        kind, given = item["type"], item.get("input")
        if kind == "extra_forbidden":
            section = _section_at(model, location[:-1])
            known = list(section.model_fields) if section else []
            listed = f"; known keys are {', '.join(known)}" if known else ""
            hint = did_you_mean(str(location[-1]), known)
            yield f"{key}: unknown key{hint}{listed if not hint else ''}"
        elif kind == "missing":
            yield f"{key}: this key is required"
        elif kind == "value_error":
            message = str(item["ctx"]["error"]) if "ctx" in item else item["msg"]
            yield f"{key}: {message}" if key else message
        elif kind in ("model_type", "model_attributes_type"):
            yield f"{key}: expected a section with keys of its own, got {given!r}"
        else:
            message = item["msg"].removeprefix("Input should be ").removeprefix("Value should ")
            yield f"{key}: expected {message}, got {given!r}"
