"""Policies over actions that are choices: Discrete and MultiDiscrete ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.execution import can_branch_on
from rl_training.models.architecture import Architecture, Layers, Net
from rl_training.models.draws import exponential_like, has_source
from rl_training.models.encoders import Observed
from rl_training.models.masks import only_allowed
from rl_training.models.mlp import output
from rl_training.models.policies import Policy, refuse_other_layers
from rl_training.models.stacked import DeferredForward


class ChoicePolicy(Policy):
    """A policy over actions that are choices."""

    net: Net

    def become(self, other: Policy) -> None:
        if isinstance(other, type(self)):
            refuse_other_layers(self.net, other.net)
        super().become(other)

    def draw(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Random actions and their (B,) log-probabilities."""
        raise NotImplementedError

    def sample(self, obs: Tensor) -> Tensor:
        return self.draw(obs)[0]

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.log_prob_and_entropy(obs, action)[0]

    def log_prob_and_entropy(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) log-probabilities of actions and (B,) entropies, from one pass."""
        raise NotImplementedError


class CategoricalPolicy(ChoicePolicy):
    """Softmax over Discrete actions; with `masked`, over those that the observation allows."""

    def __init__(
        self,
        observed: Observed,
        num_actions: int,
        hidden_sizes: Layers,
        masked: bool = False,
    ) -> None:
        super().__init__()
        self.masked = masked
        self.net = Architecture.of(hidden_sizes).net(observed, num_actions)

    def deferred(self, obs: Tensor) -> DeferredForward[Tensor]:
        return DeferredForward(
            self.net, obs, lambda out: torch.log_softmax(self._logits(out, obs), -1)
        )

    def _logits(self, out: Tensor, obs: Tensor) -> Tensor:
        return only_allowed(out, obs) if self.masked else out

    def forward(self, obs: Tensor) -> Tensor:
        """(B, actions) log-probabilities."""
        return self.deferred(obs).compute()

    def log_prob_under(self, distribution: Tensor, action: Tensor) -> Tensor:
        return distribution.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def mode(self, obs: Tensor) -> Tensor:
        return self._logits(output(self.net, obs), obs).argmax(-1)

    def draw(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        log_probs: Tensor = self(obs)
        if can_branch_on(log_probs) and not has_source():
            flat = log_probs.exp().reshape(-1, log_probs.shape[-1])
            action = torch.multinomial(flat, 1).reshape(log_probs.shape[:-1])
        else:  # `multinomial` waits for the device to check its input
            action = (log_probs.exp() / exponential_like(log_probs)).argmax(-1)
        return action, log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def log_prob_and_entropy(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = self(obs)
        chosen: Tensor = log_probs.gather(-1, action.unsqueeze(-1))
        return chosen.squeeze(-1), -(log_probs.exp() * log_probs).sum(-1)


class MultiCategoricalPolicy(ChoicePolicy):
    """Independent softmaxes over the parts of MultiDiscrete actions, (B, parts) of integers.

    Log-probabilities and entropies are sums over the parts; a part with two choices is a
    Bernoulli variable. A distribution is (B, choices of all parts), part after part.
    """

    offsets: Tensor

    def __init__(self, observed: Observed, choices: Sequence[int], hidden_sizes: Layers) -> None:
        super().__init__()
        self.choices = list(choices)
        self.net = Architecture.of(hidden_sizes).net(observed, sum(choices))
        first = torch.tensor([0, *accumulate(self.choices[:-1])])
        self.register_buffer("offsets", first, persistent=False)

    def deferred(self, obs: Tensor) -> DeferredForward[Tensor]:
        return DeferredForward(self.net, obs, self._log_probs)

    def _log_probs(self, out: Tensor) -> Tensor:
        return torch.cat([F.log_softmax(part, dim=-1) for part in self.parts(out)], dim=-1)

    def parts(self, distribution: Tensor) -> tuple[Tensor, ...]:
        """(B, choices) of each part."""
        return torch.split(distribution, self.choices, dim=-1)

    def forward(self, obs: Tensor) -> Tensor:
        """(B, choices of all parts) log-probabilities."""
        return self.deferred(obs).compute()

    def log_prob_under(self, distribution: Tensor, action: Tensor) -> Tensor:
        return distribution.gather(-1, action + self.offsets).sum(-1)

    def mode(self, obs: Tensor) -> Tensor:
        return torch.stack([part.argmax(-1) for part in self.parts(self.net(obs))], dim=-1)

    def draw(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        log_probs: Tensor = self(obs)
        if can_branch_on(log_probs) and not has_source():
            rows = [part.exp().reshape(-1, part.shape[-1]) for part in self.parts(log_probs)]
            drawn = torch.cat([torch.multinomial(row, 1) for row in rows], dim=-1)
            action = drawn.reshape(*log_probs.shape[:-1], len(self.choices))
        else:  # `multinomial` waits for the device to check its input
            places = log_probs.exp() / exponential_like(log_probs)
            action = torch.stack([part.argmax(-1) for part in self.parts(places)], dim=-1)
        return action, self.log_prob_under(log_probs, action)

    def log_prob_and_entropy(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = self(obs)
        # the parts' entropies add up, and so do the terms of all of them at once
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return self.log_prob_under(log_probs, action), entropy
