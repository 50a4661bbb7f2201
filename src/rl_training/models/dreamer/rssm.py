"""The recurrent state-space model: a block-GRU and categorical latents."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.dreamer.latents import mixed_with_uniform, sample_one_hot
from rl_training.models.dreamer.layers import (
    BlockLinear,
    Dense,
    DreamerSize,
    Head,
    RMSNorm,
    product,
    trunc_normal_,
    widened,
)
from rl_training.models.dreamer.scan import (
    CellWeights,
    ChainInputs,
    Kernels,
    ScanWeights,
    cell_step,
    see_chain,
)


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
        """Embed actions for `recur`: (rows, deter), added before the norm of the mixing layer."""
        acted = self.from_action(action / action.detach().abs().clamp(min=1.0))
        weight = self.mixing_inputs.weight[:, 2 * self.size.hidden :]
        fed = F.linear(acted.to(weight.dtype), weight)
        return fed.to(self.mixing.bias.dtype) + self.mixing.bias.flatten()

    def cell(self) -> CellWeights:
        """The weights of the recurrence, for `recur`."""
        wide = self.mixing_norm.scale.dtype
        readers = (self.from_deter, self.from_stoch)
        return CellWeights(
            self.from_stoch.linear.weight,
            torch.stack([reader.linear.bias for reader in readers]).to(wide),
            torch.stack([reader.norm.scale for reader in readers]),
            self.mixing.weight,
            self.mixing_inputs.weight[:, : 2 * self.size.hidden],
            self.mixing_norm.scale,
            self.gates.weight,
            self.gates.bias,
        )

    def recur(self, state: LatentState, acted: Tensor, cell: CellWeights | None = None) -> Tensor:
        """Compute the next deterministic state, (rows, deter)."""
        weight = self.from_deter.linear.weight
        rounded, stoch = (x.to(weight.dtype) for x in (state.deter, state.stoch.flatten(-2)))
        before = (state.deter, rounded, F.linear(rounded, weight), stoch)
        return cell_step(cell or self.cell(), before, None, acted).deter

    def prior(self, deter: Tensor) -> Tensor:
        return self._probs(self.prior_head(deter))

    def posterior(self, deter: Tensor, looked: Tensor) -> Tensor:
        """The posterior for (rows, deter) states; `looked` is `from_embed` of the observation."""
        hidden = self.posterior_norm(widened(product(self.posterior_linear, deter)) + looked)
        return self._probs(self.posterior_out(F.silu(hidden)))

    def _probs(self, logits: Tensor) -> Tensor:
        logits = logits.reshape(*logits.shape[:-1], self.size.latents, self.size.classes)
        return mixed_with_uniform(torch.softmax(logits, -1))

    def imagine(
        self, state: LatentState, action: Tensor, wait: Tensor, cell: CellWeights | None = None
    ) -> LatentState:
        """One step without an observation; `wait` is the noise for `sample_one_hot`."""
        deter = self.recur(state, self.read_action(action), cell)
        return LatentState(deter, sample_one_hot(self.prior(deter), wait))

    def look(self, embed: Tensor) -> Tensor:
        """Embeddings of observations for `posterior`."""
        return widened(product(self.from_embed, embed))

    def see_all(
        self, state: LatentState, action: Tensor, is_first: Tensor, embed: Tensor, noise: Tensor
    ) -> tuple[LatentState, Tensor]:
        """Filter a sequence of T steps; the second axis of inputs and outputs is time.

        `action[:, t]` precedes observation t, and `noise` is uniform. Returns states and
        posteriors. The state before the sequence gets no gradient.
        """
        return self.chain(state, self.chain_inputs(action, is_first, embed, noise))

    def chain_inputs(
        self, action: Tensor, is_first: Tensor, embed: Tensor, noise: Tensor
    ) -> ChainInputs:
        """What of `see_all` does not depend on the states, for all steps at once."""
        action, first, embed, noise = (x.transpose(0, 1) for x in (action, is_first, embed, noise))
        going = (~first).to(self.mixing_norm.scale.dtype).unsqueeze(-1).contiguous()
        return ChainInputs(
            going,
            self.read_action(action * going),
            self.look(embed),
            exponential_noise(noise).contiguous(),
        )

    def chain(
        self, state: LatentState, inputs: ChainInputs, kernels: Kernels | None = None
    ) -> tuple[LatentState, Tensor]:
        """What of `see_all` does: with compiled `kernels` as one function, else step by step."""
        if kernels is None:
            found = self._steps(state, inputs)
        else:
            readers = (self.from_deter.linear, self.posterior_linear)
            weights = ScanWeights(
                torch.cat([reader.weight for reader in readers]),
                self.posterior_norm.scale,
                self.posterior_out.out.weight,
                self.posterior_out.out.bias,
            )
            found = see_chain(kernels, state, inputs, self.cell(), weights)
        deter, stoch, posterior = (x.transpose(0, 1) for x in found)
        return LatentState(deter, stoch), posterior

    def _steps(self, state: LatentState, inputs: ChainInputs) -> tuple[Tensor, ...]:
        cell, states, posteriors = self.cell(), [], []
        for going, fed, looked, wait in zip(*inputs, strict=True):
            deter = self.recur(mask_state(state, going), fed, cell)
            posterior = self.posterior(deter, looked)
            state = LatentState(deter, sample_one_hot(posterior, wait))
            states.append(state)
            posteriors.append(posterior)
        deter, stoch = (torch.stack(part) for part in zip(*states, strict=True))
        return deter, stoch, torch.stack(posteriors)


def mask_state(state: LatentState, going: Tensor) -> LatentState:
    """Zero the state of rows that start an episode, where `going`, (rows, 1), is 0."""
    return LatentState(state.deter * going, state.stoch * going.unsqueeze(-1))


def exponential_noise(noise: Tensor) -> Tensor:
    """Turn uniform noise in [0, 1) into exponential noise for `sample_one_hot`."""
    return -torch.log(noise.clamp(min=torch.finfo(noise.dtype).tiny))
