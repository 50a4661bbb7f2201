"""From arrays as a source gives them to a data set that can be trained on.

Every refusal is one sentence that names the source, the array under the name it has
there, the first offending row where there is one, and how to fix it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.dataset import (
    GROUPS,
    TransitionDataset,
    episode_end_flags,
    rows_at_once,
)
from rl_training.envs.layout import Layout
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import DataError

ACTION_TOLERANCE = 1e-4
SEAM_TOLERANCE = 1e-5
NO_END = "no row is marked as an episode's end; the whole is one episode, cut"
OPEN_END = "the last episode has no end; it is marked as truncated"


@dataclass(frozen=True)
class RawTransitions:
    """Arrays of one source, not yet checked."""

    label: str  # how messages name the source
    name: str
    arrays: Mapping[str, NDArray[Any]]  # by the package's names
    keys: Mapping[str, str] = field(default_factory=dict)  # the package's name -> the source's
    notes: tuple[str, ...] = ()
    spaces: Spaces | None = None  # where the source knows them
    env_id: str | None = None
    episode_ends: NDArray[np.int64] | None = None  # last rows, where the source keeps episodes
    mask_width: int = 0  # of the action masks that its observations end with, see data/masks.py
    layout: Layout | None = None  # of the observations, where the source has several parts
    image_shape: tuple[int, ...] = ()  # of observations that are images
    frame_stack: int = 1
    action_labels: tuple[str, ...] = ()  # names of Discrete actions
    first_row: int = 0  # where these rows begin in the source, if they are a piece of it
    is_piece: bool = False  # of a source, some of whose pieces may come to nothing

    def key(self, array_name: str) -> str:
        return self.keys.get(array_name, array_name)


def build_dataset(raw: RawTransitions, spaces: Spaces) -> TransitionDataset:
    """Check every array, in itself and against `spaces`, and close the episodes."""
    check_lengths(raw)
    notes = list(raw.notes)
    observations = _observed(raw, "observations", spaces)
    actions = _actions(raw, spaces)
    has_rewards = "rewards" in raw.arrays
    if has_rewards:
        rewards = finite(raw, "rewards", _column(raw, "rewards"))
    else:
        rewards = np.full(len(observations), np.nan, np.float32)
        notes.append("there are no rewards")
    terminations, truncations = _flags(raw, notes)
    if raw.episode_ends is not None:
        _close_episodes(raw.episode_ends, terminations, truncations, notes)
    flagged = bool(episode_end_flags(terminations, truncations).any())
    if not flagged:
        truncations[-1] = True
        notes.append(NO_END)
    elif not (terminations[-1] or truncations[-1]):
        truncations[-1] = True
        notes.append(OPEN_END)
    if "next_observations" in raw.arrays:
        following = _observed(raw, "next_observations", spaces)
        rows: NDArray[np.bool_] | slice = slice(None)
    else:
        following, truncations, kept = _successors(raw, observations, terminations, truncations)
        dropped = len(observations) - int(kept.sum())
        rows = kept if dropped else slice(None)
        if dropped:
            notes.append(
                f"without next_observations the last row of a truncated episode has no "
                f"successor: {dropped} rows dropped"
            )
    dataset = TransitionDataset(
        observations=observations[rows],
        actions=actions[rows],
        rewards=rewards[rows],
        next_observations=following[rows],
        terminations=terminations[rows],
        truncations=truncations[rows],
        name=raw.name,
        spaces=spaces,
        has_whole_episode=flagged,
        env_id=raw.env_id,
        has_rewards=has_rewards,
        groups=raw.arrays[GROUPS][rows] if GROUPS in raw.arrays else None,
    )
    _check_groups(raw, dataset)
    # successors that were taken from the next row are no seams
    seams = unmarked_seams(dataset) if "next_observations" in raw.arrays else 0
    if seams:
        notes.append(
            f"{seams} rows are not followed by their next observation though no episode end "
            "is marked there: terminations or truncations are missing, or rows are shuffled"
        )
    object.__setattr__(dataset, "notes", tuple(notes))
    return dataset


def unmarked_seams(dataset: TransitionDataset) -> int:
    """Rows inside an episode whose next observation is not the following row's."""
    inside = ~episode_end_flags(dataset.terminations, dataset.truncations)[:-1]
    at_once = rows_at_once(dataset.observations)
    count = 0
    for start in range(0, len(inside), at_once):
        stop = min(start + at_once, len(inside))
        following = dataset.next_observations[start:stop]
        present = dataset.observations[start + 1 : stop + 1]
        if dataset.spaces.is_image:
            jump = following != present
        else:
            jump = np.abs(following - present) > SEAM_TOLERANCE * (1.0 + np.abs(present))
        count += int(np.count_nonzero(jump.reshape(len(jump), -1).any(axis=1) & inside[start:stop]))
    return count


