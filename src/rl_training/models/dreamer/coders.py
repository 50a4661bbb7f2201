"""Encoders and decoders for vector and image observations."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.experiment.errors import EnvironmentSetupError
from rl_training.models.dreamer.layers import (
    Dense,
    DreamerSize,
    Head,
    RMSNorm,
    product,
    trunc_normal_,
    widened,
)

SMALLEST_MAP = 4
"""Side of the smallest feature map."""
IMAGE_CHANNELS = (2, 3, 4, 4)
"""Channels of the convolutions, in multiples of the model's depth."""


def symlog(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x|): compresses large numbers and is near the identity for small ones."""
    return torch.sign(x) * torch.log1p(x.abs())


def symexp(x: Tensor) -> Tensor:
    """The inverse of `symlog`."""
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
    """Maps features to vectors in symlog space."""

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
    """How often an image is halved until a side has at most 7 pixels; other sizes are refused."""
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
            f"env_id: the world model cannot take images of {height}x{width} pixels; resize them "
            f"to {fitting}, such as 64x64"
        )
    return stages


class ChannelNorm(RMSNorm):
    """`RMSNorm` over the channels of an image."""

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


class PixelEncoder(nn.Module):
    """Convolutions with pooling over (..., channels, height, width) numbers in [0, 1].

    Memory is channels-last, here and in the decoder: convolutions on a GPU are faster with it,
    and the norm sums over channels.
    """

    def __init__(self, channels: int, height: int, width: int, size: DreamerSize) -> None:
        super().__init__()
        stages = image_stages(height, width)
        widths = [channels, *_channels(size, stages)]
        pairs = list(itertools.pairwise(widths))
        self.convolutions = nn.ModuleList(_convolution(*pair) for pair in pairs)
        self.norms = nn.ModuleList(ChannelNorm(out) for _, out in pairs)
        self.out_dim = widths[-1] * (height >> stages) * (width >> stages)

    def forward(self, images: Tensor) -> Tensor:
        leading = images.shape[:-3]
        x = images.reshape(-1, *images.shape[-3:]) - 0.5
        x = x.contiguous(memory_format=torch.channels_last)
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            assert isinstance(convolution, nn.Conv2d)
            if i == 0 and x.is_cuda:
                pooled = halving(convolution, x)
            else:
                pooled = F.max_pool2d(product(convolution, x), 2)
            x = F.silu(norm(pooled))
        return x.reshape(*leading, self.out_dim)


class JoinedEncoder(nn.Module):
    """An image and other numbers, (..., pixels + numbers), each by an encoder of its own."""

    def __init__(self, image: tuple[int, int, int], numbers: int, size: DreamerSize) -> None:
        super().__init__()
        self.image, self.numbers = image, numbers
        self.pixel_encoder = PixelEncoder(*image, size)
        self.vector_encoder = VectorEncoder(numbers, size)
        self.out_dim = self.pixel_encoder.out_dim + self.vector_encoder.out_dim

    def forward(self, joined: Tensor) -> Tensor:
        image, numbers = split_joined(joined, self.image)
        return torch.cat([self.pixel_encoder(image), self.vector_encoder(numbers)], -1)


def split_joined(joined: Tensor, image: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """(..., channels, height, width) pixels and (..., numbers) from both in one row."""
    pixels = math.prod(image)
    return joined[..., :pixels].reshape(*joined.shape[:-1], *image), joined[..., pixels:]


def _taps(x: Tensor) -> Tensor:
    """(2, 3, 5): which of 5 taps at an even and an odd place of a doubled row meet which of 3
    places of the row itself."""
    phase, place, tap = (torch.arange(count, device=x.device) for count in (2, 3, 5))
    return ((phase[:, None, None] + tap) // 2 == place[:, None]).to(x.dtype)


def halving(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """The convolution, 5 by 5, of images with even sides, and the maxima of its blocks of four
    pixels; channels-last.

    Blocks of four pixels become one with four times the channels, so that the four places of an
    output block are channels of one convolution of 3 by 3. With three colours a GPU's convolutions
    are slow: on an H200 that of the 12 channels, gradient included, takes a quarter of their time.
    On a processor it is not faster.
    """
    assert layer.bias is not None
    weight = layer.weight
    outputs, inputs, _, _ = weight.shape
    count, _, height, width = x.shape
    blocks = x.permute(0, 2, 3, 1).reshape(count, height // 2, 2, width // 2, 2, inputs)
    blocks = blocks.permute(0, 1, 3, 2, 4, 5).flatten(3).permute(0, 3, 1, 2)
    phase, place, half, tap = (torch.arange(n, device=x.device) for n in (2, 3, 2, 5))
    met = phase[:, None, None, None] + tap == 2 * place[:, None, None] + half[:, None]
    taps = met.to(weight.dtype)  # (2, 3, 2, 5): which tap meets which half of which block
    kernels = torch.einsum("aypk,bxql,oikl->abopqiyx", taps, taps, weight)
    kernels = kernels.reshape(4 * outputs, 4 * inputs, 3, 3)
    found = F.conv2d(blocks.to(weight.dtype), kernels, layer.bias.repeat(4), padding=1)
    places = found.permute(0, 2, 3, 1).reshape(count, height // 2, width // 2, 4, outputs)
    return places.amax(-2).permute(0, 3, 1, 2)


def enlarging(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """The convolution, 5 by 5, of images that are doubled pixel by pixel; channels-last.

    Two of the taps in a row meet the same pixel, so it is four convolutions of 3 by 3 of the images
    themselves, one for every place of four pixels, with a third of the work.
    """
    assert layer.bias is not None
    weight, taps = layer.weight, _taps(x)
    outputs, _, _, _ = weight.shape
    wide = torch.einsum("ayk,bxl,oikl->aboiyx", taps, taps, weight.to(x.dtype))
    kernels = wide.flatten(0, 2).to(weight.dtype)
    found = F.conv2d(x.to(weight.dtype), kernels, layer.bias.repeat(4), padding=1)
    count, _, height, width = found.shape
    places = found.permute(0, 2, 3, 1).reshape(count, height, width, 2, 2, outputs)
    places = places.permute(0, 1, 3, 2, 4, 5)
    return places.reshape(count, 2 * height, 2 * width, outputs).permute(0, 3, 1, 2)


class PixelDecoder(nn.Module):
    """Maps features to images with values in [0, 1]."""

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
        x = x.contiguous(memory_format=torch.channels_last)
        for i, convolution in enumerate(self.convolutions):
            assert isinstance(convolution, nn.Conv2d)
            x = enlarging(convolution, x)
            if i < len(self.norms):
                x = F.silu(self.norms[i](x))
        return torch.sigmoid(widened(x)).reshape(*leading, *x.shape[1:])

    def loss(self, features: Tensor, images: Tensor) -> Tensor:
        """Squared error, summed over pixels."""
        error: Tensor = self(features) - images
        return error.square().sum((-3, -2, -1))


class JoinedDecoder(nn.Module):
    """Maps features to an image and other numbers, (..., pixels + numbers)."""

    def __init__(
        self, feature_dim: int, image: tuple[int, int, int], numbers: int, size: DreamerSize
    ) -> None:
        super().__init__()
        self.image = image
        self.pixel_decoder = PixelDecoder(feature_dim, *image, size)
        self.vector_decoder = VectorDecoder(feature_dim, numbers, size)

    def forward(self, features: Tensor) -> Tensor:
        pixels = self.pixel_decoder(features).flatten(-3)
        return torch.cat([pixels, symexp(self.vector_decoder(features))], -1)

    def loss(self, features: Tensor, joined: Tensor) -> Tensor:
        """The sum of both losses."""
        image, numbers = split_joined(joined, self.image)
        found = self.pixel_decoder.loss(features, image)
        return found + self.vector_decoder.loss(features, numbers)
