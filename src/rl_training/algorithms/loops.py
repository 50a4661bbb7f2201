"""Loops: how runs learn. One object per loop says what it is, needs and reads.

The loops themselves are in `runtime.loops`; a `LoopFamily` names the function that builds one, so
that a configuration can be checked without loading them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from typing_extensions import get_protocol_members

from rl_training.algorithms import roles
from rl_training.algorithms.params import DiscountedParams, OfflineToOnlineParams, without_knob
from rl_training.envs.device.register import device_task
from rl_training.envs.reference_scores import reference_of
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError, did_you_mean
from rl_training.replay.batch import Batch
from rl_training.replay.imitation import ImitationBatch
from rl_training.replay.rollout import RolloutBatch
from rl_training.replay.sequences import SequenceBatch

if TYPE_CHECKING:
    from rl_training.algorithms.base import Algorithm

UPDATE_BUDGETS = ("total_updates", "total_epochs")
ENVIRONMENT_KEYS = (
    "total_timesteps",
    "num_envs",
    "vectorization",
    "env_workers",
    "overlap_updates",
    "train_env_kwargs",
)


@dataclass(frozen=True)
class LoopFamily:
    """A loop with everything that the rest of the package needs to use it."""

    name: str
    build: str | Callable[..., Any]
    """(config, algorithm, dataset or None) to the `runtime.loops.Loop`; a function, or where it
    is: "package.module:function"."""
    batch: type
    """The type of batches that it passes to `Algorithm.update`."""
    role: type
    """Protocol that algorithms have to fit."""
    knobs: type
    """Protocol that their knobs have to fit."""
    how: str
    """How its algorithms learn, as the end of a sentence about one of them."""
    unread: tuple[str, ...] = ()
    """Keys of the configuration that mean nothing to it: they are refused."""
    needs_data: bool = False
    """Whether it learns from a data set, or can."""
    needs_env: bool = True
    """Whether it learns in the environment; otherwise that serves evaluations alone."""
    many_seeds: str | Callable[..., Any] | None = None
    """What builds the clock of several seeds that are trained at once, from a configuration, an
    algorithm per seed and data, or where it is; None if one run trains one seed."""
    overlaps: bool = False
    """Whether it can update while the environments make a step."""
    online_knobs: tuple[str, ...] = ()
    """Knobs that it reads and an offline loop of the same algorithm does not."""
    check: Callable[[Any], None] | None = None
    """A last look at the algorithm's typed knobs, for what depends on the loop."""

    def check_environment(self, name: str, config: TrainConfig) -> None:
        """Refuse keys of algorithm `name` that mean nothing without an environment, or with it."""
        split = None if config.dataset is None else config.dataset.split
        if split is not None and self.needs_env:
            raise ConfigError(
                f"dataset.split: {name} {self.how}; episodes are held out only when learning "
                "from data alone, so remove this key"
            )
        for key, metric in config.named_metrics.items():
            if metric.startswith("offline/") and split is None:
                raise ConfigError(
                    f"{key}: {metric} is measured on held-out episodes, and there are none; set "
                    "dataset.split.holdout=0.2"
                )
            if metric.startswith("eval/") and config.env_id is None:
                raise ConfigError(
                    f"{key}: {metric} is measured in an environment, and there is none; name a "
                    "metric of held-out episodes, such as offline/td_error, or give env_id"
                )
            if metric == "eval/normalized_mean" and (
                reference_of(config.environment, config.task_kwargs) is None
            ):
                raise ConfigError(
                    f"{key}: no scores are published for '{config.env_id}' as it is configured, so "
                    "that nothing can be normalised; name eval/return_mean"
                )
        if config.env_id is not None:
            if config.dataset is not None and config.dataset.spaces is not None:
                raise ConfigError(
                    "dataset.spaces: the environment defines the spaces; remove this "
                    "key, or remove env_id to learn from data alone"
                )
            return
        if self.needs_env:
            raise ConfigError(
                f"env_id: {name} {self.how}; give the id of an environment, such as Pendulum-v1"
            )
        for key in ("env_kwargs", "wrappers"):
            if getattr(config, key):
                raise ConfigError(
                    f"{key}: there is no environment to make with them; give env_id, or remove "
                    "this key"
                )
        if config.dataset is not None and config.dataset.kind == "random":
            raise ConfigError(
                "dataset.kind: random data are made in an environment; give env_id, such as "
                "Pendulum-v1"
            )

    def builder(self, package: str) -> Callable[..., Any]:
        """The function that builds the loop; relative names are those of `package`."""
        return _found(self.build, package)

    def seeds_builder(self, package: str) -> Callable[..., Any]:
        """The function that builds the clock of several seeds."""
        assert self.many_seeds is not None
        return _found(self.many_seeds, package)

    def refuse_seeds(self, name: str, config: TrainConfig) -> None:
        """Refuse several seeds of algorithm `name` where one run trains one."""
        if config.seeds is None:
            return
        if self.many_seeds is None:
            raise ConfigError(
                f"seeds: {name} trains one seed per run; only offline algorithms without a model, "
                "and those with a replay or rollouts in worlds on the device, train several at "
                "once, so remove this key"
            )
        if self.needs_env and device_task(config.env_id) is None:
            raise ConfigError(
                f"seeds: {name} trains several seeds at once only in worlds on the device, such as "
                f"env_id=torch/CartPole-v1 or env_id=warp/Hopper-v5, and '{config.env_id}' is "
                "stepped on the CPU; remove this key, or sweep the seeds: rl-training sweep"
            )

    def refuse_unfit(self, algorithm: type[Algorithm] | Algorithm) -> None:
        """Refuse an algorithm that does not fit the loop: a class by the methods and the knobs
        that it lacks, an object by everything that it lacks."""
        cls = algorithm if isinstance(algorithm, type) else type(algorithm)
        where = f"algo: {cls.name()} asks for the loop '{self.name}'"
        members = sorted(get_protocol_members(self.role))
        if isinstance(algorithm, type):
            members = [name for name in members if _is_defined(self.role, name)]
        lacking = [name for name in members if not hasattr(algorithm, name)]
        if lacking:
            raise ConfigError(
                f"{where}, but it has no {', '.join(lacking)}; add what algorithms/roles.py "
                f"describes in {self.role.__name__}, or choose another loop"
            )
        fields = cls.Params.model_fields
        unknown = sorted(
            name
            for name in get_protocol_members(self.knobs)
            if name not in fields and not hasattr(cls.Params, name)
        )
        if unknown:
            raise ConfigError(
                f"{where}, but its Params have no {', '.join(unknown)}; derive them from a class "
                "of algorithms/params.py that has, add them, or choose another loop"
            )
        learns_from = batch_of(cls)
        if learns_from is not None and not issubclass(self.batch, learns_from):
            raise ConfigError(
                f"{where}, which gives batches of {self.batch.__name__}, but its update takes "
                f"{learns_from.__name__}; choose another loop"
            )