def _check_groups(raw: RawTransitions, dataset: TransitionDataset) -> None:
    """Refuse groups that are no labels, or that change inside an episode."""
    groups = dataset.groups
    if groups is None:
        return
    key = raw.key(GROUPS)
    if groups.ndim != 1 or groups.dtype.kind not in "iubUS":
        raise DataError(
            f"{raw.label}: array '{key}' must hold one label per row, whole numbers or text, got "
            f"{groups.dtype} in the shape {groups.shape}"
        )
    inside = ~episode_end_flags(dataset.terminations, dataset.truncations)[:-1]
    changes = np.flatnonzero((groups[1:] != groups[:-1]) & inside)
    if changes.size:
        raise DataError(
            f"{raw.label}: array '{key}' changes from {groups[changes[0]]} to "
            f"{groups[changes[0] + 1]} after row {changes[0] + raw.first_row}, inside an episode; "
            "mark the end of "
            "the episode there, or correct the array"
        )


# --- one array each --------------------------------------------------------------------------


def check_lengths(raw: RawTransitions) -> None:
    for name, array in raw.arrays.items():
        if array.ndim == 0:
            raise DataError(
                f"{raw.label}: array '{raw.key(name)}' is a single value; give one entry per row"
            )
    lengths = {raw.key(name): int(array.shape[0]) for name, array in raw.arrays.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise DataError(
            f"{raw.label}: arrays have unequal numbers of rows ({listed}); "
            "cut or repair them so that each has one entry per transition"
        )
    if next(iter(lengths.values())) == 0:
        raise DataError(f"{raw.label}: the arrays are empty; give at least one transition")


def numbers(raw: RawTransitions, name: str) -> NDArray[Any]:
    array = raw.arrays[name]
    if array.dtype.kind not in "fiub":
        raise DataError(
            f"{raw.label}: array '{raw.key(name)}' has dtype {array.dtype}, expected numbers; "
            "store it as float32 (or int64 for discrete actions, bool for flags)"
        )
    return array


def finite(raw: RawTransitions, name: str, array: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(array, dtype=np.float32)
    good = np.isfinite(result)
    if not good.all():
        where = tuple(int(axis[0]) for axis in np.nonzero(~good))
        kind = "NaN" if np.isnan(result[where]) else "infinity (as float32)"
        column = f", column {where[1]}" if len(where) > 1 else ""
        raise DataError(
            f"{raw.label}: array '{raw.key(name)}' holds {kind} at row "
            f"{where[0] + raw.first_row}{column}; "
            "repair the value or remove that episode"
        )
    return result


def _column(raw: RawTransitions, name: str) -> NDArray[Any]:
    array = numbers(raw, name)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(
            f"{raw.label}: array '{raw.key(name)}' has shape {array.shape}, expected "
            f"({array.shape[0]},); give one number per row"
        )
    return array


def vectors(raw: RawTransitions, name: str) -> NDArray[np.float32]:
    array = numbers(raw, name)
    if array.ndim != 2 or array.shape[1] == 0:
        if array.ndim == 1 and array.dtype.kind in "iu":
            fix = (
                "if these are indices of states, say how many there are, e.g. "
                "dataset.spaces.layout: [{choices: [16]}], because an index is no magnitude"
            )
        else:
            fix = f"reshape it, e.g. with .reshape({array.shape[0]}, -1)"
        raise DataError(
            f"{raw.label}: array '{raw.key(name)}' has shape {array.shape}, expected "
            f"(rows, width); {fix}"
        )
    return finite(raw, name, array)


def observed_width(raw: RawTransitions) -> int:
    """Numbers, or bytes of an image, in an observation of a source."""
    array = raw.arrays["observations"]
    if raw.image_shape:
        return math.prod(raw.image_shape)
    # Its values are checked later.
    return int((array if array.ndim == 2 else vectors(raw, "observations")).shape[1])


def _observed(raw: RawTransitions, name: str, spaces: Spaces) -> NDArray[Any]:
    """Observations as the task has them: vectors, or images as they are."""
    array, key = raw.arrays[name], raw.key(name)
    if spaces.is_image:
        if array.dtype != np.uint8 or array.shape[1:] != spaces.obs_shape:
            raise DataError(
                f"{raw.label}: array '{key}' holds {array.dtype} of the shape {array.shape[1:]} "
                f"per row, but the task has {spaces.named_observations()} of uint8; use data of "
                "this task, or store its images as they are"
            )
        return np.ascontiguousarray(array)
    found = vectors(raw, name)
    if found.shape[1] != spaces.obs_dim:
        raise DataError(
            f"{raw.label}: array '{key}' is {found.shape[1]} wide but the "
            f"environment's observations are {spaces.obs_dim} wide; use data of this "
            "environment or set env_id to the one the data come from"
        )
    return found


def _actions(raw: RawTransitions, spaces: Spaces) -> NDArray[Any]:
    array, key = numbers(raw, "actions"), raw.key("actions")
    if spaces.is_discrete:
        flat = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
        if flat.ndim == 1:
            finite(raw, "actions", flat)
        if flat.ndim != 1 or not np.equal(flat, np.floor(flat)).all():
            raise DataError(
                f"{raw.label}: array '{key}' holds continuous (Box) actions but the task has "
                f"{spaces.action_dim} discrete ones; use data of this task or another env_id"
            )
        last = spaces.action_start + spaces.action_dim - 1
        outside = (flat < spaces.action_start) | (flat > last)
        if outside.any():
            row = int(np.flatnonzero(outside)[0])
            raise DataError(
                f"{raw.label}: array '{key}' holds {int(flat[row])} at row {row + raw.first_row}, "
                "outside the "
                f"discrete actions {spaces.action_start}..{last}; repair or remove that row"
            )
        return np.ascontiguousarray(flat, dtype=np.int64)
    if spaces.action_shape is not None and array.shape[1:] == spaces.action_shape:
        array = array.reshape(len(array), spaces.action_dim)
    if array.ndim == 2 and array.shape[1] == spaces.action_dim and not spaces.is_box:
        return _parts(raw, array, spaces)
    # a table's columns of whole numbers are all that a log of doses may have
    if array.dtype.kind in "iub" and raw.layout is None and spaces.is_box:
        raise DataError(
            f"{raw.label}: array '{key}' holds integers ({array.dtype}), so discrete actions, but "
            f"the task has {spaces.action_dim} continuous (Box) action components; use data of "
            "this task, or store continuous actions as float32"
        )
    if array.ndim != 2 or array.shape[1] != spaces.action_dim:
        raise DataError(
            f"{raw.label}: array '{key}' has shape {array.shape}, expected "
            f"({array.shape[0]}, {spaces.action_dim}); reshape it or use data of this task"
        )
    values = finite(raw, "actions", array)
    low, high = np.asarray(spaces.action_low), np.asarray(spaces.action_high)
    outside = (values < low - ACTION_TOLERANCE) | (values > high + ACTION_TOLERANCE)
    if outside.any():
        row, column = (int(axis[0]) for axis in np.nonzero(outside))
        raise DataError(
            f"{raw.label}: array '{key}' holds {float(values[row, column]):g} at row "
            f"{row + raw.first_row}, "
            f"column {column}, outside the action space [{low[column]:g}, {high[column]:g}]; "
            "give actions in the environment's units, or clip them"
        )
    return values


def _parts(raw: RawTransitions, array: NDArray[Any], spaces: Spaces) -> NDArray[np.int64]:
    """MultiDiscrete actions, (N, parts)."""
    key = raw.key("actions")
    finite(raw, "actions", array)
    starts, counts = np.asarray(spaces.action_starts), np.asarray(spaces.action_choices)
    wrong = (array < starts) | (array >= starts + counts) | (array != np.floor(array))
    if wrong.any():
        row, part = (int(axis[0]) for axis in np.nonzero(wrong))
        last = starts[part] + counts[part] - 1
        raise DataError(
            f"{raw.label}: array '{key}' holds {array[row, part]:g} at row {row + raw.first_row}, "
            f"part {part}, "
            f"expected a whole number from {starts[part]} to {last}; repair or remove that row"
        )
    return np.ascontiguousarray(array, dtype=np.int64)


def _flags(raw: RawTransitions, notes: list[str]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    flags = []
    for name in ("terminations", "truncations"):
        array = _column(raw, name)
        wrong = (array != 0) & (array != 1)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise DataError(
                f"{raw.label}: array '{raw.key(name)}' holds {array[row]} at row "
                f"{row + raw.first_row}, expected "
                "only 0 and 1; store it as bool"
            )
        flags.append(array.astype(np.bool_))
    terminations, truncations = flags
    # Gymnasium's time limit gives both where a task ends on its last step.
    both = int(np.count_nonzero(terminations & truncations))
    if both:
        truncations &= ~terminations
        notes.append(
            f"{both} rows are marked as both terminated and truncated; the termination counts"
        )
    return terminations, truncations


def _close_episodes(
    ends: NDArray[np.int64],
    terminations: NDArray[np.bool_],
    truncations: NDArray[np.bool_],
    notes: list[str],
) -> None:
    """Truncate the episodes of a source that end without a flag."""
    open_ends = ends[~episode_end_flags(terminations, truncations)[ends]]
    if len(open_ends):
        truncations[open_ends] = True
        notes.append(f"{len(open_ends)} episodes have no end flag; marked as truncated")


def _successors(
    raw: RawTransitions,
    observations: NDArray[np.float32],
    terminations: NDArray[np.bool_],
    truncations: NDArray[np.bool_],
) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]:
    """Next observations, truncations and kept rows where the source has no successors.

    Inside an episode the successor is the next row. A terminated row keeps its own
    observation, which nothing reads. A truncated row would be bootstrapped from a state
    that is not in the data, so it goes, and the row before it becomes the cut.
    """
    following = observations.copy()
    following[:-1] = observations[1:]
    following[terminations] = observations[terminations]
    kept = ~truncations
    moved = np.zeros_like(truncations)
    # The row before may close another episode: then the truncated one had a single row.
    moved[:-1] = truncations[1:] & ~episode_end_flags(terminations, truncations)[:-1]
    if not kept.any() and not raw.is_piece:
        raise DataError(
            f"{raw.label}: no row has a successor, because next_observations is missing and "
            "every episode is one truncated row; add next_observations"
        )
    return following, moved, kept
