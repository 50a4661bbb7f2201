"""Steps of critics and policies for every kind of network that SAC, RLPD, TD3 and MBPO can have.

MLPs and SimBa learn from target critics by squared errors. CrossQ (Bhatt, Palenicek et al. 2024,
eq. 2) has none: current and next pairs pass through the critics in one batch, whose statistics
normalise both. SimbaV2's critics learn the distribution of the return (Bellemare et al. 2017).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.critics import td_loss, td_target
from rl_training.algorithms.functional import Loss, Metrics, critic_loss
from rl_training.algorithms.learner import Due
from rl_training.models import (
    ActionValueCritic,
    CategoricalCritic,
    Critics,
    absorb_statistics,
    batch_statistics,
    frozen_copy,
)
from rl_training.replay.batch import Batch


def make_targets(algorithm: Algorithm, critics: Critics) -> Critics | None:
    """Target critics; CrossQ has none."""
    return None if algorithm.params.network_kind == "crossq" else frozen_copy(critics)


def add_soft_optimizers(
    algorithm: Algorithm, policy: nn.Module, critics: nn.Module, start: float
) -> nn.Parameter:
    """Optimisers of policy and critics, and of the temperature unless it is fixed.

    Returns the logarithm of the temperature, which is `start` where it is tuned.
    """
    p = algorithm.params
    tuned = p.fixed_temperature is None
    log_temperature = nn.Parameter(torch.tensor(p.fixed_temperature or start).log(), tuned)
    algorithm.add_optimizer_of("policy", policy, p.policy_lr)
    algorithm.add_optimizer_of("critics", critics, p.critic_lr)
    if tuned:
        algorithm.add_optimizer("temperature", [log_temperature], p.temperature_lr)
    return log_temperature


def critic_step(
    algorithm: Algorithm,
    critics: Critics,
    targets: Critics | None,
    batch: Batch,
    chosen: Tensor,
    bonus: Tensor | None = None,
    members: Tensor | None = None,
) -> Metrics:
    """One step of the critics towards r + bonus + discount * min_i Q_i(s', chosen).

    `chosen`, (B, A), are Box actions or probabilities of Discrete ones; `bonus` is (B,). The
    minimum is over all critics or over those in `members`.
    """
    if targets is None:
        metrics = algorithm.minimize(
            lambda: crossed_td_loss(critics, batch, chosen, bonus, members), "critics"
        )
        absorb_statistics(critics, metrics)
        return metrics
    if isinstance(critics, CategoricalCritic):
        assert isinstance(targets, CategoricalCritic)
        goal = categorical_target(targets, batch, chosen, bonus, members)
        return algorithm.minimize(lambda: categorical_td_loss(critics, batch, goal), "critics")
    target = td_target(targets, batch, chosen, members)
    if bonus is not None:
        target = target + bonus
    return algorithm.minimize(lambda: td_loss(critics, batch, target)[0], "critics")


def policy_step(
    algorithm: Algorithm, policy: nn.Module, loss: Callable[[], Loss], due: Due = None
) -> Metrics:
    """One step of the policy, which for CrossQ normalises by its batch."""
    if algorithm.params.network_kind != "crossq":
        return algorithm.minimize(loss, "policy", due=due)

    def by_batch() -> Loss:
        with batch_statistics(policy) as found:
            total, metrics = loss()
        return Loss(total, {**metrics, **found})

    metrics = algorithm.minimize(by_batch, "policy", due=due)
    if due is not False:
        absorb_statistics(policy, metrics, due if isinstance(due, Tensor) else None)
    return metrics


def crossed_td_loss(
    critics: Critics,
    batch: Batch,
    chosen: Tensor,
    bonus: Tensor | None = None,
    members: Tensor | None = None,
) -> Loss:
    """Squared TD errors, both sides from one pass of all pairs; no gradient reaches the target.

    The metrics hold the statistics of the batch, for `absorb_statistics`.
    """
    rows, obs = batch.reward.shape[0], torch.cat([batch.obs, batch.next_obs])
    with batch_statistics(critics) as found:
        if isinstance(critics, ActionValueCritic):
            values = critics.of_all(obs)
            index = batch.action.view(1, -1, 1).expand(values.shape[0], -1, 1)
            q = values[:, :rows].gather(-1, index).squeeze(-1)
            following = values[:, rows:].detach()
        else:
            values = critics(obs, torch.cat([batch.action, chosen]))
            q, following = values[:, :rows], values[:, rows:].detach()
    if members is not None:
        following = following.index_select(0, members)
    lowest = following.amin(0)
    if isinstance(critics, ActionValueCritic):
        lowest = (chosen * lowest).sum(-1)
    target = batch.reward + batch.discount * lowest
    if bonus is not None:
        target = target + bonus
    loss = critic_loss(q, target)
    return Loss(loss, {"critic_loss": loss, "q_mean": q.mean(), **found})


@torch.no_grad()
def categorical_target(
    targets: CategoricalCritic,
    batch: Batch,
    chosen: Tensor,
    bonus: Tensor | None = None,
    members: Tensor | None = None,
) -> Tensor:
    """(B, atoms): the return after the step, in the eyes of the critic with the lowest mean."""
    probs = targets.log_probs(batch.next_obs, chosen, members).exp()
    lowest = (probs * targets.atoms).sum(-1).argmin(0)
    index = lowest.view(1, -1, 1).expand(1, -1, probs.shape[-1])
    shift = batch.reward if bonus is None else batch.reward + bonus
    moved = shift.unsqueeze(-1) + batch.discount.unsqueeze(-1) * targets.atoms
    return projected(probs.gather(0, index)[0], moved, targets.atoms)


def projected(probs: Tensor, moved: Tensor, atoms: Tensor) -> Tensor:
    """(B, atoms): probabilities at `moved` values, shared by the two atoms next to each value.

    Bellemare et al. 2017, eq. 7; values beyond the atoms count for the last one.
    """
    step = atoms[1] - atoms[0]
    moved = moved.clamp(atoms[0], atoms[-1]) / step
    apart = moved.unsqueeze(-1) - atoms / step
    near = apart.abs_().neg_().add_(1.0).relu_()  # in place: it is the largest tensor of an update
    return torch.bmm(probs.unsqueeze(1), near).squeeze(1)


def categorical_td_loss(critics: CategoricalCritic, batch: Batch, target: Tensor) -> Loss:
    """Cross-entropy from a (B, atoms) target, summed over critics and averaged over the batch."""
    log_probs = critics.log_probs(batch.obs, batch.action)
    loss = -(target * log_probs).sum(-1).mean(-1).sum(0)
    q_mean = (log_probs.exp() * critics.atoms).sum(-1).mean()
    return Loss(loss, {"critic_loss": loss, "q_mean": q_mean})
