"""Spaces of a task that has no environment: from the configuration, or else from the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.validation import (
    RawTransitions,
    check_lengths,
    finite,
    numbers,
    observed_width,
)
from rl_training.envs.layout import Layout, Part, packing_of
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import ActionSpace, SpacesConfig
from rl_training.experiment.errors import DataError

MOST_INFERRED_ACTIONS = 100_000
"""Whole numbers further apart count something and are no choice among Discrete actions."""


def spaces_without_environment(
    sources: Sequence[RawTransitions],
    given: SpacesConfig | None,
    widen_constants: bool = True,
    ranges: Sequence[ActionRange] | None = None,
) -> tuple[Spaces, str | None]:
    """The spaces of all data of `sources`, and a sentence about where the actions come from.

    What the configuration says counts first, then what a source says of itself, then the data,
    or `ranges` where those are larger than `sources`.
    Without `widen_constants`, bounds that none of them shows are refused.
    """
    given = given or SpacesConfig()
    known = next((raw.spaces for raw in sources if raw.spaces is not None), None)
    if given.actions is not None:
        spaces = _configured(sources[0], given.actions)
        note = f"action space as dataset.spaces says: {describe_bounds(spaces)}"
    elif known is not None:
        spaces, note = known, None
    else:
        spaces = infer_spaces(ranges or [action_range(raw) for raw in sources], widen_constants)
        taken = "smallest and largest values" if spaces.is_box else "numbers"
        note = (
            f"action space inferred from the data: {describe_bounds(spaces)}, the {taken} that "
            "occur; set dataset.spaces.actions where the task allows more"
        )
    widths = {raw.mask_width for raw in sources}
    if len(widths) > 1:
        named = next(raw.label for raw in sources if raw.mask_width != sources[0].mask_width)
        raise DataError(
            f"{named}: its array 'action_mask' is not like that of {sources[0].label}; give all "
            "data masks of one width, or none"
        )
    if sources[0].mask_width:
        # a mask says how many actions there are, also where the data take few of them
        spaces = replace(spaces, has_mask=True, action_dim=sources[0].mask_width)
    layout = layout_of_config(given) or sources[0].layout
    labels = (given.actions and given.actions.labels) or sources[0].action_labels
    if spaces.is_discrete and labels:
        spaces = replace(spaces, action_labels=tuple(labels))
    shape, stack = sources[0].image_shape, given.frame_stack or sources[0].frame_stack
    if shape and not spaces.is_image:
        spaces = replace(spaces, image_shape=shape, frame_stack=stack)
    wide = 0 if layout is None else layout.width + sources[0].mask_width
    if layout is not None and (wide == spaces.obs_dim or packing_of(layout) is not None):
        if given.choice_embedding is not None:
            layout = layout.embedded(given.choice_embedding)
        spaces = replace(spaces, layout=layout)
    if given.choice_embedding is not None and (layout is None or not layout.embeddings):
        raise DataError(
            "dataset.spaces.choice_embedding: the observations have no categories or choices to "
            "embed; remove this key"
        )
    if given.obs_dim is not None:  # data of another width are refused when they are checked
        spaces = replace(spaces, obs_dim=given.obs_dim)
    return spaces, note


def spaces_section(spaces: Spaces) -> dict[str, Any]:
    """The section `dataset.spaces` that says what `spaces` does."""
    if spaces.is_discrete:
        actions: dict[str, Any] = {
            "kind": "discrete",
            "n": spaces.action_dim,
            "start": spaces.action_start,
            "labels": list(spaces.action_labels) or None,
        }
    elif spaces.is_box:
        low, high = list(spaces.action_low), list(spaces.action_high)
        actions = {"kind": "box", "low": low, "high": high}
    else:
        starts = list(spaces.action_starts)
        actions = {"kind": "multi_discrete", "n": list(spaces.action_choices), "start": starts}
    if spaces.action_shape is not None:
        actions["shape"] = list(spaces.action_shape)
    layout = None if spaces.layout is None else spaces.layout.to_list()
    section = {"obs_dim": spaces.obs_dim, "actions": actions, "layout": layout}
    if spaces.is_image:
        section |= {"image_shape": list(spaces.image_shape), "frame_stack": spaces.frame_stack}
    return {**section, "action_mask": spaces.has_mask}


def stored_spaces(given: SpacesConfig | None) -> Spaces | None:
    """The spaces that a section says in full; None where the data have to say the rest."""
    if given is None or given.obs_dim is None or given.actions is None:
        return None
    actions = given.actions
    if actions.kind == "discrete":
        spaces = replace(_discrete(given.obs_dim, actions), has_mask=given.action_mask)
    elif actions.kind == "multi_discrete":
        spaces = _multi_discrete(given.obs_dim, actions)
    elif isinstance(actions.low, tuple) and isinstance(actions.high, tuple):
        spaces = _box(given.obs_dim, actions, len(actions.low))
    else:
        return None
    layout, stack = layout_of_config(given), given.frame_stack or 1
    if not given.image_shape:
        return replace(spaces, layout=layout)
    return replace(spaces, layout=layout, image_shape=given.image_shape, frame_stack=stack)


def layout_of_config(given: SpacesConfig) -> Layout | None:
    """The layout that a configuration says."""
    if given.layout is None:
        return None
    return Layout(tuple(Part(**part.model_dump()) for part in given.layout))


def _configured(first: RawTransitions, actions: ActionSpace) -> Spaces:
    width = observed_width(first)
    if actions.kind == "discrete":
        return _discrete(width, actions)
    array = numbers(first, "actions")
    components = math.prod(array.shape[1:])
    if actions.kind == "box":
        spaces = _box(width, actions, components)
        if array.ndim != 2 and actions.shape is None:
            spaces = replace(spaces, action_shape=array.shape[1:])
    else:
        spaces = _multi_discrete(width, actions)
    if spaces.action_dim != components:
        what = "bounds" if spaces.is_box else "choices"
        raise DataError(
            f"dataset.spaces.actions: {what} of {spaces.action_dim} components are given, but "
            f"array '{first.key('actions')}' of {first.label} has {components}; give one for each"
        )
    return spaces


def _discrete(width: int, actions: ActionSpace) -> Spaces:
    assert isinstance(actions.n, int)
    assert isinstance(actions.start, int)
    labels = actions.labels or ()
    return Spaces(width, "discrete", actions.n, action_start=actions.start, action_labels=labels)


def _multi_discrete(width: int, actions: ActionSpace) -> Spaces:
    choices, starts = actions.parts()
    return Spaces(
        width,
        "multi_discrete",
        len(choices),
        action_choices=choices,
        action_starts=starts,
        action_shape=actions.shape,
    )


def _box(width: int, actions: ActionSpace, components: int) -> Spaces:
    bounds = actions.bounds(components)
    low, high = (tuple(float(x) for x in side) for side in zip(*bounds, strict=True))
    return Spaces(width, "box", len(bounds), low, high, action_shape=actions.shape)


@dataclass(frozen=True)
class ActionRange:
    """What a source, or some rows of it, shows of the spaces."""

    raw: RawTransitions  # for messages
    width: int  # of the observations
    discrete: bool  # one choice per row
    whole: bool  # whole numbers alone
    shape: tuple[int, ...]  # of an action
    low: NDArray[Any]  # smallest of each component
    high: NDArray[Any]

    def merged(self, other: ActionRange) -> ActionRange:
        """Of the rows of both, which are of one source."""
        _refuse_unlike([self, other])
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return replace(self, whole=self.whole and other.whole, low=low, high=high)


def column_range(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The smallest and the largest value of each column, which NumPy finds faster in rows."""
    columns = np.ascontiguousarray(values.T)
    return columns.min(1), columns.max(1)


