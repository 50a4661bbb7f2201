"""TD3 with behaviour cloning: a policy that climbs its critic while it stays near the data.

Fujimoto and Gu 2021, arXiv:2106.06860.

Kept: TD3's critics, targets and delays, the policy objective lambda Q - (pi(s) - a)^2 with
lambda = alpha / mean |Q|. Changed: rows of better episodes are drawn more often (Hong et al. 2023,
arXiv:2306.13085), which `return_temperature` 0 switches off. Standardised observations are an
option of the data set (`dataset.normalize_observations`), which the authors switch on.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor

from rl_training.algorithms.functional import Loss
from rl_training.algorithms.params import BY_RETURN, OfflinePolicyParams, ReturnTemperature
from rl_training.algorithms.td3 import DeterministicActorCritic, DeterministicParams
from rl_training.experiment.config import Positive
from rl_training.experiment.ranges import Log
from rl_training.replay.batch import Batch


class TD3BCParams(DeterministicParams, OfflinePolicyParams):
    return_temperature: ReturnTemperature = None
    """Sample rows by exp(episode return / this); 0: uniform; default 0.1, without episodes 0."""
    alpha: Annotated[Positive, Log(0.5, 10.0)] = 2.5
    """Weight of the critic against cloning; smaller stays nearer to the data."""


def td3_bc_policy_loss(q: Tensor, action: Tensor, data_action: Tensor, *, alpha: float) -> Loss:
    """-alpha / mean|Q| * mean Q(s, pi(s)) + mean (pi(s) - a)^2; TD3+BC, eq. 3 and 5.

    `q` is (B,), the actions (B, A); no gradient flows through the scale of Q.
    """
    assert action.shape == data_action.shape, (action.shape, data_action.shape)
    cloning = (action - data_action).square().mean()
    loss = cloning - alpha * q.mean() / q.detach().abs().mean().clamp(min=1e-8)
    return Loss(loss, {"policy_loss": loss, "cloning_error": cloning})


class TD3BCAlgorithm(DeterministicActorCritic[TD3BCParams]):
    """TD3 with behaviour cloning."""

    Params = TD3BCParams
    loop: ClassVar[str] = "offline"
    observation_kinds: ClassVar[frozenset[str]] = frozenset({"vector", "image"})
    paper: ClassVar[str] = "Fujimoto and Gu 2021"
    summary: ClassVar[str] = "deterministic actor-critic that stays near the data"
    own_temperature = BY_RETURN

    def policy_loss(self, batch: Batch) -> Loss:
        action = self.actor.mode(batch.obs)
        q: Tensor = self.critics(batch.obs, action)
        return td3_bc_policy_loss(q[0], action, batch.action, alpha=self.params.alpha)
