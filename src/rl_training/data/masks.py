"""Action masks of data: columns of a source that become the last components of observations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.keys import MASK, NEXT_MASK
from rl_training.data.validation import RawTransitions, check_lengths
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import DataError


def with_masks(raw: RawTransitions) -> RawTransitions:
    """The source with its masks, if any, at the end of its observations.

    What is allowed at the next observation is what the next row allows; where an episode was
    cut, only the source's `next_action_mask` can say it.
    """
    if MASK not in raw.arrays:
        if NEXT_MASK in raw.arrays:
            raise DataError(
                f"{raw.label}: array '{NEXT_MASK}' has no array '{MASK}' beside it; add it, or "
                f"remove '{NEXT_MASK}'"
            )
        return raw
    check_lengths(raw)
    if raw.image_shape:
        raise DataError(
            f"{raw.label}: array '{MASK}' comes with images, but masks need vector observations; "
            "remove it"
        )
    arrays: dict[str, NDArray[Any]] = dict(raw.arrays)
    mask = _flags(raw, MASK)
    given = _flags(raw, NEXT_MASK) if NEXT_MASK in arrays else None
    if given is not None and given.shape != mask.shape:
        raise DataError(
            f"{raw.label}: array '{NEXT_MASK}' has shape {given.shape}, unlike that of '{MASK}', "
            f"{mask.shape}; give both one entry per action"
        )
    _refuse_forbidden(raw, mask)
    following = np.concatenate([mask[1:], mask[-1:]])
    if "next_observations" in arrays:
        ended = np.asarray(arrays["terminations"]).reshape(-1).astype(bool)
        cut = np.asarray(arrays["truncations"]).reshape(-1).astype(bool) & ~ended
        cut[-1] |= not ended[-1]
        if given is None and cut.any():
            raise DataError(
                f"{raw.label}: row {int(np.flatnonzero(cut)[0]) + raw.first_row} ends an episode "
                "that goes on "
                f"unrecorded, and nothing says which actions are allowed there; add the array "
                f"'{NEXT_MASK}', or leave out 'next_observations', so that such rows are dropped"
            )
        following = following if given is None else given
        following[ended] = 1.0  # nothing is done there
        arrays["next_observations"] = _joined(raw, "next_observations", following)
    arrays["observations"] = _joined(raw, "observations", mask)
    for name in (MASK, NEXT_MASK):
        arrays.pop(name, None)
    return replace(raw, arrays=arrays, mask_width=mask.shape[1])


def check_masks(raw: RawTransitions, spaces: Spaces) -> None:
    """Refuse masks of another task than `spaces`, and data without those that it has."""
    if raw.mask_width and not spaces.has_mask:
        raise DataError(
            f"{raw.label}: there is an array '{MASK}', but the task gives no masks; remove it, or "
            f"let the environment give info['{MASK}']"
        )
    if raw.mask_width and raw.mask_width != spaces.action_dim:
        raise DataError(
            f"{raw.label}: array '{MASK}' is {raw.mask_width} wide, but the task has "
            f"{spaces.action_dim} actions; give one entry per action"
        )
    if spaces.has_mask and not raw.mask_width:
        width = int(np.shape(raw.arrays["observations"])[-1])
        if width != spaces.obs_dim:
            raise DataError(
                f"{raw.label}: the task has action masks, but there is no array '{MASK}'; add it"
            )


def split_masks(spaces: Spaces, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Arrays of a data set as a file holds them: masks apart from the observations."""
    if not spaces.has_mask:
        return dict(arrays)
    parts = dict(arrays)
    n = spaces.action_dim
    for name, mask in (("observations", MASK), ("next_observations", NEXT_MASK)):
        parts[mask] = arrays[name][:, -n:] > 0.5
        parts[name] = arrays[name][:, :-n]
    return parts


def _flags(raw: RawTransitions, name: str) -> NDArray[np.float32]:
    array = raw.arrays[name]
    key = raw.key(name)
    if array.ndim != 2 or array.shape[1] < 2 or array.dtype.kind not in "fiub":
        raise DataError(
            f"{raw.label}: array '{key}' has shape {array.shape} and dtype {array.dtype}, expected "
            "(rows, actions) of bool; give one entry per action"
        )
    wrong = (array != 0) & (array != 1)
    if wrong.any():
        row = int(np.nonzero(wrong)[0][0])
        raise DataError(
            f"{raw.label}: array '{key}' holds {array[row][wrong[row]][0]} at row "
            f"{row + raw.first_row}, expected "
            "only 0 and 1; store it as bool"
        )
    empty = ~(array != 0).any(1)
    if name == MASK and empty.any():
        raise DataError(
            f"{raw.label}: array '{key}' allows no action at row "
            f"{int(np.flatnonzero(empty)[0]) + raw.first_row}; "
            "allow at least the one that was taken"
        )
    return array.astype(np.float32)


def _refuse_forbidden(raw: RawTransitions, mask: NDArray[np.float32]) -> None:
    """Refuse logged actions that their own mask forbids."""
    taken = np.asarray(raw.arrays["actions"]).reshape(-1)
    if len(taken) != len(mask) or taken.dtype.kind not in "iu":
        raise DataError(
            f"{raw.label}: array '{raw.key(MASK)}' is for Discrete actions, but array "
            f"'{raw.key('actions')}' holds others; remove the mask"
        )
    start = raw.spaces.action_start if raw.spaces is not None else 0
    inside = (taken >= start) & (taken < start + mask.shape[1])
    rows = np.arange(len(taken))
    fits = inside & (mask[rows, np.clip(taken - start, 0, mask.shape[1] - 1)] > 0.5)
    if not fits.all():
        row = int(np.flatnonzero(~fits)[0])
        raise DataError(
            f"{raw.label}: the action {int(taken[row])} at row {row + raw.first_row} is one that "
            "array "
            f"'{raw.key(MASK)}' forbids; repair the mask or remove that row"
        )


def _joined(raw: RawTransitions, name: str, mask: NDArray[np.float32]) -> NDArray[Any]:
    seen = np.asarray(raw.arrays[name])
    if seen.ndim != 2:  # refused with its own sentence where it is checked
        return seen
    return np.concatenate([seen, mask], axis=1)