def action_range(raw: RawTransitions) -> ActionRange:
    """The smallest and largest action of a source."""
    check_lengths(raw)
    width = observed_width(raw)
    array = numbers(raw, "actions")
    finite(raw, "actions", array)
    discrete, whole = looks_discrete(array), array.dtype.kind in "iub"
    flat = array.reshape(len(array), -1)
    values = flat if discrete or whole else flat.astype(np.float32, copy=False)
    kind = np.int64 if discrete or whole else np.float64
    low, high = (side.astype(kind) for side in column_range(values))
    return ActionRange(raw, width, discrete, whole, array.shape[1:], low, high)


def _refuse_unlike(ranges: Sequence[ActionRange]) -> None:
    first = ranges[0]
    for other in ranges:
        if other.discrete != first.discrete:
            raise DataError(
                f"{other.raw.label}: array 'actions' is "
                f"{'continuous' if first.discrete else 'discrete'}, unlike that of "
                f"{first.raw.label}; mix only data of one task"
            )
        if not first.discrete and (other.shape != first.shape or 0 in first.shape):
            raise DataError(
                f"{other.raw.label}: array '{other.raw.key('actions')}' has actions of the shape "
                f"{other.shape}, unlike that of {first.raw.label}, {first.shape}; give all actions "
                "one shape"
            )


