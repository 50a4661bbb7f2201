"""How observations of several parts, choices among them, lie in one vector.

Networks see vectors. A layout says what each of its numbers is, so that an observation as the
environment or a table gives it, by names, becomes the vector that the policy was trained on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.experiment.errors import DataError, did_you_mean
from rl_training.experiment.state import Stored

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Part:
    """One part of an observation: numbers, or choices that are written one-hot."""

    path: Path  # names and positions on the way to it; () for the whole observation
    shape: tuple[int, ...] = ()  # of what lies there
    choices: tuple[int, ...] = ()  # how many, for each number of a part that chooses
    starts: tuple[int, ...] = ()  # the smallest of each choice
    labels: tuple[str, ...] = ()  # names of the only choice's values
    pixels: tuple[int, ...] = ()  # shape of an image, which is no part of the vector
    embeddings: tuple[int, ...] = ()  # widths of the vectors that networks learn for each choice

    @property
    def width(self) -> int:
        """Numbers it takes in the vector."""
        if self.pixels:
            return 0
        return sum(self.choices) if self.choices else math.prod(self.shape)

    @property
    def name(self) -> str:
        return ".".join(str(step) for step in self.path) or "observation"

    @property
    def _first(self) -> NDArray[np.int64]:
        """The smallest of each choice."""
        return np.asarray(self.starts or (0,) * len(self.choices), np.int64)

    def encode(self, values: Any, asked: str) -> NDArray[np.float32]:
        """(B, width) from B of what lies there."""
        array = np.asarray(values)
        if self.labels:
            return self._one_hot(self._numbers_of(array, asked), array.shape, asked)
        if array.dtype.kind not in "fiub":
            raise DataError(f"{asked}: '{self.name}' must hold numbers, got {array.dtype}")
        if array.shape[1:] != self.shape:
            raise DataError(
                f"{asked}: '{self.name}' must have the shape {self.shape}, got {array.shape[1:]}"
            )
        if not self.choices:
            with np.errstate(over="ignore"):
                return array.reshape(len(array), -1).astype(np.float32)
        chosen = array.reshape(len(array), -1) - self._first
        return self._one_hot(chosen, array.shape, asked)

    def decode(self, vectors: NDArray[np.float32]) -> NDArray[Any]:
        """(..., *shape) from (..., width) that `encode` made; choices without names."""
        leading = vectors.shape[:-1]
        if not self.choices:
            return vectors.reshape(*leading, *self.shape)
        ends = np.cumsum(self.choices)
        chosen = [one.argmax(-1) for one in np.split(vectors, ends[:-1], axis=-1)]
        numbers = np.stack(chosen, -1) + self._first
        return numbers.reshape(*leading, *self.shape)

    def _numbers_of(self, array: NDArray[Any], asked: str) -> NDArray[np.int64]:
        known = {label: i for i, label in enumerate(self.labels)}
        try:
            numbers = [known[str(value)] for value in array.reshape(-1).tolist()]
        except KeyError as missing:
            raise DataError(
                f"{asked}: '{self.name}' has the category {missing.args[0]!r}, which the training "
                f"data do not have{did_you_mean(missing.args[0], self.labels)}; known are "
                f"{_listed(self.labels)}"
            ) from None
        return np.asarray(numbers, np.int64).reshape(len(array), -1)

    def _one_hot(
        self, chosen: NDArray[Any], shape: tuple[int, ...], asked: str
    ) -> NDArray[np.float32]:
        if chosen.shape[1] != len(self.choices):
            raise DataError(
                f"{asked}: '{self.name}' must hold {len(self.choices)} choices, got the shape "
                f"{shape[1:]}"
            )
        wrong = (chosen < 0) | (chosen >= np.asarray(self.choices)) | (chosen % 1 != 0)
        if wrong.any():
            row, column = (int(axis[0]) for axis in np.nonzero(wrong))
            first = self.starts[column] if self.starts else 0
            raise DataError(
                f"{asked}: '{self.name}' holds {chosen[row, column] + first:g}, expected a whole "
                f"number from {first} to {first + self.choices[column] - 1}"
            )
        vector = np.zeros((len(chosen), self.width), np.float32)
        offsets = np.cumsum((0, *self.choices[:-1]))
        rows = np.arange(len(chosen))[:, None]
        vector[rows, chosen.astype(np.int64) + offsets] = 1.0
        return vector


def _listed(labels: Sequence[str], most: int = 8) -> str:
    more = f" and {len(labels) - most} others" if len(labels) > most else ""
    return ", ".join(labels[:most]) + more


class Embedding(NamedTuple):
    """A choice that stands one-hot in a vector, and how wide the learned vectors for it are."""

    start: int
    choices: int
    width: int


@dataclass(frozen=True)
class Layout:
    """The parts of an observation, in the order in which they lie in the vector."""

    parts: tuple[Part, ...]

    @property
    def width(self) -> int:
        return sum(part.width for part in self.parts)

    def embedded(self, width: int) -> Layout:
        """The same parts, with a learned vector of this width for each choice."""
        parts = (replace(part, embeddings=(width,) * len(part.choices)) for part in self.parts)
        return Layout(tuple(parts))

    @property
    def embeddings(self) -> list[Embedding]:
        """Where in the vector choices stand for which networks learn vectors."""
        found, start = [], 0
        for part in self.parts:
            widths = part.embeddings or (0,) * len(part.choices)
            for count, width in zip(part.choices, widths, strict=True):
                if width:
                    found.append(Embedding(start, count, width))
                start += count
            start += 0 if part.choices else part.width
        return found

    def has_parts(self, observation: Any) -> bool:
        """Whether an observation, or several, comes as the environment or a table gives it and
        not as the vector that stands for it."""
        first = self.parts[0]
        if len(self.parts) > 1 or first.path:
            # a data frame has columns, too, and is no mapping
            return isinstance(observation, (Mapping, tuple)) or hasattr(observation, "columns")
        shape = np.shape(observation)
        if not first.shape:  # a choice: whole numbers, one or several
            return not shape or (len(shape) == 1 and np.asarray(observation).dtype.kind in "iu")
        return bool(shape[-len(first.shape) :] == first.shape)

    def vector(self, observation: Any, asked: str) -> NDArray[np.float32]:
        """(width,) of one observation as the environment gives it."""
        found = [
            part.encode(value_at(observation, part, asked)[None], asked) for part in self.parts
        ]
        vector: NDArray[np.float32] = np.concatenate(found, 1)[0]
        return vector

    def named_rows(
        self, columns: Mapping[str, Any], asked: str
    ) -> tuple[NDArray[np.float32], bool]:
        """(B, width) of parts by name, each with B values, and whether it is one observation."""
        alone = True
        found = []
        for part in self.parts:
            values = value_at(columns, part, asked)
            if values.ndim > len(part.shape):
                alone = False
            found.append(values if values.ndim > len(part.shape) else values[None])
        counts = {len(values) for values in found}
        if len(counts) > 1:
            raise DataError(f"{asked}: the parts have {sorted(counts)} rows; give one per row each")
        encoded = [
            part.encode(values, asked) for part, values in zip(self.parts, found, strict=True)
        ]
        return np.concatenate(encoded, 1), alone

    def to_list(self) -> list[dict[str, Any]]:
        """As a file holds it: what is empty is left out."""
        listed = []
        for part in self.parts:
            values = {name: list(getattr(part, name)) for name in Part.__dataclass_fields__}
            listed.append({name: value for name, value in values.items() if value})
        return listed

    @classmethod
    def from_list(cls, listed: Sequence[Mapping[str, Any]]) -> Layout:
        """What `to_list` gave, out of a file."""
        parts = []
        for i, values in enumerate(listed):
            stored = Stored(values, f"spaces.layout.{i}")
            path = stored.entries("path") if "path" in stored else []
            labels = stored.entries("labels") if "labels" in stored else []
            if not all(isinstance(step, (str, int)) for step in path):
                raise stored.wrong("path", "names and positions")
            if not all(isinstance(label, str) for label in labels):
                raise stored.wrong("labels", "text")
            whole = {
                key: tuple(stored.wholes(key, len(stored.entries(key)), least=least))
                for key, least in WHOLE_KEYS
                if key in stored
            }
            parts.append(Part(path=tuple(path), labels=tuple(labels), **whole))
        return cls(tuple(parts))


WHOLE_KEYS = (("shape", 1), ("choices", 1), ("starts", -(2**62)), ("pixels", 1), ("embeddings", 1))
"""Of a stored part, and the least that each of its numbers may be."""


def value_at(observation: Any, part: Part, asked: str) -> NDArray[Any]:
    """What lies at a part's place."""
    value = observation
    for step in part.path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            known = list(value) if isinstance(value, Mapping) else []
            hint = did_you_mean(str(step), [str(name) for name in known])
            raise DataError(
                f"{asked}: the observation has no '{part.name}'{hint}; give every part that the "
                "policy was trained on"
            ) from None
    array = np.asarray(value)
    if array.dtype == object and part.shape:  # a column of lists
        with suppress(ValueError):  # of different lengths, which are refused
            array = np.asarray(array.tolist())
    return array


class Packing(NamedTuple):
    """What lies in the bytes of a frame of an image beside other parts; see `envs.packed`."""

    pixels: tuple[int, ...]
    """Shape of the image."""
    numbers: int
    """How many float32 numbers stand before it."""

    @property
    def size(self) -> int:
        """Bytes of a frame."""
        return -(-(4 * self.numbers + math.prod(self.pixels)) // 4) * 4


def packing_of(layout: Layout | None) -> Packing | None:
    """None for layouts without an image."""
    images = [part.pixels for part in layout.parts if part.pixels] if layout is not None else []
    return Packing(images[0], layout.width) if layout is not None and images else None
