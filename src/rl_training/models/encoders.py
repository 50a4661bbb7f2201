"""Encoders: networks that map images to features."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.execution import is_batched
from rl_training.experiment.errors import ConfigError
from rl_training.models.mlp import MLP, Activation

NATURE_CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, kernel and stride of Mnih et al. 2015, for images of at least 36 pixels."""
SMALL_CONVOLUTIONS = ((32, 3, 1), (64, 3, 2), (64, 3, 1))
SMALLEST = 9
"""For smaller images, down to 9 pixels."""


class Encoder(nn.Module):
    """Maps observations to (..., out_dim) features."""

    out_dim: int


class ImageEncoder(Encoder):
    """ReLU convolutions over uint8 images; (..., *image_shape) to (..., out_dim).

    Frames of a stack, the first axis where `frame_stack` > 1, are channels, and so are a
    frame's colours, which come first or last in it: whichever of the two axes is shorter.
    """

    def __init__(self, image_shape: Sequence[int], frame_stack: int = 1) -> None:
        super().__init__()
        self.image_shape = tuple(image_shape)
        frame = self.image_shape[1:] if frame_stack > 1 else self.image_shape
        self.channels_last = len(frame) == 3 and frame[-1] < frame[0]
        height, width = frame[:2] if self.channels_last or len(frame) == 2 else frame[1:]
        colours = math.prod(frame) // (height * width)
        self.stacked = (frame_stack, colours, height, width)
        if min(height, width) < SMALLEST:
            raise ConfigError(
                f"env_id: images of {height}x{width} pixels are too small for convolutions, which "
                f"need {SMALLEST}; enlarge them, or give them as vectors of float32"
            )
        layers = NATURE_CONVOLUTIONS if min(height, width) >= 36 else SMALL_CONVOLUTIONS
        channels = frame_stack * colours
        self.convolutions = nn.ModuleList()
        for out_channels, kernel, stride in layers:
            self.convolutions.append(nn.Conv2d(channels, out_channels, kernel, stride))
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            channels = out_channels
        self.out_dim = channels * height * width

    def forward(self, images: Tensor) -> Tensor:
        leading = images.shape[: images.dim() - len(self.image_shape)]
        stack, colours, height, width = self.stacked
        if self.channels_last:
            images = images.reshape(-1, stack, height, width, colours).movedim(-1, 2)
        # a CPU learns from a stack of 84x84 images in two thirds of the time with channels last;
        # of batched agents the order of the axes is vmap's
        alone_on_cpu = images.device.type == "cpu" and not is_batched()
        order = torch.channels_last if alone_on_cpu else torch.preserve_format
        x = images.reshape(-1, stack * colours, height, width)
        x = x.to(self.dtype, memory_format=order) / 255.0
        for layer in self.convolutions:
            x = F.relu(layer(x), inplace=True)
        return x.reshape(*leading, self.out_dim)

    @property
    def dtype(self) -> torch.dtype:
        return self.convolutions[0].weight.dtype  # type: ignore[return-value]


def unpacked(obs: Tensor, pixels: Sequence[int], numbers: int) -> tuple[Tensor, Tensor]:
    """(..., numbers) float32 and (..., *pixels) from (..., bytes) that hold both.

    Exported graphs, which cannot read bytes as numbers, give float32 numbers, followed by
    the pixels, instead.
    """
    leading = obs.shape[:-1]
    if obs.dtype == torch.uint8:
        end = 4 * numbers
        found = obs[..., :end].contiguous().view(torch.float32)
    else:
        end, found = numbers, obs[..., :numbers]
    image = obs[..., end : end + math.prod(pixels)].reshape(*leading, *pixels)
    return found, image


class PartsEncoder(Encoder):
    """Convolutions over an image, beside a layer on the other parts of the observation.

    Observations are (..., bytes), or (..., frames, bytes) where `frame_stack` > 1; see `unpacked`.
    """

    NUMBER_FEATURES = 64

    def __init__(self, pixels: Sequence[int], numbers: int, frame_stack: int = 1) -> None:
        super().__init__()
        self.pixels, self.numbers, self.stack = tuple(pixels), numbers, frame_stack
        stacked = (frame_stack, *pixels) if frame_stack > 1 else self.pixels
        self.image = ImageEncoder(stacked, frame_stack)
        self.out_dim = self.image.out_dim
        self.layer: nn.Linear | None = None
        if numbers:
            self.layer = nn.Linear(frame_stack * numbers, self.NUMBER_FEATURES)
            self.out_dim += self.NUMBER_FEATURES

    def forward(self, obs: Tensor) -> Tensor:
        numbers, image = unpacked(obs, self.pixels, self.numbers)
        features: Tensor = self.image(image)
        if self.layer is None:
            return features
        if self.stack > 1:
            numbers = numbers.flatten(-2)
        others = F.relu(self.layer(numbers.to(features.dtype)))
        return torch.cat([features, others], -1)


class ChoiceEncoder(Encoder):
    """Learned vectors in place of one-hot choices; all other numbers stay as they are.

    `embeddings` are (start, choices, width) of each choice in vectors of `obs_dim` numbers.
    """

    def __init__(self, obs_dim: int, embeddings: Sequence[tuple[int, int, int]]) -> None:
        super().__init__()
        self.obs_dim, self.places = obs_dim, [tuple(place) for place in embeddings]
        # of length 1 in expectation, as a one-hot choice is
        self.tables = nn.ParameterList(
            nn.Parameter(torch.randn(count, width) / math.sqrt(width))
            for _, count, width in self.places
        )
        self.out_dim = obs_dim + sum(width - count for _, count, width in self.places)

    def forward(self, obs: Tensor) -> Tensor:
        found, end = [], 0
        for (start, count, _), table in zip(self.places, self.tables, strict=True):
            found += [obs[..., end:start], obs[..., start : start + count] @ table]
            end = start + count
        return torch.cat([*found, obs[..., end:]], -1)


class EncodedMLP(MLP):
    """An MLP on the features of an encoder."""

    def __init__(
        self,
        encoder: Encoder,
        hidden_sizes: Sequence[int],
        out_dim: int,
        activation: Activation = "relu",
        layer_norm: bool = False,
    ) -> None:
        super().__init__(encoder.out_dim, hidden_sizes, out_dim, activation, layer_norm)
        self.encoder = encoder

    def forward(self, obs: Tensor) -> Tensor:
        return super().forward(obs if self._known is not None else self.encoder(obs))

    def _hidden(self, obs: Tensor) -> Tensor:
        return super()._hidden(self.encoder(obs))


class LastHidden(Encoder):
    """The last hidden layer of another network, which stays the owner of its parameters."""

    def __init__(self, net: MLP) -> None:
        super().__init__()
        self.out_dim = net.layers[-1].in_features  # type: ignore[assignment]
        self._nets = (net,)  # in a tuple it is no submodule

    def forward(self, obs: Tensor) -> Tensor:
        return self._nets[0].hidden(obs)


Observed = int | Encoder
"""What a network looks at: vectors of a length, or what an encoder of its own makes of them."""
