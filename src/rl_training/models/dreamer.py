"""The networks of a world model: what is seen, what happens next, and what it is worth.

Hafner, Pasukonis, Ba and Lillicrap 2023, arXiv:2301.04104, in the form of the authors' current
code: block-GRU, RMS normalisation, categorical latents, two-hot heads.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.experiment.errors import EnvironmentSetupError
from rl_training.models.policies import Policy

UNIMIX = 0.01
"""Share of the uniform distribution in every categorical, so that no KL is infinite."""
SMALLEST_MAP = 4
"""Side of the picture at which convolutions end."""
IMAGE_CHANNELS = (2, 3, 4, 4)
"""Channels of the convolutions, in multiples of the model's depth."""


class DreamerSize(NamedTuple):
    """Widths of a world model."""

    deter: int  # deterministic state
    hidden: int  # layers around it
    classes: int  # of each categorical
    depth: int  # of the convolutions
    units: int  # layers of the heads
    latents: int = 32
    blocks: int = 8


SIZES = {
    "tiny": DreamerSize(256, 48, 4, 4, 48, latents=16),
    "1m": DreamerSize(512, 64, 4, 4, 64),
    "12m": DreamerSize(2048, 256, 16, 16, 256),
}


def trunc_normal_(weight: Tensor, fan_in: int, scale: float = 1.0) -> None:
    """Normal with deviation `scale`/sqrt(fan_in) after it was cut at two deviations."""
    std = 1.1368 * scale / math.sqrt(fan_in)  # cutting takes 12% of the deviation
    if scale == 0.0:
        nn.init.zeros_(weight)
    else:
        nn.init.trunc_normal_(weight, std=std, a=-2.0 * std, b=2.0 * std)


class RMSNorm(nn.Module):
    """x / rms(x), scaled; no shift and no mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.scale.shape, self.scale, 1e-4)


class Dense(nn.Module):
    """Linear, normalised, SiLU."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim)
        trunc_normal_(self.linear.weight, in_dim)
        nn.init.zeros_(self.linear.bias)
        self.norm = RMSNorm(out_dim)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.linear(x)))


class Head(nn.Module):
    """Dense layers and a linear output that starts at `out_scale` times the usual size."""

    def __init__(
        self, in_dim: int, units: int, layers: int, out_dim: int, out_scale: float = 1.0
    ) -> None:
        super().__init__()
        widths = [in_dim] + [units] * layers
        pairs = itertools.pairwise(widths)
        self.layers = nn.Sequential(*(Dense(*pair) for pair in pairs))
        self.out = nn.Linear(widths[-1], out_dim)
        trunc_normal_(self.out.weight, widths[-1], out_scale)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.layers(x))
        return out


class BlockLinear(nn.Module):
    """A linear map of its own for each block: (blocks, rows, in) to (blocks, rows, out)."""

    def __init__(self, blocks: int, in_dim: int, out_dim: int, fan_in: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(blocks, in_dim, out_dim))
        self.bias = nn.Parameter(torch.zeros(blocks, 1, out_dim))
        trunc_normal_(self.weight, fan_in)

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class LatentState(NamedTuple):
    """Where a world model is: (..., deter) and (..., latents, classes), one class each."""

    deter: Tensor
    stoch: Tensor

    @property
    def features(self) -> Tensor:
        """What heads look at."""
        return torch.cat([self.deter, self.stoch.flatten(-2)], -1)

    def at(self, index: Any) -> LatentState:
        """Some of the states, by an index of the leading axes."""
        return LatentState(self.deter[index], self.stoch[index])

    def detach(self) -> LatentState:
        return LatentState(self.deter.detach(), self.stoch.detach())


