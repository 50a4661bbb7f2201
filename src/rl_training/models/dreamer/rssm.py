"""The recurrent state-space model: a block-GRU and categorical latents."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.dreamer.layers import (
    BlockLinear,
    Dense,
    DreamerSize,
    Head,
    RMSNorm,
    trunc_normal_,
)

UNIMIX = 0.01
"""Weight of the uniform distribution in every categorical, which keeps the KL finite."""


class LatentState(NamedTuple):
    """The latent state: (..., deter) and one-hot (..., latents, classes)."""

    deter: Tensor
    stoch: Tensor

    @property
    def features(self) -> Tensor:
        """The input of the heads."""
        return torch.cat([self.deter, self.stoch.flatten(-2)], -1)

    def at(self, index: Any) -> LatentState:
        """Select states by an index of the leading axes."""
        return LatentState(self.deter[index], self.stoch[index])

    def detach(self) -> LatentState:
        return LatentState(self.deter.detach(), self.stoch.detach())


class RSSM(nn.Module):
    """Recurrent state-space model: a deterministic block-GRU state and categorical latents.

    The prior predicts the latents without the observation, the posterior with it; both are
    (..., latents, classes) probabilities. At `is_first` the state and the previous action are
    set to zero, so that a sequence may span several episodes.

    A sequence is a chain of small kernels, and their number determines the time on a GPU: what
    does not depend on the state (actions, observations, noise) is computed for all steps at once.
    """

    uniform: Tensor

    def __init__(self, size: DreamerSize, action_dim: int, embed_dim: int) -> None:
        super().__init__()
        self.size = s = size
        stoch = s.latents * s.classes
        self.from_deter = Dense(s.deter, s.hidden)
        self.from_stoch = Dense(stoch, s.hidden)
        self.from_action = Dense(action_dim, s.hidden)
        block = s.deter // s.blocks
        mixed = block + 3 * s.hidden
        self.mixing = BlockLinear(s.blocks, block, block, mixed)
        self.mixing_inputs = nn.Linear(3 * s.hidden, s.deter, bias=False)
        trunc_normal_(self.mixing_inputs.weight, mixed)
        self.mixing_norm = RMSNorm(s.deter)
        self.gates = BlockLinear(s.blocks, block, 3 * block, block)
        self.prior_head = Head(s.deter, s.hidden, 2, stoch)
        self.from_embed = nn.Linear(embed_dim, s.hidden)
        self.posterior_linear = nn.Linear(s.deter, s.hidden, bias=False)
        for layer in (self.from_embed, self.posterior_linear):
            trunc_normal_(layer.weight, s.deter + embed_dim)
        nn.init.zeros_(self.from_embed.bias)
        self.posterior_norm = RMSNorm(s.hidden)
        self.posterior_out = Head(s.hidden, s.hidden, 0, stoch)
        self.register_buffer("uniform", torch.tensor(1.0 / s.classes), persistent=False)

    @property
    def feature_dim(self) -> int:
        return self.size.deter + self.size.latents * self.size.classes

    def initial(self, *leading: int) -> LatentState:
        reference = self.mixing.weight
        return LatentState(
            reference.new_zeros(*leading, self.size.deter),
            reference.new_zeros(*leading, self.size.latents, self.size.classes),
        )

    def read_action(self, action: Tensor) -> Tensor:
        """Embed actions for `recur`."""
        acted: Tensor = self.from_action(action / action.detach().abs().clamp(min=1.0))
        return acted

    def recur(self, state: LatentState, acted: Tensor) -> Tensor:
        """Compute the next deterministic state, (rows, deter)."""
        before = self._in_blocks(state.deter)
        inputs = torch.cat(
            [self.from_deter(state.deter), self.from_stoch(state.stoch.flatten(-2)), acted], -1
        )
        mixed = self.mixing(before).transpose(0, 1).flatten(-2)
        mixed = torch.addmm(mixed, inputs, self.mixing_inputs.weight.t())
        mixed = F.silu(self.mixing_norm(mixed))
        reset, candidate, update = self.gates(self._in_blocks(mixed)).chunk(3, -1)
        candidate = torch.tanh(torch.sigmoid(reset) * candidate)
        after = torch.lerp(before, candidate, torch.sigmoid(update - 1.0))
        return after.transpose(0, 1).flatten(-2)

    def _in_blocks(self, x: Tensor) -> Tensor:
        return x.reshape(-1, self.size.blocks, x.shape[-1] // self.size.blocks).transpose(0, 1)

    def prior(self, deter: Tensor) -> Tensor:
        return self._probs(self.prior_head(deter))

    def posterior(self, deter: Tensor, looked: Tensor) -> Tensor:
        """The posterior for (rows, deter) states; `looked` is `from_embed` of the observation."""
        hidden = torch.addmm(looked, deter, self.posterior_linear.weight.t())
        return self._probs(self.posterior_out(F.silu(self.posterior_norm(hidden))))

    def _probs(self, logits: Tensor) -> Tensor:
        logits = logits.reshape(*logits.shape[:-1], self.size.latents, self.size.classes)
        return torch.lerp(torch.softmax(logits, -1), self.uniform, UNIMIX)

    def imagine(self, state: LatentState, action: Tensor, wait: Tensor) -> LatentState:
        """One step without an observation; `wait` is the noise for `sample_one_hot`."""
        deter = self.recur(state, self.read_action(action))
        return LatentState(deter, sample_one_hot(self.prior(deter), wait))

    def see_all(
        self, state: LatentState, action: Tensor, is_first: Tensor, embed: Tensor, noise: Tensor
    ) -> tuple[LatentState, Tensor, Tensor]:
        """Filter a sequence of T steps; the second axis of inputs and outputs is time.

        `action[:, t]` precedes observation t, and `noise` is uniform. Returns states, posteriors
        and priors.
        """
        going = (~is_first).to(embed.dtype).unsqueeze(-1)
        acted, looked = self.read_action(action * going), self.from_embed(embed)
        wait = exponential_noise(noise)
        states, posteriors = [], []
        for t in range(embed.shape[1]):
            deter = self.recur(mask_state(state, going[:, t]), acted[:, t])
            posterior = self.posterior(deter, looked[:, t])
            state = LatentState(deter, sample_one_hot(posterior, wait[:, t]))
            states.append(state)
            posteriors.append(posterior)
        deter, stoch = (torch.stack(part, 1) for part in zip(*states, strict=True))
        return LatentState(deter, stoch), torch.stack(posteriors, 1), self.prior(deter)


def mask_state(state: LatentState, going: Tensor) -> LatentState:
    """Zero the state of rows that start an episode, where `going`, (rows, 1), is 0."""
    return LatentState(state.deter * going, state.stoch * going.unsqueeze(-1))


def one_hot(index: Tensor, classes: int) -> Tensor:
    """Like torch's `one_hot`, but without its host sync."""
    return index.unsqueeze(-1) == torch.arange(classes, device=index.device)


def exponential_noise(noise: Tensor) -> Tensor:
    """Turn uniform noise in [0, 1) into exponential noise for `sample_one_hot`."""
    return -torch.log(noise.clamp(min=torch.finfo(noise.dtype).tiny))


def sample_one_hot(probs: Tensor, wait: Tensor) -> Tensor:
    """Sample one-hot vectors with straight-through gradients of the probabilities.

    The sample is the argmin of exponential noise / probability; unlike `torch.multinomial`
    this has a fixed shape and needs no host sync.
    """
    chosen = (probs / wait).argmax(-1, keepdim=True)
    hard = torch.zeros_like(probs).scatter_(-1, chosen, 1.0)
    return hard + (probs - probs.detach())
