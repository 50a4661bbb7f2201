"""What the value-based algorithms share: knobs, exploration, targets and the quantile loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import OffPolicyParams
from rl_training.algorithms.functional import Loss, Metrics
from rl_training.data.batch import Batch
from rl_training.experiment.config import Count, Fraction, Positive, Rate


class ValueParams(OffPolicyParams):
    """Knobs of algorithms that act by the largest action value."""

    batch_size: Count = 64
    """Transitions per update."""
    train_frequency: Count = 4
    """Environment steps between two rounds of updates."""
    gradient_updates_per_step: Positive = 0.25
    """Updates per environment step; fractions are kept exactly over time."""
    lr: Positive = 5e-4
    """Learning rate of the value network."""
    kappa: Positive = 1.0
    """Size of a TD error from which the Huber loss is linear."""
    target_update_interval: Count = 250
    """Updates between two copies of the online network into the target network."""
    double: bool = False
    """Choose the next action by the online network and rate it by the target network."""
    dueling: bool = False
    """Add up a state value and advantages, each from a stream of its own."""
    n_step: Count = 1
    """Rewards that are summed before the target bootstraps."""
    prioritized: bool = False
    """Replay transitions in proportion to their TD errors instead of uniformly."""
    priority_alpha: Fraction = 0.6
    """Exponent of the priorities; 0 is uniform, 1 proportional to the TD error."""
    priority_beta: Fraction = 0.4
    """Share of the sampling bias that is corrected at the start; it rises to 1 over the run."""
    epsilon_start: Fraction = 1.0
    """Share of random actions at the start."""
    epsilon_end: Fraction = 0.05
    """Share of random actions once it has fallen."""
    epsilon_fraction: Rate = 0.1
    """Share of the budget over which the share of random actions falls, linearly."""


def epsilon(fraction: Tensor, params: ValueParams) -> Tensor:
    """Share of random actions after `fraction` of the budget, 0-d."""
    progress = (fraction / params.epsilon_fraction).clamp(0.0, 1.0)
    return params.epsilon_start + (params.epsilon_end - params.epsilon_start) * progress


def epsilon_greedy(greedy: Tensor, num_actions: int, epsilon: Tensor) -> Tensor:
    """Each action of `greedy`, (B,), replaced by a uniform one with probability `epsilon`."""
    uniform = torch.randint_like(greedy, num_actions)
    return torch.where(torch.rand(greedy.shape, device=greedy.device) < epsilon, uniform, greedy)


def of_action(values: Tensor, action: Tensor) -> Tensor:
    """(B, ...) values of one action per row, from (B, ..., A) and (B,)."""
    assert action.shape == values.shape[:1], (values.shape, action.shape)
    index = action.view(-1, *(1,) * (values.dim() - 1)).expand(*values.shape[:-1], 1)
    return values.gather(-1, index).squeeze(-1)


def td_target(batch: Batch, next_value: Tensor) -> Tensor:
    """r + discount * next value, for (B,) values or (B, N) quantiles."""
    reward, discount = batch.reward, batch.discount
    if next_value.dim() == 2:
        reward, discount = reward.unsqueeze(-1), discount.unsqueeze(-1)
    return reward + discount * next_value


def huber(error: Tensor, kappa: float) -> Tensor:
    """error^2 / 2 up to `kappa`, kappa * (|error| - kappa / 2) beyond."""
    clipped = error.detach().clamp(-kappa, kappa)  # the slope of the loss, and its gradient
    return clipped * (error - 0.5 * clipped)


def weighted_mean(per_sample: Tensor, weight: Tensor | None) -> Tensor:
    """Mean of (B,) losses, with the importance weights of prioritised replay where given."""
    if weight is None:
        return per_sample.mean()
    assert weight.shape == per_sample.shape, (weight.shape, per_sample.shape)
    return (weight.detach() * per_sample).mean()


def quantile_huber_loss(
    quantiles: Tensor,
    target_quantiles: Tensor,
    taus: Tensor,
    weight: Tensor | None = None,
    target_weight: Tensor | None = None,
    *,
    kappa: float,
) -> Loss:
    """Quantile regression of `quantiles`, (B, N), on samples `target_quantiles`, (B, M).

    With delta_ij = target_j - quantile_i, the loss |tau_i - 1{delta_ij < 0}| *
    Huber(delta_ij) / kappa is summed over i, averaged over j and over the batch; QR-DQN,
    eq. 10. `taus`, (N,) or (B, N), belong to `quantiles`. `weight`, (B,), is that of
    prioritised replay; `target_weight`, (B, M) with sum 1, replaces the plain mean over j.
    `td_errors`, (B,), is the mean of |delta_ij|.
    """
    assert quantiles.dim() == target_quantiles.dim() == 2, (quantiles.shape, target_quantiles.shape)
    assert quantiles.shape[0] == target_quantiles.shape[0]
    assert taus.shape in (quantiles.shape, quantiles.shape[1:]), (taus.shape, quantiles.shape)
    delta = target_quantiles.detach().unsqueeze(-2) - quantiles.unsqueeze(-1)  # (B, N, M)
    tau = taus.detach().unsqueeze(-1)
    side = torch.where(delta.detach() < 0, (1.0 - tau) / kappa, tau / kappa)
    loss = side * huber(delta, kappa)
    error = delta.detach().abs().mean(-2)
    if target_weight is None:
        per_quantile, td_errors = loss.mean(-1), error.mean(-1)
    else:
        assert target_weight.shape == target_quantiles.shape
        share = target_weight.detach()
        per_quantile = torch.einsum("bnm,bm->bn", loss, share)
        td_errors = (error * share).sum(-1)
    total = weighted_mean(per_quantile.sum(-1), weight)
    return Loss(total, {"quantile_loss": total, "td_errors": td_errors})


def keep_td_errors(last_td_errors: Tensor, metrics: Metrics) -> Metrics:
    """Move the (B,) `td_errors` into `last_td_errors`, in place; their mean stays a metric."""
    td_errors = metrics.pop("td_errors")
    if last_td_errors.shape != td_errors.shape:  # a batch of another size than the knob's
        last_td_errors.resize_(td_errors.shape)
    last_td_errors.copy_(td_errors)
    return {**metrics, "td_error_mean": td_errors.mean()}


@torch.no_grad()
def update_target(target: nn.Module, online: nn.Module, due: Tensor) -> None:
    """target <- online where the 0-d `due` is true: the same operations whether or not."""
    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
        slow.copy_(torch.where(due, fast, slow))