class RSSM(nn.Module):
    """Recurrent state-space model: a block-GRU that remembers, and categoricals that are drawn.

    The prior is what it expects of a state before it sees it, the posterior after; both are
    (..., latents, classes) probabilities. At `is_first` state and previous action count as zero,
    so that episodes can follow one another in a sequence.

    A sequence is a chain of small kernels, whose number is its time on a GPU: whatever does not
    wait for the state (actions, observations, random numbers) is worked on for all steps at once.
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
        """What `recur` takes of actions."""
        acted: Tensor = self.from_action(action / action.detach().abs().clamp(min=1.0))
        return acted

    def recur(self, state: LatentState, acted: Tensor) -> Tensor:
        """(rows, deter) the next deterministic state."""
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
        """Of (rows, deter) states; `looked` is `from_embed` of what is seen."""
        hidden = torch.addmm(looked, deter, self.posterior_linear.weight.t())
        return self._probs(self.posterior_out(F.silu(self.posterior_norm(hidden))))

    def _probs(self, logits: Tensor) -> Tensor:
        logits = logits.reshape(*logits.shape[:-1], self.size.latents, self.size.classes)
        return torch.lerp(torch.softmax(logits, -1), self.uniform, UNIMIX)

    def imagine(self, state: LatentState, action: Tensor, wait: Tensor) -> LatentState:
        """One step without an observation; `wait` is for `drawn`."""
        deter = self.recur(state, self.read_action(action))
        return LatentState(deter, drawn(self.prior(deter), wait))

    def see_all(
        self, state: LatentState, action: Tensor, is_first: Tensor, embed: Tensor, noise: Tensor
    ) -> tuple[LatentState, Tensor, Tensor]:
        """A sequence of T steps; the second axis of what goes in and comes out is time.

        `action[:, t]` is the one before the observation t, `noise` is uniform. States,
        posteriors and priors.
        """
        going = (~is_first).to(embed.dtype).unsqueeze(-1)
        acted, looked = self.read_action(action * going), self.from_embed(embed)
        wait = waits(noise)
        states, posteriors = [], []
        for t in range(embed.shape[1]):
            deter = self.recur(going_on(state, going[:, t]), acted[:, t])
            posterior = self.posterior(deter, looked[:, t])
            state = LatentState(deter, drawn(posterior, wait[:, t]))
            states.append(state)
            posteriors.append(posterior)
        deter, stoch = (torch.stack(part, 1) for part in zip(*states, strict=True))
        return LatentState(deter, stoch), torch.stack(posteriors, 1), self.prior(deter)


def going_on(state: LatentState, going: Tensor) -> LatentState:
    """A state as the next moment takes it: zero where `going`, (rows, 1), is 0."""
    return LatentState(state.deter * going, state.stoch * going.unsqueeze(-1))


def one_hot(index: Tensor, classes: int) -> Tensor:
    """As torch's, which asks the host whether all classes exist."""
    return index.unsqueeze(-1) == torch.arange(classes, device=index.device)


def waits(noise: Tensor) -> Tensor:
    """Exponential times of uniform noise in [0, 1), for `drawn`."""
    return -torch.log(noise.clamp(min=torch.finfo(noise.dtype).tiny))


def drawn(probs: Tensor, wait: Tensor) -> Tensor:
    """One-hot draws with the gradient of the probabilities.

    The first to happen of events with these rates: device work of fixed shape, which
    multinomial is not.
    """
    chosen = (probs / wait).argmax(-1, keepdim=True)
    hard = torch.zeros_like(probs).scatter_(-1, chosen, 1.0)
    return hard + (probs - probs.detach())


# --- observations ----------------------------------------------------------------------------


def symlog(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x|): large numbers small, small ones as they are."""
    return torch.sign(x) * torch.log1p(x.abs())


def symexp(x: Tensor) -> Tensor:
    """What `symlog` came from."""
    return torch.sign(x) * torch.expm1(x.abs())


class VectorEncoder(nn.Module):
    """Dense layers on symlog vectors."""

    def __init__(self, obs_dim: int, size: DreamerSize) -> None:
        super().__init__()
        widths = [obs_dim, size.units, size.units, size.units]
        pairs = itertools.pairwise(widths)
        self.layers = nn.Sequential(*(Dense(*pair) for pair in pairs))
        self.out_dim = size.units

    def forward(self, obs: Tensor) -> Tensor:
        out: Tensor = self.layers(symlog(obs))
        return out


class VectorDecoder(nn.Module):
    """Vectors from features, in symlog space."""

    def __init__(self, feature_dim: int, obs_dim: int, size: DreamerSize) -> None:
        super().__init__()
        self.head = Head(feature_dim, size.units, 3, obs_dim)

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.head(features)
        return out

    def loss(self, features: Tensor, obs: Tensor) -> Tensor:
        """Squared error in symlog space, summed over components."""
        error: Tensor = self(features) - symlog(obs)
        return error.square().sum(-1)


def image_stages(height: int, width: int) -> int:
    """How often a picture is halved until a side is at most 7 pixels; refused where it cannot."""
    stages = 0
    sides = height, width
    while min(sides) >= 2 * SMALLEST_MAP:
        if sides[0] % 2 or sides[1] % 2:
            break
        sides = sides[0] // 2, sides[1] // 2
        stages += 1
    if not stages or min(sides) >= 2 * SMALLEST_MAP or stages > len(IMAGE_CHANNELS):
        fitting = "each side a power of two from 8 to 64, or such a number times 3 up to 96"
        raise EnvironmentSetupError(
            f"the world model cannot take images of {height}x{width} pixels; resize them to "
            f"{fitting}, such as 64x64"
        )
    return stages


class ChannelNorm(RMSNorm):
    """`RMSNorm` over the channels of a picture."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(-3, -1)).movedim(-1, -3)


