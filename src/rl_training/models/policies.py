"""The interface of policies, and policies over Box actions in [-1, 1]."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.architecture import Architecture, Layers, Net
from rl_training.models.draws import normal_like
from rl_training.models.encoders import Observed
from rl_training.models.mlp import MLP, output
from rl_training.models.stacked import DeferredForward

Distribution = tuple[Tensor, Tensor]
"""Mean and logarithm of the standard deviation."""
ActionDistribution = Literal["gaussian", "tanh_gaussian"]
"""Kinds of policies over Box actions: `BoundedGaussianPolicy` and `TanhGaussianPolicy`."""
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
LARGEST_ACTION = float(np.float32(1.0 - 1e-5))
"""Inner Box actions of data stay within, where the density of a tanh is finite."""
_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class UnlikePolicyError(ValueError):
    """One policy cannot take over another; the message completes a sentence about the other."""


class Policy(nn.Module):
    """The interface of all policies; actions are in inner units."""

    has_density: ClassVar[bool] = True
    """Whether it draws its actions, so that some are likelier than others."""

    def become(self, other: Policy) -> None:
        """Copy weights, so that the mode equals that of `other` for the same inputs.

        Raises `UnlikePolicyError` before anything has changed.
        """
        if type(self) is not type(other):
            raise UnlikePolicyError(
                f"is a {type(other).__name__}, which a {type(self).__name__} cannot act as"
            )
        refuse_other_shapes(self, other)
        self.load_state_dict(other.state_dict())

    def mode(self, obs: Tensor) -> Tensor:
        """The action to take when not exploring."""
        raise NotImplementedError

    def sample(self, obs: Tensor) -> Tensor:
        """Sample an action, without gradient."""
        raise NotImplementedError

    def deferred(self, obs: Tensor) -> DeferredForward[Any]:
        """The distribution of actions, computed later; only for policies that have one."""
        raise NotImplementedError

    def log_prob_under(self, distribution: Any, action: Tensor) -> Tensor:
        """`log_prob` under the distribution that `deferred` computes."""
        raise NotImplementedError

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """(B,) log-density or log-probability of given actions."""
        raise NotImplementedError


def refuse_other_shapes(own: nn.Module, other: nn.Module, but: tuple[str, ...] = ()) -> None:
    """Raise `UnlikePolicyError` if weights outside `but` differ in name or shape."""
    mine, theirs = own.state_dict(), other.state_dict()
    for name in sorted({*mine, *theirs} - set(but)):
        have, need = (list(part[name].shape) if name in part else None for part in (theirs, mine))
        if have != need:
            raise UnlikePolicyError(
                f"has weights '{name}' of the shape {have}, but this run's policy {need}; give "
                "both runs the same knobs of the network"
            )


def refuse_other_layers(own: Net, other: Net) -> None:
    """Raise `UnlikePolicyError` if the hidden layers differ."""
    if not (isinstance(own, MLP) and isinstance(other, MLP)):
        if type(own) is type(other):
            return  # modules of the user, which are compared weight by weight
        raise UnlikePolicyError(
            "has networks from a factory and this run does not, or the other way round; set "
            "algo_kwargs.networks as in that run"
        )
    if own.activation != other.activation:
        raise UnlikePolicyError(
            f"has {other.activation} layers, but this run {own.activation}; set "
            f"algo_kwargs.activation={other.activation}"
        )
    hidden = list(other.hidden_sizes)
    if hidden != list(own.hidden_sizes):
        raise UnlikePolicyError(
            f"has hidden layers {hidden}, but this run {list(own.hidden_sizes)}; set "
            f"algo_kwargs.hidden_sizes='{hidden}'"
        )


class MeanPolicy(Policy):
    """A policy over Box actions whose network's first outputs decide the mode.

    Any two of them that squash alike, or not, and have the same hidden layers can act alike.
    """

    net: Net
    action_dim: int
    log_std: nn.Parameter | None
    """One for all states; without it, further outputs of the network where it has any."""
    squashes: bool = True
    """Whether the mode is the tanh of those outputs."""

    @torch.no_grad()
    def become(self, other: Policy) -> None:
        """Copy the mode, and the standard deviation if it can be expressed here.

        One for all states is kept as such by an output that reads nothing but its bias. One
        that depends on the state cannot become one for all; then, and where the other has
        none, this policy keeps its own.
        """
        if not isinstance(other, MeanPolicy):
            raise UnlikePolicyError(
                f"is a {type(other).__name__}, which has no mean action; start from a run whose "
                "policy is for Box actions"
            )
        if self.squashes != other.squashes:
            raise UnlikePolicyError(
                "bounds its mean by a tanh and this run's does not; set "
                "algo_kwargs.squash_mean=true"
                if other.squashes
                else "does not bound its mean by a tanh and this run's does; train it with "
                "algo_kwargs.squash_mean=true"
            )
        refuse_other_layers(self.net, other.net)
        if not isinstance(self.net, MLP):
            refuse_other_shapes(self, other)
            self.load_state_dict(other.state_dict())
            return
        last = f"layers.{len(self.net.layers) - 1}"
        refuse_other_shapes(self.net, other.net, (f"{last}.weight", f"{last}.bias"))
        mine, theirs = self.net.state_dict(), other.net.state_dict()
        for name, weight in theirs.items():
            rows = min(len(weight), len(mine[name]))  # of the last layer those that both have
            mine[name][:rows].copy_(weight[:rows])
        if other.log_std is None:
            return
        log_std = other.log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        if self.log_std is not None:
            self.log_std.copy_(log_std)
        elif len(mine[f"{last}.bias"]) > self.action_dim:
            mine[f"{last}.weight"][self.action_dim :].zero_()
            mine[f"{last}.bias"][self.action_dim :].copy_(log_std)


class BoxPolicy(MeanPolicy):
    """A diagonal Gaussian after a network; its mode is the tanh of the network's first outputs.

    The standard deviation is a second output of the network, or one learned vector for all
    states; its logarithm is clamped to [-5, 2].
    """

    def __init__(
        self,
        observed: Observed,
        action_dim: int,
        hidden_sizes: Layers,
        state_dependent_std: bool = True,
    ) -> None:
        super().__init__()
        self.action_dim = action_dim
        outputs = action_dim * (2 if state_dependent_std else 1)
        self.net = Architecture.of(hidden_sizes).net(observed, outputs)
        self.log_std = None if state_dependent_std else nn.Parameter(torch.zeros(action_dim))
        self.mean_alone = not state_dependent_std  # asking for the parameter takes longer

    def deferred(self, obs: Tensor) -> DeferredForward[Distribution]:
        return DeferredForward(self.net, obs, self._distribution)

    def forward(self, obs: Tensor) -> Distribution:
        """Mean and logarithm of the standard deviation of the Gaussian."""
        return self.deferred(obs).compute()

    def _distribution(self, out: Tensor) -> Distribution:
        if self.log_std is None:
            mean, log_std = torch.split(out, self.action_dim, dim=-1)
        else:
            mean, log_std = out, self.log_std.expand_as(out)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def mode(self, obs: Tensor) -> Tensor:
        net: Any = self._modules["net"]  # asking the module for it takes longer
        out: Tensor = output(net, obs)
        return torch.tanh(out if self.mean_alone else out.narrow(-1, 0, self.action_dim))

    def sample(self, obs: Tensor) -> Tensor:
        distribution = self(obs)
        return self.rsample_from(distribution, normal_like(distribution[0]))[0]

    def rsample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparameterised actions and their log-densities for standard normal `noise`
        of shape (..., B, A); leading axes of the noise are further samples per state."""
        return self.rsample_from(self(obs), noise)

    def rsample_from(self, distribution: Distribution, noise: Tensor) -> tuple[Tensor, Tensor]:
        """`rsample` from what `forward` returned."""
        raise NotImplementedError

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.log_prob_under(self(obs), action)


