"""Families of algorithms: how a run learns, and which keys of its configuration that reads."""

from __future__ import annotations

from dataclasses import dataclass

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError, did_you_mean

UPDATE_BUDGETS = ("total_updates", "total_epochs")
ENVIRONMENT_KEYS = ("total_timesteps", "num_envs", "vectorization", "train_env_kwargs")


@dataclass(frozen=True)
class Family:
    """One way to learn; `runtime.build` has the loop of each."""

    name: str
    how: str
    """How its algorithms learn, as the end of a sentence about one of them."""
    unread: tuple[str, ...]
    """Keys of the configuration that mean nothing to it."""
    reads_data: bool
    needs_env: bool = True

    def check_environment(self, name: str, config: TrainConfig) -> None:
        """Refuse keys of algorithm `name` that mean nothing without an environment, or with it."""
        split = None if config.dataset is None else config.dataset.split
        if split is not None and self.needs_env:
            raise ConfigError(
                f"dataset.split: {name} {self.how}; episodes are held out only where data alone "
                "are learned from, so remove this key"
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
        if config.env_id is not None:
            if config.dataset is not None and config.dataset.spaces is not None:
                raise ConfigError(
                    "dataset.spaces: the environment says what the policy sees and does; remove "
                    "this key, or env_id to learn from data alone"
                )
            return
        if self.needs_env:
            raise ConfigError(
                f"env_id: {name} {self.how}; give the id of an environment, such as Pendulum-v1"
            )
        if config.env_kwargs:
            raise ConfigError(
                "env_kwargs: there is no environment to make with them; give env_id, or remove "
                "this key"
            )
        if config.dataset is not None and config.dataset.kind == "random":
            raise ConfigError(
                "dataset.kind: random data are made in an environment; give env_id, such as "
                "Pendulum-v1"
            )


_ALL = (
    Family(
        "offline",
        "learns from data alone, without an environment",
        ENVIRONMENT_KEYS,
        reads_data=True,
        needs_env=False,
    ),
    Family(
        "model_based_offline",
        "learns from data alone, without an environment",
        ENVIRONMENT_KEYS,
        True,
        False,
    ),
    Family(
        "offline_to_online",
        "learns from data and in the environment, by total_timesteps and "
        "algo_kwargs.offline_pretrain_updates",
        UPDATE_BUDGETS,
        True,
    ),
    Family(
        "imitation",
        "learns from demonstrations in the environment, by total_timesteps",
        UPDATE_BUDGETS,
        True,
    ),
    *(
        Family(
            name,
            "learns in the environment, by total_timesteps",
            ("dataset", *UPDATE_BUDGETS),
            False,
        )
        for name in ("off_policy", "on_policy", "model_based", "world_model")
    ),
)
FAMILIES = {family.name: family for family in _ALL}


def family(name: str) -> Family:
    """The family of that name."""
    if name not in FAMILIES:
        raise ConfigError(
            f"algo: its loop '{name}' is not known{did_you_mean(name, FAMILIES)}; known are "
            f"{', '.join(FAMILIES)}"
        )
    return FAMILIES[name]