def _convolution(in_channels: int, out_channels: int) -> nn.Conv2d:
    layer = nn.Conv2d(in_channels, out_channels, 5, padding=2)
    trunc_normal_(layer.weight, in_channels * 25)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def _channels(size: DreamerSize, stages: int) -> list[int]:
    return [size.depth * factor for factor in IMAGE_CHANNELS[-stages:]]


class PictureEncoder(nn.Module):
    """Convolutions with pooling over (..., channels, height, width) numbers in [0, 1].

    Here as in the decoder a pixel's channels lie side by side in memory, which is how a GPU's
    convolutions want them and what the norm sums over.
    """

    def __init__(self, channels: int, height: int, width: int, size: DreamerSize) -> None:
        super().__init__()
        stages = image_stages(height, width)
        widths = [channels, *_channels(size, stages)]
        pairs = list(itertools.pairwise(widths))
        self.convolutions = nn.ModuleList(_convolution(*pair) for pair in pairs)
        self.norms = nn.ModuleList(ChannelNorm(out) for _, out in pairs)
        self.out_dim = widths[-1] * (height >> stages) * (width >> stages)

    def forward(self, pictures: Tensor) -> Tensor:
        leading = pictures.shape[:-3]
        x = pictures.reshape(-1, *pictures.shape[-3:]) - 0.5
        x = x.contiguous(memory_format=torch.channels_last)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.silu(norm(F.max_pool2d(convolution(x), 2)))
        return x.reshape(*leading, self.out_dim)


def enlarged(x: Tensor) -> Tensor:
    """Pictures of twice the sides, channels side by side; asks no host, sums in a fixed order."""
    count, channels, height, width = x.shape
    pixels = x.permute(0, 2, 3, 1)[:, :, None, :, None]
    twice = pixels.expand(count, height, 2, width, 2, channels)
    return twice.reshape(count, 2 * height, 2 * width, channels).permute(0, 3, 1, 2)


class PictureDecoder(nn.Module):
    """Pictures from features, numbers in [0, 1]."""

    def __init__(
        self, feature_dim: int, channels: int, height: int, width: int, size: DreamerSize
    ) -> None:
        super().__init__()
        stages = image_stages(height, width)
        widths = [*reversed(_channels(size, stages)), channels]
        self.start = (widths[0], height >> stages, width >> stages)
        self.linear = Dense(feature_dim, math.prod(self.start))
        pairs = list(itertools.pairwise(widths))
        self.convolutions = nn.ModuleList(_convolution(*pair) for pair in pairs)
        self.norms = nn.ModuleList(ChannelNorm(out) for _, out in pairs[:-1])

    def forward(self, features: Tensor) -> Tensor:
        leading = features.shape[:-1]
        x = self.linear(features).reshape(-1, *self.start)
        for i, convolution in enumerate(self.convolutions):
            x = convolution(enlarged(x))
            if i < len(self.norms):
                x = F.silu(self.norms[i](x))
        return torch.sigmoid(x).reshape(*leading, *x.shape[1:])

    def loss(self, features: Tensor, pictures: Tensor) -> Tensor:
        """Squared error summed over pixels."""
        error: Tensor = self(features) - pictures
        return error.square().sum((-3, -2, -1))


# --- numbers as distributions ----------------------------------------------------------------


