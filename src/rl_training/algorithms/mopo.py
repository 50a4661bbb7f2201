"""MOPO: model-based offline policy optimisation.

Yu, Thomas, Yu, Ermon, Zou, Levine, Finn and Ma 2020, arXiv:2005.13239.

Kept: MBPO's ensemble, fitted once to the data; rollouts from states of the data, with the reward
reduced by `penalty_coef` times an estimate of the model's error; soft actor-critic on mostly
imagined minibatches. The estimate is the paper's (`learned_std`) or the disagreement of the
members, which the authors' code also offers and which is the default here: it separates actions
outside the data from those in the data, which the learned one hardly does.

Changed: see `dynamics.py` for the model. Norms are in the task's units, as in the authors' code.
The update is this package's SAC, unchanged.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ValidationInfo, field_validator, model_validator
from torch import Tensor

from rl_training.algorithms.dynamics import ModelParams
from rl_training.algorithms.mbpo import MBPOAlgorithm, SoftModelParams
from rl_training.algorithms.params import AveragedPolicyParams
from rl_training.experiment.config import Count, NonNegative, TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.ranges import Choices, Log
from rl_training.models.dynamics import Uncertainty


class MOPOParams(SoftModelParams, AveragedPolicyParams):
    rollout_batch_size: Count = 50_000
    """Imagined rollouts that start together, in states of the data."""
    rollout_length: Annotated[Count, Choices((1, 3, 5, 10))] = 5
    """Steps of a rollout at the start of the run."""
    retain_epochs: Count = 5
    """Epochs for which imagined transitions are kept."""
    rollout_interval: Count = 1_000
    """Updates between two rounds of rollouts."""
    penalty: Literal["learned_std", "disagreement"] = "disagreement"
    """Estimate of the model's error: learned_std as in the paper, or the members' disagreement."""
    penalty_coef: Annotated[NonNegative, Log(0.1, 10.0)] = 1.0
    """Penalty on the reward of an imagined step, per unit of the model's estimated error."""

    @model_validator(mode="before")
    @classmethod
    def _written_before_there_was_a_choice(cls, values: Any) -> Any:
        """Stored runs name every knob; one without `penalty` used the paper's estimate."""
        if isinstance(values, dict) and ModelParams.__annotations__.keys() <= values.keys():
            return {"penalty": "learned_std", **values}
        return values

    @field_validator("penalty")
    @classmethod
    def _members_can_differ(cls, penalty: str, info: ValidationInfo) -> str:
        if penalty == "disagreement" and info.data.get("num_members", 2) < 2:
            raise ValueError(
                "one member cannot disagree with others; raise num_members to 2 or more, or set "
                "penalty to learned_std"
            )
        return penalty


def learned_std(means: Tensor, stds: Tensor) -> Tensor:
    """max_i ||std_i||, (B,) from (members, B, 1 + O); the paper's estimate of the error."""
    return stds.square().sum(-1).sqrt().amax(0)


def disagreement(means: Tensor, stds: Tensor) -> Tensor:
    """max_i ||mean_i - sum_j mean_j / members||, (B,) from (members, B, 1 + O)."""
    return (means - means.mean(0)).square().sum(-1).sqrt().amax(0)


PENALTIES: dict[str, Uncertainty] = {"learned_std": learned_std, "disagreement": disagreement}


def mopo_reward(reward: Tensor, uncertain: Tensor, *, penalty_coef: float) -> Tensor:
    """r - penalty_coef * u, all (B,), where u is the estimated error of the model; eq. 5."""
    assert reward.shape == uncertain.shape, (reward.shape, uncertain.shape)
    return reward - penalty_coef * uncertain


class MOPOAlgorithm(MBPOAlgorithm[MOPOParams]):
    """Soft actor-critic on imagined transitions, penalised by the model's uncertainty."""

    Params = MOPOParams
    loop: ClassVar[str] = "model_based_offline"
    paper: ClassVar[str] = "Yu et al. 2020"
    summary: ClassVar[str] = "SAC in a model of the data that pays for its uncertainty"

    @classmethod
    def check_config(cls, config: TrainConfig) -> None:
        super().check_config(config)
        if "dynamics" in (config.lr_schedule.optimizers or ()):
            raise ConfigError(
                "lr_schedule.optimizers: MOPO fits its model (dynamics) once, before the first "
                "update, so that no schedule reaches it; remove it and set algo_kwargs.model_lr"
            )

    def set_lr_factor(self, factor: float, only: tuple[str, ...] | None = None) -> None:
        """Scale every learning rate but the model's: it is fitted once, before warm-up begins."""
        followers = set(only or self.optimizers) - {"dynamics"}
        super().set_lr_factor(factor, tuple(followers))

    @property
    def uncertainty(self) -> Uncertainty:
        return PENALTIES[self.params.penalty]

    def imagined_reward(self, reward: Tensor, uncertain: Tensor | None) -> Tensor:
        assert uncertain is not None
        return mopo_reward(reward, uncertain, penalty_coef=self.params.penalty_coef)
