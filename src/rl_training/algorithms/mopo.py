"""MOPO: model-based offline policy optimisation.

Yu, Thomas, Yu, Ermon, Zou, Levine, Finn and Ma 2020, arXiv:2005.13239.

Kept: MBPO's ensemble, fitted once to the data; rollouts from states of the data whose reward is
lowered by `penalty_coef` times the largest norm, over all members, of the predicted deviation of
reward and state; soft actor-critic on minibatches of which a small share is real.

Deviates: see `dynamics.py` for the model. The norm is in the task's units, as in the authors' code.
The update is this package's SAC, unchanged.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from rl_training.algorithms.dynamics import ModelParams
from rl_training.algorithms.mbpo import MBPOAlgorithm
from rl_training.algorithms.sac import SoftParams
from rl_training.experiment.config import Count, NonNegative, TrainConfig
from rl_training.experiment.errors import ConfigError


class MOPOParams(SoftParams, ModelParams):
    rollout_batch_size: Count = 50_000
    """Imagined rollouts that are begun at once, in states of the data."""
    rollout_length: Count = 5
    """Steps of a rollout, at the beginning."""
    retain_epochs: Count = 5
    """Epochs for which imagined transitions are kept."""
    rollout_interval: Count = 1_000
    """Updates between two rounds of rollouts."""
    penalty_coef: NonNegative = 1.0
    """Reward that an imagined step loses per unit of the model's predicted deviation."""


def mopo_reward(reward: Tensor, spread: Tensor, *, penalty_coef: float) -> Tensor:
    """r - penalty_coef * max_i ||std_i||, all (B,); eq. 5 with the authors' estimate of errors."""
    assert reward.shape == spread.shape, (reward.shape, spread.shape)
    return reward - penalty_coef * spread


class MOPOAlgorithm(MBPOAlgorithm):
    """Soft actor-critic on what a cautious model of the data imagines."""

    Params: ClassVar[Any] = MOPOParams
    loop: ClassVar[str] = "model_based_offline"
    paper: ClassVar[str] = "Yu et al. 2020"
    summary: ClassVar[str] = "SAC in a model of the data that pays for its uncertainty"
    asks_all_members: ClassVar[bool] = True

    @classmethod
    def check_config(cls, config: TrainConfig) -> None:
        super().check_config(config)
        if "dynamics" in (config.lr_schedule.optimizers or ()):
            raise ConfigError(
                "lr_schedule.optimizers: MOPO fits its model (dynamics) once, before the first "
                "update, so that no schedule reaches it; remove it and set algo_kwargs.model_lr"
            )

    def set_lr_factor(self, factor: float, only: tuple[str, ...] | None = None) -> None:
        """Of all but the model, whose only fit comes where a warm-up is still at 0."""
        followers = set(only or self.optimizers) - {"dynamics"}
        super().set_lr_factor(factor, tuple(followers))

    def imagined_reward(self, reward: Tensor, spread: Tensor | None) -> Tensor:
        assert spread is not None
        return mopo_reward(reward, spread, penalty_coef=self.params.penalty_coef)
