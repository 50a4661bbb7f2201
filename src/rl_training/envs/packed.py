"""One image beside other parts as a row of bytes, so that it is stored as images are.

A frame's bytes are the float32 numbers of its other parts, its pixels, and zeros up to a multiple
of four, by which each row of numbers begins where float32 may.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as kinds
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rl_training.envs.contract import WrongAnswerError, all_finite
from rl_training.envs.layout import Layout, Packing, Part, packing_of, value_at
from rl_training.envs.pixels import as_bytes
from rl_training.experiment.errors import DataError, EnvironmentSetupError


def packed_rows(
    layout: Layout, stack: int, observation: Any, asked: str
) -> tuple[NDArray[np.uint8], bool]:
    """(B, bytes), or (B, stack, bytes) for stacked frames, of parts by name, and whether it is one
    observation alone."""
    packing = packing_of(layout)
    assert packing is not None
    leading = (stack,) if stack > 1 else ()
    counts: dict[int | None, str] = {}
    numbers: list[NDArray[np.float32]] = []
    image: NDArray[Any] = np.zeros(0)
    for part in layout.parts:
        values = value_at(observation, part, asked)
        shape = (*leading, *(part.pixels or part.shape))
        extra = values.ndim - len(shape)
        if extra not in (0, 1) or values.shape[extra:] != shape:
            raise DataError(
                f"{asked}: '{part.name}' must have the shape {shape}, or several of them, got "
                f"{values.shape}"
            )
        counts[len(values) if extra else None] = part.name
        flat = values.reshape(-1, *(part.pixels or part.shape))
        if not part.pixels:
            numbers.append(part.encode(flat, asked))
        else:
            image = as_bytes(flat, f"{asked}: the image '{part.name}'")
    if len(counts) > 1:
        raise DataError(f"{asked}: the parts have different numbers of rows; give one per row each")
    found = np.concatenate([np.zeros((len(image), 0), np.float32), *numbers], 1)
    if not all_finite(found):
        raise DataError(f"{asked}: the observation holds NaN, infinity or a number too large")
    rows = packed(packing, found, image)
    (count,) = counts
    return rows.reshape((1 if count is None else count, *leading, packing.size)), count is None


def unpacked_rows(
    packing: Packing, rows: NDArray[np.uint8]
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """(..., numbers) and (..., *pixels) of (..., bytes)."""
    leading, end = rows.shape[:-1], 4 * packing.numbers
    numbers = np.ascontiguousarray(rows[..., :end]).view(np.float32)
    image = rows[..., end : end + math.prod(packing.pixels)].reshape(*leading, *packing.pixels)
    return numbers, image


def packed(packing: Packing, numbers: NDArray[Any], image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(B, bytes) of (B, numbers) and (B, *pixels)."""
    rows = np.zeros((len(image), packing.size), np.uint8)
    start = 4 * packing.numbers
    rows[:, :start] = np.ascontiguousarray(numbers, np.float32).view(np.uint8)
    rows[:, start : start + math.prod(packing.pixels)] = image.reshape(len(image), -1)
    return rows


def frame_space(env: gym.Env[Any, Any], stack: int) -> gym.Space[Any]:
    """The space of one frame, below the wrapper that stacks them."""
    if stack == 1:
        return env.observation_space
    inner: Any = env
    while "stack_size" not in vars(inner):
        inner = inner.env
    below: gym.Space[Any] = inner.env.observation_space
    if batch_space(below, stack) != env.observation_space:
        raise EnvironmentSetupError(
            "a wrapper above the frame stack changes its observations; stack the frames last"
        )
    return below


class PackedObservation(gym.ObservationWrapper[NDArray[np.uint8], Any, Any]):
    """Observations of one image and other parts, as bytes."""

    def __init__(
        self,
        env: gym.Env[Any, Any],
        env_id: str,
        parts: tuple[Part, ...],
        number_bounds: tuple[NDArray[Any], NDArray[Any]],
        stack: int,
    ) -> None:
        """`number_bounds` are those of the numbers beside the image."""
        super().__init__(env)
        self.observation_layout, self.stack = Layout(parts), stack
        self.number_bounds = number_bounds
        packing = packing_of(self.observation_layout)
        assert packing is not None
        shape = (stack, packing.size) if stack > 1 else (packing.size,)
        self.observation_space = kinds.Box(0, 255, shape, np.uint8)
        self.asked = f"env_id: environment '{env_id}'"

    def observation(self, observation: Any) -> NDArray[np.uint8]:
        try:
            rows, _ = packed_rows(self.observation_layout, self.stack, observation, self.asked)
        except DataError as error:
            what = str(error).removeprefix(f"{self.asked}: ")
            raise WrongAnswerError(f"returned a wrong observation: {what}") from None
        frame: NDArray[np.uint8] = rows[0]
        return frame
