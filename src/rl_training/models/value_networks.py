"""Action values of Discrete tasks: plain, by probabilities of fixed returns, by fixed quantiles,
and by quantiles at any fraction.

Values of one state stand in the last axis, one per action; quantiles in the axis before it.
Leading axes of the observations pass through. `noise` is for networks with noisy layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.architecture import Architecture, Layers
from rl_training.models.encoders import Encoder, Observed
from rl_training.models.masks import only_allowed
from rl_training.models.mlp import MLP, PlainLayers, activated
from rl_training.models.noisy import NoisyMLP
from rl_training.models.policies import Policy
from rl_training.models.recurrent import Past, RecurrentMemory


@dataclass(frozen=True)
class ValueLayers:
    """What every value network is made from."""

    observed: Observed
    num_actions: int
    hidden: Layers
    dueling: bool = False
    sigma: float = 0.0
    """Initial scale of the noise on the head's layers; 0 for plain ones."""

    def features_and_head(self) -> tuple[Encoder, Architecture]:
        """The features that a fraction is multiplied into, and the head's hidden layers.

        The last hidden layer is the head's, or all of them where an encoder makes the features.
        A single layer on vectors belongs to the features, and the head is linear.
        """
        layers = Architecture.of(self.hidden)
        if not isinstance(self.observed, int):
            return self.observed, layers
        sizes = layers.hidden_sizes
        if len(sizes) == 1:
            return Features(self.observed, layers), layers.with_sizes(())
        below, above = layers.with_sizes(sizes[:-1]), layers.with_sizes(sizes[-1:])
        return Features(self.observed, below), above


