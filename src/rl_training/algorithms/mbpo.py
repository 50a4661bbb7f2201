"""MBPO: model-based policy optimisation.

Janner, Fu, Zhang and Levine 2019, arXiv:1906.08253.

Kept: an ensemble of probabilistic models that is fitted to all real data every few hundred
steps, continuing from its last weights; short rollouts of the current, stochastic policy from
real states, with a random elite for every row and step; termination as a function of the next
state; soft actor-critic on mostly imagined minibatches, many times per environment step.

Changed: see `dynamics.py` for the model. The update is this package's SAC, unchanged.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from typing_extensions import TypeVar

from rl_training.algorithms.base import Networks
from rl_training.algorithms.dynamics import ModelParams, ensemble_model, trained_parameters
from rl_training.algorithms.params import UpdatesPerStep
from rl_training.algorithms.sac import SACAlgorithm, SACParams, SoftParams
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import Count, NonNegativeInt
from rl_training.models.dynamics import Uncertainty


class SoftModelParams(SoftParams, ModelParams):
    """Knobs of soft actor-critics that learn in a model."""


class MBPOParams(SACParams, SoftModelParams):
    learning_starts: NonNegativeInt = 5_000
    """Environment steps with random actions before the first fit and the first update."""
    gradient_updates_per_step: UpdatesPerStep = 20.0
    """Updates per environment step; fractions are exact over time."""
    model_interval: Count = 250
    """Environment steps between two fits of the model, each followed by rollouts."""


M = TypeVar("M", bound=SoftModelParams, default=MBPOParams)


class MBPOAlgorithm(SACAlgorithm[M]):
    """Soft actor-critic on imagined transitions of a learned model."""

    Params: ClassVar[type[SoftModelParams]] = MBPOParams
    loop: ClassVar[str] = "model_based"
    paper: ClassVar[str] = "Janner et al. 2019"
    summary: ClassVar[str] = "SAC in short rollouts of a learned model, where steps are expensive"
    action_kinds: ClassVar[frozenset[str]] = frozenset({"box"})
    outside_update: ClassVar[tuple[str, ...]] = ("dynamics",)

    def __init__(self, spaces: Spaces, params: M, normalize_observations: bool = False) -> None:
        super().__init__(spaces, params, normalize_observations)
        self.dynamics = ensemble_model(spaces.obs_dim, spaces.action_dim, params)
        parameters, decays = trained_parameters(self.dynamics, params)
        self.add_optimizer("dynamics", parameters, params.model_lr, decays)

    def other_networks(self) -> Networks:
        return {**super().other_networks(), "dynamics": self.dynamics}

    @property
    def uncertainty(self) -> Uncertainty | None:
        """The uncertainty estimate of imagined steps, if the reward depends on it."""
        return None

    def imagined_reward(self, reward: Tensor, uncertain: Tensor | None) -> Tensor:
        """The reward of an imagined step, (B,)."""
        return reward