def infer_spaces(ranges: Sequence[ActionRange], widen_constants: bool) -> Spaces:
    """Spaces that hold all data: bounds are the smallest and largest action."""
    first = ranges[0]
    _refuse_unlike(ranges)
    width, key = first.width, first.raw.key("actions")
    if first.discrete:
        low = min(0, *(int(found.low[0]) for found in ranges))
        high = max(int(found.high[0]) for found in ranges)
        if high - low >= MOST_INFERRED_ACTIONS:
            raise DataError(
                f"{first.raw.label}: array '{key}' holds whole numbers from {low:,} "
                f"to {high:,}, too many for Discrete actions; store continuous actions as float32 "
                "in the shape (rows, components), or give the environment"
            )
        return Spaces(width, "discrete", high - low + 1, action_start=low)
    outer = None if len(first.shape) == 1 else first.shape
    if all(found.whole for found in ranges):
        return _inferred_parts(ranges, outer)
    low_bounds = np.min([found.low.astype(np.float64) for found in ranges], 0)
    high_bounds = np.max([found.high.astype(np.float64) for found in ranges], 0)
    constant = low_bounds == high_bounds
    if constant.any() and not widen_constants:
        component = int(np.flatnonzero(constant)[0])
        raise DataError(
            f"{first.raw.label}: component {component} of array '{key}' is "
            f"{low_bounds[component]:g} throughout, which shows no bounds to act within; give "
            "them, such as dataset.spaces.actions: {kind: box, low: -1, high: 1}"
        )
    # A component that never changes still needs a range to be mapped from.
    low_bounds, high_bounds = low_bounds - constant, high_bounds + constant
    return Spaces(
        width,
        "box",
        int(low_bounds.shape[0]),
        tuple(float(x) for x in low_bounds),
        tuple(float(x) for x in high_bounds),
        action_shape=outer,
    )


def _inferred_parts(ranges: Sequence[ActionRange], shape: tuple[int, ...] | None) -> Spaces:
    """MultiDiscrete actions with as many choices as occur, from 0."""
    first, width = ranges[0].raw, ranges[0].width
    lows = np.min([found.low for found in ranges], 0).clip(max=0)
    highs = np.max([found.high for found in ranges], 0)
    part = int((highs - lows).argmax())
    if highs[part] - lows[part] >= MOST_INFERRED_ACTIONS:
        raise DataError(
            f"{first.label}: part {part} of array '{first.key('actions')}' holds whole numbers "
            f"from {lows[part]:,} to {highs[part]:,}, too many for MultiDiscrete actions; store "
            "continuous actions as float32, or give the environment"
        )
    return Spaces(
        width,
        "multi_discrete",
        len(lows),
        action_choices=tuple(
            int(high) - int(low) + 1 for low, high in zip(lows, highs, strict=True)
        ),
        action_starts=tuple(int(low) for low in lows),
        action_shape=shape,
    )


def describe_bounds(spaces: Spaces) -> str:
    """Discrete(3) from 0, or Box(2,) with its bounds."""
    if spaces.is_discrete:
        return f"Discrete({spaces.action_dim}) from {spaces.action_start}"
    if not spaces.is_box:
        return f"MultiDiscrete({list(spaces.action_choices)}) from {list(spaces.action_starts)}"
    low = ", ".join(f"{x:.4g}" for x in spaces.action_low)
    high = ", ".join(f"{x:.4g}" for x in spaces.action_high)
    shape = spaces.inner_action_shape if spaces.action_shape is None else spaces.action_shape
    return f"Box{shape} from [{low}] to [{high}]"


def looks_discrete(array: NDArray[Any]) -> bool:
    flat = array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1)
    if array.dtype.kind in "iub":
        return flat
    return array.ndim == 1 and bool(np.equal(array, np.floor(array)).all())
