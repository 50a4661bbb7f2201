"""A list of episodes, each a mapping of its arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from rl_training.data.dataset import ARRAY_NAMES, GROUPS
from rl_training.data.keys import ALIASES, named_apart
from rl_training.data.readers import read_arrays
from rl_training.data.validation import RawTransitions
from rl_training.experiment.errors import DataError

FLAGS = ("terminations", "truncations")


def holds_episodes(source: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    """Whether `source` is a list of mappings."""
    if not isinstance(source, Sequence) or isinstance(source, (str, bytes)):
        return False
    return bool(source) and all(isinstance(episode, Mapping) for episode in source)


def read_episodes(episodes: Sequence[Mapping[str, Any]], needs_rewards: bool) -> RawTransitions:
    """Episodes one after the other.

    Observations may have one row more than actions, the final observation. How an episode ended is
    said by one flag for all of it, `terminated` or `truncated`, or by one for each row.
    """
    columns: dict[str, list[NDArray[Any]]] = {}
    lengths = []
    for number, episode in enumerate(episodes):
        arrays = _episode(episode, number)
        lengths.append(len(arrays["actions"]))
        if columns and set(arrays) != set(columns):
            odd = min(set(arrays) ^ set(columns))
            raise DataError(
                f"episode {number}: array '{odd}' is in some episodes and not in others; give the "
                "same arrays for each"
            )
        for name, array in arrays.items():
            columns.setdefault(name, []).append(array)
    for name, parts in columns.items():
        widths = {part.shape[1:] for part in parts}
        if len(widths) > 1:
            raise DataError(
                f"episodes: array '{name}' has rows of the shapes "
                f"{' and '.join(map(str, sorted(widths)))}; give rows of one shape"
            )
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    raw = read_arrays(joined, "episodes", needs_rewards=needs_rewards)
    ends = np.cumsum(lengths) - 1
    return RawTransitions(
        label=raw.label, name=raw.name, arrays=raw.arrays, keys=raw.keys, episode_ends=ends
    )


def _episode(episode: Mapping[str, Any], number: int) -> dict[str, NDArray[Any]]:
    """The arrays of one episode by the package's names, each with a row per action."""
    named = {alias: name for name in ARRAY_NAMES for alias in (name, *ALIASES[name])}
    found: dict[str, Any] = {}
    for key, value in named_apart(episode).items():
        owner, _, part = key.partition(".")
        if part and owner in named:
            found[f"{named[owner]}.{part}"] = np.asarray(value)
            continue
        if key not in named and key not in (GROUPS, "group"):
            raise DataError(
                f"episode {number}: array '{key}' is not known; give {', '.join(ARRAY_NAMES)} or "
                "group"
            )
        found[named.get(key, GROUPS)] = np.asarray(value)
    seen_in = [key for key in found if key.partition(".")[0] == "observations"]
    for name, keys in (("observations", seen_in), ("actions", ["actions"])):
        if not keys or any(key not in found or not found[key].ndim for key in keys):
            raise DataError(f"episode {number}: it has no array '{name}'; add it")
    steps = len(found["actions"])
    if not steps:
        raise DataError(f"episode {number}: it has no step; leave it out")
    for key in seen_in:
        if len(found[key]) == steps + 1 and f"next_{key}" not in found:
            seen = found[key]
            found[key], found[f"next_{key}"] = seen[:-1], seen[1:]
    if not any(name in found for name in FLAGS):
        raise DataError(
            f"episode {number}: nothing says how it ended; add terminated=True where the task "
            "ended, or truncated=True where it was cut"
        )
    for name in FLAGS:
        flag = found.get(name, np.asarray(False))
        if not flag.ndim:  # of the whole episode
            found[name] = np.zeros(steps, np.bool_)
            found[name][-1] = bool(flag)
    if GROUPS in found and not found[GROUPS].ndim:
        found[GROUPS] = np.repeat(found[GROUPS], steps)
    for name, array in found.items():
        if len(array) != steps:
            raise DataError(
                f"episode {number}: array '{name}' has {len(array)} rows and actions {steps}; give "
                "one for each action"
            )
    return found
