"""Observations as the networks' vector, as inputs of an exported policy. Needs no PyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rl_training.export.run_policy import Array, Part, Policy, State


class VectorPolicy:
    """An exported policy that is called with (B, ...) vectors or images, as evaluation does, and
    answers with flat actions."""

    def __init__(self, policy: Policy, rng: np.random.Generator | None = None) -> None:
        self.policy, self.rng = policy, rng

    def __call__(
        self, obs: Array, state: State | None = None, noise: State | None = None
    ) -> tuple[Array, State]:
        feeds = feeds_of(self.policy, obs)
        outputs = self.policy.run(feeds, state or None, self.rng, noise)
        action = outputs["action"]
        if self.policy.action["kind"] != "discrete":
            action = action.reshape(len(action), -1)
        return action, self.policy.next_state(outputs)


def as_vectors(policy: Policy, observation: Any) -> tuple[Array, bool] | None:
    """(B, ...) vectors that stand for parts and masks, or bytes that stand for an image beside
    other parts, and whether it was one; None where the parts are given."""
    first, alone = policy.seen[0], len(policy.seen) == 1
    packed = _packed(policy)
    if isinstance(observation, (Mapping, tuple)) or (alone and not first.chosen and not packed):
        return None
    try:
        rows = np.asarray(observation)
    except ValueError:  # lists of several lengths
        return None
    if packed is not None:
        if rows.dtype != np.uint8 or rows.shape[-len(packed) :] != packed:
            return None
        return rows.reshape(-1, *packed), rows.shape == packed
    width = sum(_width(part) for part in policy.seen)
    if rows.dtype.kind not in "fiub" or rows.ndim not in (1, 2) or rows.shape[-1] != width:
        return None
    if alone and not first.shape and rows.ndim == 1 and rows.dtype.kind in "iu":
        return None  # whole numbers are choices, one per row
    return rows.reshape(-1, width), rows.ndim == 1


def feeds_of(policy: Policy, rows: Array) -> State:
    """The inputs of the model that (B, width) vectors stand for, or (B, bytes) and
    (B, frames, bytes) of an image beside other parts; images alone are what they are."""
    first, packed = policy.seen[0], _packed(policy)
    if packed is None and len(policy.seen) == 1 and not first.chosen:
        return {first.name: np.ascontiguousarray(rows, first.dtype).reshape(-1, *first.shape)}
    frames = packed[0] if packed is not None and len(packed) > 1 else 1
    rows = rows.reshape(len(rows), frames, -1)
    image, at = rows, 0
    if packed is not None:
        end = 4 * sum(_width(part) for part in policy.seen if part.dtype != np.uint8) // frames
        rows, image = np.ascontiguousarray(rows[..., :end]).view(np.float32), rows[..., end:]
    found: State = {}
    for part in policy.seen:
        width = _width(part) // frames
        if packed is not None and part.dtype == np.uint8:
            piece = image[..., :width]
        else:
            piece = rows[..., at : (at := at + width)]
        piece = piece.reshape(len(rows), -1)
        if part.chosen:
            piece = _chosen(part, piece)
        found[part.name] = np.ascontiguousarray(piece, part.dtype).reshape(-1, *part.shape)
    return found


def _packed(policy: Policy) -> tuple[int, ...] | None:
    """The shape of the bytes that stand for an image beside other parts: (bytes,), or
    (frames, bytes) of stacked ones; None for other observations. See `envs.packed`."""
    images = [part for part in policy.seen if part.dtype == np.uint8 and part.path]
    if not images:
        return None
    entries = {entry["name"]: entry for entry in policy.contract["inputs"]}
    frames: int = entries[images[0].name].get("frame_stack", 1)
    pixels = _width(images[0]) // frames
    numbers = sum(_width(part) for part in policy.seen) // frames - pixels
    size = -(-(4 * numbers + pixels) // 4) * 4
    return (frames, size) if frames > 1 else (size,)


def _width(part: Part) -> int:
    if part.chosen:
        return int((part.last - part.first + 1).sum())
    return math.prod(part.shape)


def _chosen(part: Part, piece: Array) -> Array:
    """What was chosen, from numbers of which one in each choice is 1."""
    found: list[Any] = []
    for first, last in zip(part.first, part.last, strict=True):
        one_hot, piece = piece[:, : last - first + 1], piece[:, last - first + 1 :]
        if not ((one_hot == 1).sum(-1) == 1).all() or not ((one_hot == 0) | (one_hot == 1)).all():
            raise ValueError(f"'{part.name}' of a vector must be 1 for one choice, 0 for others")
        found.append(one_hot.argmax(-1) + first)
    return np.stack(found, -1)
