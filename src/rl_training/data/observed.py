"""Observations as sources have them: images, several arrays by name, choices as whole numbers.

Arrays of a Dict observation have names with dots, such as `observations.camera`. They become the
vectors, or the bytes beside an image, that the environment's own observations become.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.validation import RawTransitions, check_lengths
from rl_training.envs.layout import Layout, Part, packing_of
from rl_training.envs.packed import packed_rows, unpacked_rows
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import DataError, did_you_mean

SEEN = ("observations", "next_observations")


def with_observations(
    raw: RawTransitions, spaces: Spaces | None, layout: Layout | None = None
) -> RawTransitions:
    """The source with one array of observations, as `spaces` or a configured `layout` has them,
    or else as its arrays show."""
    parts = {name: _parts_of(raw.arrays, name) for name in SEEN}
    layout = spaces.layout if spaces is not None else layout or raw.layout
    if not parts["observations"] and not parts["next_observations"]:
        return _alone(raw, spaces, layout)
    check_lengths(raw)
    if spaces is not None and layout is None:
        raise DataError(
            f"{raw.label}: its observations are several arrays, "
            f"{_listed(parts['observations'])}, but the task has {spaces.describe()}; give one "
            "array 'observations', or another env_id"
        )
    layout = layout or _inferred(raw, parts["observations"])
    packing = packing_of(layout)
    stack = spaces.frame_stack if spaces is not None and packing is not None else 1
    arrays = {name: array for name, array in raw.arrays.items() if _owner(name) not in SEEN}
    for name in SEEN:
        if parts[name] or name == "observations":
            arrays[name] = _joined(raw, name, layout, stack)
    if packing is None:
        return replace(raw, arrays=arrays, layout=layout)
    shape = arrays["observations"].shape[1:]
    return replace(raw, arrays=arrays, layout=layout, image_shape=shape, frame_stack=stack)


def split_observations(
    spaces: Spaces, arrays: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Arrays of a data set as a file holds them: the parts beside an image under their names."""
    layout, packing = spaces.layout, spaces.packing
    if layout is None or packing is None:
        return dict(arrays)
    found = dict(arrays)
    for name in SEEN:
        numbers, pixels = unpacked_rows(packing, found.pop(name))
        first = 0
        for part in layout.parts:
            key = f"{name}.{part.name}"
            if part.pixels:
                found[key] = pixels
                continue
            found[key] = part.decode(numbers[..., first : first + part.width])
            first += part.width
    return found


def _alone(raw: RawTransitions, spaces: Spaces | None, layout: Layout | None) -> RawTransitions:
    """The source with the one array that it has: images, or what one part's layout encodes."""
    first = raw.arrays["observations"]
    if first.dtype == np.uint8 and first.ndim in (3, 4, 5):
        stack = spaces.frame_stack if spaces is not None else 1 if first.ndim < 5 else 0
        return replace(raw, image_shape=first.shape[1:], frame_stack=stack or first.shape[1])
    if layout is None or len(layout.parts) > 1 or layout.parts[0].path or layout.parts[0].pixels:
        return raw
    part, arrays = layout.parts[0], dict(raw.arrays)
    if first.shape[1:] == (part.width,) and part.shape != (part.width,):
        return raw  # the vectors that stand for it
    for name in SEEN:
        if name in arrays:
            arrays[name] = part.encode(arrays[name], f"{raw.label}: array '{raw.key(name)}'")
    return replace(raw, arrays=arrays, layout=layout)


def _owner(name: str) -> str:
    return name.partition(".")[0]


def _parts_of(arrays: Iterable[str], name: str) -> list[str]:
    return [key for key in arrays if key.startswith(f"{name}.")]


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(f"'{key}'" for key in keys)


def _inferred(raw: RawTransitions, keys: list[str]) -> Layout:
    parts = []
    for key in keys:
        array = raw.arrays[key]
        image = array.dtype == np.uint8 and array.ndim in (3, 4)
        place = (key.partition(".")[2],)
        shape = array.shape[1:]
        parts.append(Part(place, pixels=shape) if image else Part(place, shape))
    images = [part.name for part in parts if part.pixels]
    if len(images) > 1:
        raise DataError(
            f"{raw.label}: there are {len(images)} images, {' and '.join(images)}, in an "
            "observation; give one beside other parts"
        )
    return Layout(tuple(parts))


def _joined(raw: RawTransitions, name: str, layout: Layout, stack: int) -> NDArray[Any]:
    """All parts of the observations in one array."""
    known = {f"{name}.{part.name}" for part in layout.parts}
    present = _parts_of(raw.arrays, name)
    for key in present:
        if key not in known:
            raise DataError(
                f"{raw.label}: array '{key}' is not part of the observations"
                f"{did_you_mean(key, known)}; they have {_listed(sorted(known))}"
            )
    missing = sorted(known - set(present))
    if missing:
        raise DataError(
            f"{raw.label}: missing key '{missing[0]}'{did_you_mean(missing[0], present)}; add it, "
            "because every part of an observation is needed"
        )
    places = [replace(part, path=(f"{name}.{part.name}",)) for part in layout.parts]
    named = Layout(tuple(places))
    if packing_of(layout) is not None:
        return packed_rows(named, stack, raw.arrays, raw.label)[0]
    return named.named_rows(raw.arrays, raw.label)[0]