def _is_defined(role: type, name: str) -> bool:
    """Whether a role has a method or property of that name, not an attribute alone."""
    return inspect.getattr_static(role, name, None) is not None


def batch_of(algorithm: type[Algorithm]) -> type | None:
    """The batch that a class declares, as in `Algorithm[MyParams, Batch]`; None where it does
    not."""
    for cls in algorithm.__mro__:
        for base in vars(cls).get("__orig_bases__", ()):
            arguments = get_args(base)
            if len(arguments) == 2 and isinstance(arguments[1], type):
                return arguments[1]
    return None


_IN_ENVIRONMENT = "learns in the environment, by total_timesteps"
_FROM_DATA = "learns from data alone, without an environment"

LOOPS = {
    loop.name: loop
    for loop in (
        LoopFamily(
            "offline",
            ".offline:build",
            Batch,
            roles.Role,
            roles.BatchKnobs,
            how=_FROM_DATA,
            unread=ENVIRONMENT_KEYS,
            needs_data=True,
            needs_env=False,
            many_seeds=".offline:build_seeds",
        ),
        LoopFamily(
            "model_based_offline",
            ".model_based:build_offline",
            Batch,
            roles.ModelLearner,
            roles.OfflineModelKnobs,
            how=_FROM_DATA,
            unread=ENVIRONMENT_KEYS,
            needs_data=True,
            needs_env=False,
        ),
        LoopFamily(
            "offline_to_online",
            ".offline_to_online:build",
            Batch,
            roles.Role,
            roles.PriorDataKnobs,
            how="learns from data and in the environment, by total_timesteps and "
            "algo_kwargs.offline_pretrain_updates",
            unread=UPDATE_BUDGETS,
            needs_data=True,
            online_knobs=tuple(
                sorted(
                    OfflineToOnlineParams.model_fields.keys() - DiscountedParams.model_fields.keys()
                )
            ),
            check=lambda params: params.refuse_missing_part(),
        ),
        LoopFamily(
            "imitation",
            ".imitation:build",
            ImitationBatch,
            roles.Imitator,
            roles.ImitationKnobs,
            how="learns from demonstrations in the environment, by total_timesteps",
            unread=UPDATE_BUDGETS,
            needs_data=True,
        ),
        LoopFamily(
            "off_policy",
            ".off_policy:build",
            Batch,
            roles.Role,
            roles.ReplayKnobs,
            how=_IN_ENVIRONMENT,
            overlaps=True,
            unread=("dataset", *UPDATE_BUDGETS),
            many_seeds=".off_policy_seeds:build",
        ),
        LoopFamily(
            "on_policy",
            ".on_policy:build",
            RolloutBatch,
            roles.RolloutLearner,
            roles.RolloutKnobs,
            how=_IN_ENVIRONMENT,
            unread=("dataset", *UPDATE_BUDGETS),
            many_seeds=".on_policy_seeds:build",
        ),
        LoopFamily(
            "model_based",
            ".model_based:build",
            Batch,
            roles.ModelLearner,
            roles.OnlineModelKnobs,
            how=_IN_ENVIRONMENT,
            unread=("dataset", *UPDATE_BUDGETS),
        ),
        LoopFamily(
            "world_model",
            ".world_model:build",
            SequenceBatch,
            roles.SequenceLearner,
            roles.SequenceKnobs,
            how=_IN_ENVIRONMENT,
            unread=("dataset", *UPDATE_BUDGETS),
        ),
    )
}
"""Every loop by its name."""


