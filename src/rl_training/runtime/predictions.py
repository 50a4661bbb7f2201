"""Open-loop predictions of a world model next to the truth, as a video."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms.roles import SequenceLearner
from rl_training.envs.global_random import untouched_randomness
from rl_training.experiment.sinks import Video
from rl_training.replay.sequences import SequenceReplay

SEGMENTS = 6
SHOWN = 5
"""Observed steps; for the others the model gets only the actions."""
LEAST_HEIGHT = 48
"""Minimum height of an image in the video in pixels; smaller ones are magnified."""


def predictions(
    algorithm: SequenceLearner, replay: SequenceReplay, length: int, seed: int
) -> dict[str, float | Video]:
    """The mean squared error on stored segments, and for images a video.

    `length` is that of the sequences of updates; shorter segments are used while the replay has
    none of that length.

    The rows of the video are truth, model and error; the colour of its border shows whether the
    model observes the truth. The global generators keep their state.
    """
    steps = min(length, replay.shortest - 1)
    with untouched_randomness():
        chance = torch.rand(2, SEGMENTS, generator=torch.Generator().manual_seed(seed))
        device = algorithm.update_count.device
        batch = replay.sample(SEGMENTS, steps, chance.to(device))
        expected = algorithm.open_loop(batch, min(SHOWN, steps - 1)).obs
    truth = algorithm.seen(batch.obs)
    error = (expected - truth)[:, min(SHOWN, steps - 1) :].square().mean()
    report: dict[str, float | Video] = {"model/open_loop_error": float(error)}
    if replay.spaces.is_image:
        report["model/open_loop"] = prediction_video(
            algorithm.images(truth).cpu(),
            algorithm.images(expected).cpu(),
            min(SHOWN, steps - 1),
        )
    return report


def prediction_video(truth: Tensor, expected: Tensor, shown: int) -> Video:
    """(B, T, C, H, W) numbers in [0, 1] side by side: truth, model and error from top to bottom."""
    error = (expected - truth + 1.0) / 2.0
    rows = torch.stack([truth, expected, error])  # (3, B, T, C, H, W)
    if rows.shape[3] != 3:  # neither stacked frames nor a single channel are colours
        rows = rows[:, :, :, -1:].expand(-1, -1, -1, 3, -1, -1)
    scale = max(1, LEAST_HEIGHT // rows.shape[-2])
    rows = rows.repeat_interleave(scale, -1).repeat_interleave(scale, -2)
    rows = F.pad(rows, (1, 1, 1, 1))
    kinds, _, steps, channels, height, _ = rows.shape
    frames = rows.permute(2, 0, 4, 1, 5, 3).reshape(steps, kinds * height, -1, channels).clone()
    # green while it observes, red while it predicts
    frames[:shown, :, :2, 1], frames[shown:, :, :2, 0] = 1.0, 1.0
    return Video((frames.clamp(0.0, 1.0) * 255).round().numpy().astype(np.uint8))