class TanhGaussianPolicy(BoxPolicy):
    """tanh of the Gaussian: the actions of maximum-entropy methods, whose density inside the box
    is exact. Given actions at its edge are far out in the Gaussian and drag its mean along."""

    def rsample_from(self, distribution: Distribution, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = distribution
        pre = mean + log_std.exp() * noise
        gaussian = -0.5 * noise.square() - log_std - _HALF_LOG_TAU
        # log(1 - tanh(u)^2) written so that it neither under- nor overflows
        squash = 2.0 * (math.log(2.0) - pre - F.softplus(-2.0 * pre))
        return torch.tanh(pre), (gaussian - squash).sum(-1)

    def log_prob_under(self, distribution: Distribution, action: Tensor) -> Tensor:
        mean, log_std = distribution
        # data end there already; actions of one's own that rounding put at the edge do not
        action = action.clamp(-LARGEST_ACTION, LARGEST_ACTION)
        z = (torch.atanh(action) - mean) * torch.exp(-log_std)
        gaussian = -0.5 * z.square() - log_std - _HALF_LOG_TAU
        return (gaussian - torch.log1p(-action.square())).sum(-1)


class BoundedGaussianPolicy(BoxPolicy):
    """The Gaussian around a mean inside the box, clipped when it acts: for cloning, where actions
    at the edge of the box are as near as any. Densities are those before the clipping."""

    def _distribution(self, out: Tensor) -> Distribution:
        mean, log_std = super()._distribution(out)
        return torch.tanh(mean), log_std

    def rsample_from(self, distribution: Distribution, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = distribution
        log_prob = (-0.5 * noise.square() - log_std - _HALF_LOG_TAU).sum(-1)
        return (mean + log_std.exp() * noise).clamp(-1.0, 1.0), log_prob

    def log_prob_under(self, distribution: Distribution, action: Tensor) -> Tensor:
        mean, log_std = distribution
        z = (action - mean) * torch.exp(-log_std)
        return (-0.5 * z.square() - log_std - _HALF_LOG_TAU).sum(-1)


class GaussianPolicy(MeanPolicy):
    """A diagonal Gaussian with one learned standard deviation for all states, clipped when it acts.

    Policy gradients need densities of the actions as drawn, which may leave [-1, 1]: `draw`
    gives those, and the environment's map clips them. With `squash_mean` the mean stays inside.
    """

    log_std: nn.Parameter

    def __init__(
        self,
        observed: Observed,
        action_dim: int,
        hidden_sizes: Layers,
        squash_mean: bool = False,
        initial_std: float = 1.0,
    ) -> None:
        super().__init__()
        self.action_dim, self.squashes = action_dim, squash_mean
        self.net = Architecture.of(hidden_sizes).net(observed, action_dim)
        self.log_std = nn.Parameter(torch.full((action_dim,), math.log(initial_std)))

    def mean(self, obs: Tensor) -> Tensor:
        out: Tensor = output(self.net, obs)
        return torch.tanh(out) if self.squashes else out

    def mode(self, obs: Tensor) -> Tensor:
        return self.mean(obs).clamp(-1.0, 1.0)

    def sample(self, obs: Tensor) -> Tensor:
        return self.draw(obs)[0].clamp(-1.0, 1.0)

    def draw(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Random actions before they are clipped, and their (B,) log-densities."""
        mean = self.mean(obs)
        noise = normal_like(mean)
        log_prob = (-0.5 * noise.square() - self.log_std - _HALF_LOG_TAU).sum(-1)
        return mean + self.log_std.exp() * noise, log_prob

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.log_prob_and_entropy(obs, action)[0]

    def log_prob_and_entropy(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) log-densities of actions and (B,) entropies, from one pass."""
        z = (action - self.mean(obs)) * torch.exp(-self.log_std)
        log_prob = (-0.5 * z.square() - self.log_std - _HALF_LOG_TAU).sum(-1)
        entropy = (self.log_std + _HALF_LOG_TAU + 0.5).sum()
        return log_prob, entropy.expand_as(log_prob)


class DeterministicPolicy(MeanPolicy):
    """tanh of a network output, with no density; it explores by Gaussian noise, if any."""

    has_density: ClassVar[bool] = False

    def __init__(
        self,
        observed: Observed,
        action_dim: int,
        hidden_sizes: Layers,
        exploration_noise: float = 0.0,
    ) -> None:
        super().__init__()
        self.action_dim, self.log_std = action_dim, None
        self.exploration_noise = exploration_noise
        self.net = Architecture.of(hidden_sizes).net(observed, action_dim)

    def mode(self, obs: Tensor) -> Tensor:
        return torch.tanh(output(self.net, obs))

    def sample(self, obs: Tensor) -> Tensor:
        action = self.mode(obs)
        if not self.exploration_noise:
            return action
        noise = self.exploration_noise * normal_like(action)
        return (action + noise).clamp(-1.0, 1.0)
