"""What a world model sees: vectors, images, or an image beside other numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_training.experiment.errors import EnvironmentSetupError
from rl_training.models.dreamer.coders import (
    JoinedDecoder,
    JoinedEncoder,
    PixelDecoder,
    PixelEncoder,
    VectorDecoder,
    VectorEncoder,
    split_joined,
    symexp,
)
from rl_training.models.dreamer.layers import DreamerSize
from rl_training.models.encoders import unpacked

ObservationEncoder = PixelEncoder | VectorEncoder | JoinedEncoder
ObservationDecoder = PixelDecoder | VectorDecoder | JoinedDecoder


class Sight:
    """From observations as they are stored to the encoder's input, which is the decoder's target.

    That is (..., numbers) for vectors, (..., channels, height, width) in [0, 1] for images, and
    (..., pixels + numbers) for both.
    """

    def __init__(self, spaces: Any, name: str) -> None:
        if spaces.layout is not None and spaces.layout.embeddings:
            raise EnvironmentSetupError(
                f"env_kwargs.choice_embedding: {name} predicts its observations and takes choices "
                "one-hot; remove this key"
            )
        self.packing = spaces.packing
        self.numbers: int = spaces.obs_dim
        self.frame: tuple[int, ...] = ()
        self.image: tuple[int, int, int] | None = None
        """Channels, height and width."""
        if not spaces.is_image:
            return
        stacked = self.packing is not None and spaces.frame_stack > 1
        self.frame = spaces.image_shape if self.packing is None else self.packing.pixels
        if len(self.frame) == 4 or stacked:
            what = "observations" if stacked else "colour images"
            raise EnvironmentSetupError(
                f"env_id: {name} takes single images, but the task stacks {spaces.frame_stack} "
                f"{what}; it has a memory of its own, so remove the frame stack (Atari: "
                "env_kwargs.frame_stack=1)"
            )
        self.numbers = 0 if self.packing is None else self.packing.numbers
        self.image = _channels_first(self.frame)

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Of the encoder's input."""
        if self.image is None:
            return (self.numbers,)
        if not self.numbers:
            return self.image
        channels, height, width = self.image
        return (channels * height * width + self.numbers,)

    def encoder(self, size: DreamerSize) -> ObservationEncoder:
        if self.image is None:
            return VectorEncoder(self.numbers, size)
        if not self.numbers:
            return PixelEncoder(*self.image, size)
        return JoinedEncoder(self.image, self.numbers, size)

    def decoder(self, features: int, size: DreamerSize) -> ObservationDecoder:
        if self.image is None:
            return VectorDecoder(features, self.numbers, size)
        if not self.numbers:
            return PixelDecoder(features, *self.image, size)
        return JoinedDecoder(features, self.image, self.numbers, size)

    def seen(self, obs: Tensor) -> Tensor:
        if self.image is None:
            return obs
        if self.packing is None:
            return self._pixels(obs)
        numbers, image = unpacked(obs, self.frame, self.numbers)
        pixels = self._pixels(image)
        return torch.cat([pixels.flatten(-3), numbers], -1) if self.numbers else pixels

    def _pixels(self, image: Tensor) -> Tensor:
        if len(self.frame) == 2:
            image = image.unsqueeze(-3)
        elif self.frame[-1] < self.frame[0]:
            image = image.movedim(-1, -3)
        return image.float() / 255.0

    def expected(self, decoded: Tensor) -> Tensor:
        """What a decoder says, in the units of `seen`."""
        return symexp(decoded) if self.image is None else decoded

    def images(self, seen: Tensor) -> Tensor:
        """(..., channels, height, width) of what `seen` gave, where there are images."""
        if self.image is None or not self.numbers:
            return seen
        return split_joined(seen, self.image)[0]


def _channels_first(frame: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of an image of two axes, or three with the colours last or
    first."""
    if len(frame) == 2:
        return 1, frame[0], frame[1]
    if frame[-1] < frame[0]:
        return frame[2], frame[0], frame[1]
    return frame[0], frame[1], frame[2]