def two_hot_bins(count: int = 255, limit: float = 20.0) -> Tensor:
    """(count,) values spread evenly in symlog space, exactly as many below zero as above."""
    if count % 2 == 0:
        raise ValueError(f"an odd number of bins has one at zero, got {count}")
    below = symexp(torch.linspace(-limit, 0.0, count // 2 + 1, dtype=torch.float64))
    return torch.cat([below, -below[:-1].flip(0)]).float()


class TwoHotHead(nn.Module):
    """A number as a distribution over fixed values; predicts exactly 0 at the start."""

    bins: Tensor

    def __init__(self, in_dim: int, units: int, layers: int) -> None:
        super().__init__()
        self.register_buffer("bins", two_hot_bins(), persistent=False)
        self.head = Head(in_dim, units, layers, self.bins.shape[0], out_scale=0.0)

    def forward(self, features: Tensor) -> Tensor:
        """(..., bins) log-probabilities."""
        return F.log_softmax(self.head(features), -1)

    def mean(self, log_probs: Tensor) -> Tensor:
        """What the distribution expects, summed so that equal probabilities give exactly 0."""
        terms = log_probs.exp() * self.bins
        middle = self.bins.shape[0] // 2
        pairs = terms[..., :middle] + terms[..., middle + 1 :].flip(-1)
        return pairs.sum(-1) + terms[..., middle]

    def loss(self, log_probs: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy to the two bins around each target."""
        return -(two_hot(target, self.bins) * log_probs).sum(-1)


def two_hot(x: Tensor, bins: Tensor) -> Tensor:
    """(..., bins) weights on the two bins around each number, whose mean is that number.

    Numbers outside the bins become the outermost one.
    """
    x = torch.minimum(torch.maximum(x, bins[0]), bins[-1]).contiguous()
    above = torch.searchsorted(bins, x, right=True).clamp(1, bins.shape[0] - 1)
    low, high = bins[above - 1], bins[above]
    share = (x - low) / (high - low)
    weights = torch.zeros(*x.shape, bins.shape[0], dtype=x.dtype, device=x.device)
    weights.scatter_(-1, (above - 1).unsqueeze(-1), (1.0 - share).unsqueeze(-1))
    return weights.scatter_(-1, above.unsqueeze(-1), share.unsqueeze(-1))


class ImaginedPolicy(Policy):
    """A policy on features: categorical with 1% of uniform, or a Gaussian around a tanh.

    Actions are as the world model takes them: one-hot for Discrete, and numbers for Box that
    the environment's map clips to [-1, 1].
    """

    LEAST_STD, MOST_STD = 0.1, 1.0

    def __init__(self, in_dim: int, units: int, action_dim: int, discrete: bool) -> None:
        super().__init__()
        self.discrete, self.action_dim = discrete, action_dim
        outputs = action_dim if discrete else 2 * action_dim
        self.head = Head(in_dim, units, 3, outputs, out_scale=0.01)

    def probs(self, features: Tensor) -> Tensor:
        """(..., actions) of a Discrete policy."""
        probs = torch.softmax(self.head(features), -1)
        return (1.0 - UNIMIX) * probs + UNIMIX / self.action_dim

    def gaussian(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of a Box policy."""
        mean, raw = torch.split(self.head(features), self.action_dim, -1)
        std = (self.MOST_STD - self.LEAST_STD) * torch.sigmoid(raw + 2.0) + self.LEAST_STD
        return torch.tanh(mean), std

    def noise(self, source: NoiseSource, *shape: int) -> Tensor:
        """What `draw` needs for (*shape,) actions."""
        draw = source.uniform if self.discrete else source.normal
        return draw(*shape, self.action_dim)

    def draw(self, features: Tensor, noise: Tensor) -> Tensor:
        """Random actions, without gradient."""
        with torch.no_grad():
            if self.discrete:
                return drawn(self.probs(features), waits(noise))
            mean, std = self.gaussian(features)
            return mean + std * noise

    def sample(self, features: Tensor) -> Tensor:
        shape = *features.shape[:-1], self.action_dim
        rand = torch.rand if self.discrete else torch.randn
        return self.draw(features, rand(shape, device=features.device))

    def mode(self, features: Tensor) -> Tensor:
        if self.discrete:
            best = self.probs(features).argmax(-1)
            return one_hot(best, self.action_dim).to(features.dtype)
        return self.gaussian(features)[0]

    def log_prob_and_entropy(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        if self.discrete:
            log_probs = self.probs(features).log()
            return (log_probs * action).sum(-1), -(log_probs.exp() * log_probs).sum(-1)
        mean, std = self.gaussian(features)
        z = (action - mean) / std
        constant = 0.5 * math.log(2.0 * math.pi)
        log_prob = (-0.5 * z.square() - std.log() - constant).sum(-1)
        return log_prob, (std.log() + constant + 0.5).sum(-1)


class NoiseSource(Protocol):
    """Where random numbers come from."""

    def normal(self, *shape: int) -> Tensor: ...
    def uniform(self, *shape: int) -> Tensor: ...
