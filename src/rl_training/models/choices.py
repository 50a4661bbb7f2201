"""A policy over MultiDiscrete actions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.execution import can_branch_on
from rl_training.models.architecture import Architecture, Layers
from rl_training.models.draws import exponential_like, has_source
from rl_training.models.encoders import Observed
from rl_training.models.policies import ChoicePolicy
from rl_training.models.stacked import DeferredForward


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