class GreedyPolicy(Policy):
    """Takes the action of the largest value; the base of the networks of this file.

    Its head has `outputs` numbers per action. With `num_cosines` it reads the features times
    the embedding of a fraction.
    """

    has_density: ClassVar[bool] = False
    embedding: CosineEmbedding
    masked: bool = False
    """Whether observations say which actions are allowed."""

    def __init__(self, layers: ValueLayers, outputs: int = 1, num_cosines: int = 0) -> None:
        super().__init__()
        self.features, above = layers.features_and_head()
        width = self.features.out_dim
        if num_cosines:
            self.embedding = CosineEmbedding(num_cosines, width)
        shape = (outputs, layers.num_actions)
        self.head = ActionHead(width, above, shape, layers.dueling, layers.sigma)
        self.memory: RecurrentMemory | None = None
        """What it remembers: the network then gets what `RecurrentMemory.beside` returns."""

    @cached_property
    def _plain(self) -> PlainLayers | None:
        """Features and head as layers that follow one another, if they are nothing else."""
        features, head = self.features, self.head
        if (
            not isinstance(features, Features)
            or features.norm is not None
            or head.value is not None
        ):
            return None
        nets = [net for net in (features.net, head.actions) if type(net) is MLP and net.is_plain]
        return PlainLayers(nets, (features, head)) if len(nets) == 2 else None

    def per_action(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        """(..., outputs, A) what the head gives for observations."""
        plain = self._plain
        if noise is None and plain is not None and not plain.is_hooked:
            out = plain(obs)
            return out.reshape(out.shape[:-1] + self.head.shape)
        values: Tensor = self.head(self.features(obs), noise)
        return values

    @property
    def noise_size(self) -> int:
        """Random numbers that one pass takes; 0 without noisy layers."""
        return self.head.noise_size

    def q_values(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) expected returns."""
        raise NotImplementedError

    def recall(self, past: Past) -> Tensor:
        """(B, T - burn_in, ...) what the network gets of the steps of sequences."""
        assert self.memory is not None
        return self.memory.beside(past.obs[:, past.burn_in :], self.memory.scan(past))

    def mode(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        return self.best(self.q_values(obs, noise), obs)

    def best(self, q: Tensor, obs: Tensor) -> Tensor:
        """(B,) the allowed action of the largest of (B, A) values, at the observations."""
        return (only_allowed(q, obs) if self.masked else q).argmax(-1)

    def sample(self, obs: Tensor) -> Tensor:
        """The same action: exploration is the algorithm's, not the policy's."""
        return self.mode(obs)


class Features(Encoder):
    """Hidden layers alone, with an activation after the last one as well."""

    def __init__(self, obs_dim: int, layers: Architecture) -> None:
        super().__init__()
        *below, self.out_dim = layers.hidden_sizes
        self.activation = layers.activation
        self.net = MLP(obs_dim, below, self.out_dim, layers.activation, layers.layer_norm)
        self.norm = nn.LayerNorm(self.out_dim) if layers.layer_norm else None

    def forward(self, obs: Tensor) -> Tensor:
        x = self.net(obs)
        if self.norm is not None:
            x = self.norm(x)
        return activated(x, self.activation)


class ActionHead(nn.Module):
    """(..., outputs, A) values from (..., in) features.

    Dueling (Wang et al. 2016, eq. 9): a state value plus advantages whose mean over the
    actions is 0, each from a stream of its own. With `sigma` above 0 all its layers are noisy,
    and `sigma` is the initial scale of the noise.
    """

    def __init__(
        self,
        in_dim: int,
        layers: Architecture,
        shape: tuple[int, int],
        dueling: bool,
        sigma: float,
    ) -> None:
        super().__init__()
        self.shape = shape
        make = layers.net if sigma == 0.0 else partial(NoisyMLP, layers, sigma)
        self.actions = make(in_dim, math.prod(shape))
        self.value = make(in_dim, shape[0]) if dueling else None
        streams = (self.actions, self.value)
        self.noise_size = sum(s.noise_size for s in streams if isinstance(s, NoisyMLP))

    def forward(self, features: Tensor, noise: Tensor | None = None) -> Tensor:
        out: Tensor
        if noise is None:
            out = self.actions(features)
        else:
            own = self.actions.noise_size
            out = self.actions(features, noise[:own])
        per_action = out.reshape(out.shape[:-1] + self.shape)
        if self.value is None:
            return per_action
        value: Tensor
        value = self.value(features) if noise is None else self.value(features, noise[own:])
        return value.unsqueeze(-1) + per_action - per_action.mean(-1, keepdim=True)


class CosineEmbedding(nn.Module):
    """ReLU(Linear(cos(pi i tau))), i = 1..num_cosines: a fraction as a vector; IQN, eq. 4."""

    frequencies: Tensor

    def __init__(self, num_cosines: int, out_dim: int) -> None:
        super().__init__()
        frequencies = math.pi * torch.arange(1, num_cosines + 1, dtype=torch.float32)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.layer = nn.Linear(num_cosines, out_dim)

    def forward(self, taus: Tensor) -> Tensor:
        return F.relu(self.layer(torch.cos(taus.unsqueeze(-1) * self.frequencies)), inplace=True)


class QNetwork(GreedyPolicy):
    """Q(s, a) for all actions, (B, A)."""

    def forward(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        return self.per_action(obs, noise).squeeze(-2)

    def q_values(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        q: Tensor = self(obs, noise)
        return q


class CategoricalNetwork(GreedyPolicy):
    """Logarithms of unnormalised probabilities of `num_atoms` returns, (B, N, A).

    The returns lie at equal distances from `value_min` to `value_max`.
    """

    atoms: Tensor

    def __init__(
        self, layers: ValueLayers, num_atoms: int, value_min: float, value_max: float
    ) -> None:
        super().__init__(layers, num_atoms)
        atoms = torch.linspace(value_min, value_max, num_atoms)
        self.register_buffer("atoms", atoms, persistent=False)

    def forward(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        return self.per_action(obs, noise)

    def q_values(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        return self.q_of(self(obs, noise))

    def q_of(self, logits: Tensor) -> Tensor:
        """(B, A) expected returns from what `forward` returned."""
        return (logits.softmax(-2) * self.atoms.unsqueeze(-1)).sum(-2)


class QuantileNetwork(GreedyPolicy):
    """Quantiles of the return at the midpoints of `n_quantiles` equal fractions, (B, N, A)."""

    tau_hats: Tensor

    def __init__(self, layers: ValueLayers, n_quantiles: int) -> None:
        super().__init__(layers, n_quantiles)
        self.register_buffer("tau_hats", midpoints(n_quantiles), persistent=False)

    def forward(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        return self.per_action(obs, noise)

    def q_values(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        quantiles: Tensor = self(obs, noise)
        return quantiles.mean(-2)


class QuantilesAtFractions(GreedyPolicy):
    """Quantiles of the return at given fractions: the base of IQN's and FQF's network."""

    def quantiles(self, features: Tensor, taus: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, N, A) quantiles at (B, N) fractions from what `features` returned.

        head(features * embedding(taus)): the state times the fraction, element by element.
        """
        values: Tensor = self.head(features.unsqueeze(-2) * self.embedding(taus), noise)
        return values.squeeze(-2)


class ImplicitQuantileNetwork(QuantilesAtFractions):
    """Quantiles of the return at any fractions: (B, N, A) from (B, O) and (B, N).

    It acts by the mean over the midpoints of `n_action_quantiles` equal fractions.
    """

    action_taus: Tensor

    def __init__(self, layers: ValueLayers, n_action_quantiles: int, num_cosines: int) -> None:
        super().__init__(layers, num_cosines=num_cosines)
        self.register_buffer("action_taus", midpoints(n_action_quantiles), persistent=False)

    def forward(self, obs: Tensor, taus: Tensor, noise: Tensor | None = None) -> Tensor:
        return self.quantiles(self.features(obs), taus, noise)

    def q_values(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        return self.q_of(self.features(obs), noise)

    def q_of(self, features: Tensor, noise: Tensor | None = None) -> Tensor:
        """`q_values` from what `features` returned."""
        return self.quantiles(features, self.action_taus, noise).mean(-2)


class FQFOutput(NamedTuple):
    """Proposed fractions of (B, O) states and the quantiles at their midpoints."""

    quantiles_hat: Tensor  # (B, N, A) at tau_hats
    taus: Tensor  # (B, N + 1) from 0 to 1; gradients reach the fraction layer only
    tau_hats: Tensor  # (B, N) midpoints of neighbouring taus, detached

    @property
    def widths(self) -> Tensor:
        """(B, N) share of the distribution that each quantile stands for, detached."""
        return self.taus.detach().diff(dim=-1)

    @property
    def q_values(self) -> Tensor:
        """(B, A) sum over i of (tau_{i+1} - tau_i) F(tau_hat_i); FQF, eq. 2."""
        return (self.widths.unsqueeze(-1) * self.quantiles_hat).sum(-2)


class MLPFQFNetwork(QuantilesAtFractions):
    """Fractions proposed from the state alone, and quantiles at any fractions."""

    def __init__(self, layers: ValueLayers, n_fractions: int, num_cosines: int) -> None:
        super().__init__(layers, num_cosines=num_cosines)
        self.fractions = nn.Linear(self.features.out_dim, n_fractions)
        # near 0, so that fractions start out equal
        nn.init.xavier_uniform_(self.fractions.weight, gain=0.01)
        nn.init.zeros_(self.fractions.bias)

    def forward(self, obs: Tensor, noise: Tensor | None = None) -> FQFOutput:
        features = self.features(obs)
        taus, tau_hats = self.propose(features)
        return FQFOutput(self.quantiles(features, tau_hats, noise), taus, tau_hats)

    def propose(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Fractions (B, N + 1) and their midpoints (B, N); no gradient reaches the features."""
        widths = self.fractions(features.detach()).softmax(-1)
        # both ends exactly, whatever the sum rounds to
        taus = F.pad(F.pad(widths.cumsum(-1)[..., :-1], (1, 0), value=0.0), (0, 1), value=1.0)
        tau_hats = 0.5 * (taus[..., 1:] + taus[..., :-1]).detach()
        return taus, tau_hats

    def quantile_parameters(self) -> list[nn.Parameter]:
        """Everything but the fraction layer."""
        fractions = set(self.fractions.parameters())
        return [parameter for parameter in self.parameters() if parameter not in fractions]

    def q_values(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        output: FQFOutput = self(obs, noise)
        return output.q_values


def midpoints(n: int) -> Tensor:
    """(i + 1/2) / n for i = 0..n-1."""
    return (torch.arange(n, dtype=torch.float32) + 0.5) / n