def _found(target: str | Callable[..., Any], package: str) -> Callable[..., Any]:
    if not isinstance(target, str):
        return target
    module, _, function = target.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module, package), function)
    return found


def register_loop(loop: LoopFamily) -> None:
    """Make a third party's loop known: algorithms ask for it with `loop = "its name"`."""
    if loop.name in LOOPS and LOOPS[loop.name] != loop:
        raise ConfigError(
            f"register_loop: a loop '{loop.name}' is registered already; choose another name"
        )
    where = loop.build if isinstance(loop.build, str) else "a:function"
    if where.startswith(".") or not all(where.partition(":")):
        raise ConfigError(
            f"register_loop: build '{loop.build}' must have the form 'package.module:function'"
        )
    unknown = set(loop.unread) - set(TrainConfig.model_fields)
    if unknown:
        raise ConfigError(
            f"register_loop: unread names '{min(unknown)}', which is not a key of a configuration; "
            "remove it"
        )
    LOOPS[loop.name] = loop


def loop_family(name: str) -> LoopFamily:
    """The loop of that name."""
    if name not in LOOPS:
        raise ConfigError(
            f"algo: its loop '{name}' is not known{did_you_mean(name, LOOPS)}; known are "
            f"{', '.join(LOOPS)}"
        )
    return LOOPS[name]


def check_keys(algorithm: type[Algorithm], config: TrainConfig) -> None:
    """Refuse an algorithm that does not fit its loop, and keys that the loop would not read."""
    for name in algorithm.loops():
        loop_family(name).refuse_unfit(algorithm)
    chosen, online = loop_family(algorithm.loop_of(config)), algorithm.online_loop
    unread, instead = set(chosen.unread), ""
    if online is not None:
        instead = _other_budget(config)
        if not instead:  # not decided before `learn`: what either reads may stand
            unread &= set(loop_family(online).unread)
    elif algorithm.offline_loop is not None:
        instead = (
            ", or give a dataset to learn from data"
            if config.dataset is None
            else ", or remove dataset to learn in the environment"
        )
    for key, field in TrainConfig.model_fields.items():
        if key in unread and getattr(config, key) != field.default:
            null = f" ({key}=null)" if instead and field.default is None else ""
            raise ConfigError(
                f"{key}: {algorithm.name()} {chosen.how}; remove this key{null}{instead}"
            )
    if config.overlap_updates and not chosen.overlaps:
        alone = "only the updates of DQN, SAC and their like can run beside a step"
        raise ConfigError(
            f"overlap_updates: {algorithm.name()} {chosen.how}, and {alone}; set it to false"
        )
    chosen.check_environment(algorithm.name(), config)
    chosen.refuse_seeds(algorithm.name(), config)
    params = config.params
    if chosen.check is not None:
        chosen.check(params)
    if online is not None and chosen.name != online and instead:
        for name in loop_family(online).online_knobs:
            if getattr(params, name) != algorithm.Params.model_fields[name].default:
                raise ConfigError(
                    f"algo_kwargs.{name}: {algorithm.name()} reads this key only where it goes on "
                    f"in the environment; {without_knob(algorithm.Params, name)}{instead}"
                )


def _other_budget(config: TrainConfig) -> str:
    """What to set for the other of two ways to learn, where the budget has chosen one."""
    if config.total_timesteps is not None:
        return ", or remove total_timesteps to learn from data alone"
    if config.total_updates is not None or config.total_epochs is not None:
        return ", or give total_timesteps instead of total_updates to go on in the environment"
    return ""
