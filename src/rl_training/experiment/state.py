"""Reads values from a checkpoint and checks each of them before it is used.

Checksums detect damage, but not a file that was written for other networks, by another version
or with malicious intent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rl_training.experiment.errors import UnfitStateError

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_COUNT = 2**63 - 1


class Stored:
    """A mapping stored by a component; missing values and wrong types raise an error."""

    def __init__(self, values: Mapping[str, Any] | Stored, name: str = "") -> None:
        self._values: Mapping[str, Any]
        self._name: str = name
        if isinstance(values, Stored):
            self._values, self._name = values._values, values._name
        elif isinstance(values, Mapping):
            self._values = values
        else:
            raise UnfitStateError(f"{name or 'a component'} is not a mapping")

    def _path(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key

    def wrong(self, key: str, expected: str) -> UnfitStateError:
        """Return the error that says what `key` should hold."""
        return UnfitStateError(f"'{self._path(key)}' should be {expected}")

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            raise UnfitStateError(f"it lacks '{self._path(key)}'")
        return self._values[key]

    def get(self, key: str, default: Any) -> Any:
        """Return a value, or a default if an earlier version did not store it."""
        return self._values.get(key, default)

    @property
    def values(self) -> Mapping[str, Any]:
        """The whole mapping, unchecked."""
        return self._values

    def names(self) -> list[str]:
        """The keys."""
        return [str(key) for key in self._values]

    def section(self, key: str) -> Stored:
        """A nested mapping."""
        return Stored(self[key], self._path(key))

    def whole(self, key: str, least: int = 0, most: int = LARGEST_COUNT) -> int:
        """An integer within bounds."""
        return self._whole(self[key], key, least, most)

    def wholes(self, key: str, count: int, least: int = 0, most: int = LARGEST_COUNT) -> list[int]:
        """A list of `count` integers within bounds."""
        return [self._whole(value, key, least, most) for value in self._list(key, count)]

    def _whole(self, value: Any, key: str, least: int, most: int) -> int:
        if type(value) is not int or not least <= value <= most:
            bound = f"at least {least}" if most == LARGEST_COUNT else f"from {least} to {most}"
            raise self.wrong(key, f"a whole number, {bound}")
        return value

    def number(self, key: str, least: float = -math.inf) -> float:
        """A number that may be infinite but not NaN."""
        return self._number(self[key], key, least)

    def measure(self, key: str) -> float:
        """Any number that is only displayed, NaN included."""
        value = self[key]
        return math.nan if value != value else self._number(value, key, -math.inf)

    def numbers(self, key: str, count: int | None = None) -> list[float]:
        """A list of numbers."""
        return [self._number(value, key, -math.inf) for value in self._list(key, count)]

    def _number(self, value: Any, key: str, least: float) -> float:
        if type(value) not in (int, float) or not value >= least:
            raise self.wrong(key, "a number" if least == -math.inf else f"a number from {least}")
        return float(value)

    def flag(self, key: str) -> bool:
        """A boolean."""
        return self._flag(self[key], key)

    def flags(self, key: str) -> list[bool]:
        """A list of booleans."""
        return [self._flag(value, key) for value in self._list(key)]

    def _flag(self, value: Any, key: str) -> bool:
        if type(value) is not bool:
            raise self.wrong(key, "true or false")
        return value

    def _list(self, key: str, count: int | None = None) -> list[Any]:
        value = self[key]
        if not isinstance(value, (list, tuple)) or (count is not None and len(value) != count):
            raise self.wrong(key, "a list" if count is None else f"a list of {count}")
        return list(value)

    def entries(self, key: str, count: int | None = None) -> list[Any]:
        """The entries of a list, which the caller checks."""
        return self._list(key, count)

    def tensor(self, key: str, dtype: Any, *shape: int | None) -> Tensor:
        """A tensor of this dtype (None: any) and shape, in which None stands for any length."""
        return self._tensor(self[key], key, dtype, shape)

    def tensor_like(self, key: str, own: Tensor) -> Tensor:
        """A tensor of the dtype and shape of the one that it will be copied to."""
        return self.tensor(key, own.dtype, *own.shape)

    def tensors_like(self, key: str, own: Sequence[Tensor]) -> list[Tensor]:
        """A list of tensors of the dtypes and shapes of others."""
        pairs = zip(self._list(key, len(own)), own, strict=True)
        return [self._tensor(value, key, like.dtype, tuple(like.shape)) for value, like in pairs]

    def tensors(self, key: str, count: int, dtype: Any, *shape: int | None) -> list[Tensor]:
        """A list of `count` tensors of one dtype; None in the shape stands for any length."""
        return [self._tensor(value, key, dtype, shape) for value in self._list(key, count)]

    def _tensor(self, value: Any, key: str, dtype: Any, shape: Sequence[int | None]) -> Tensor:
        import torch

        if (
            not isinstance(value, torch.Tensor)
            or value.layout != torch.strided
            or dtype not in (None, value.dtype)
            or len(value.shape) != len(shape)
            or any(n is not None and n != m for n, m in zip(shape, value.shape, strict=True))
        ):
            wanted = "x".join("n" if n is None else str(n) for n in shape) or "one number"
            found = (
                f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
                if isinstance(value, torch.Tensor)
                else type(value).__name__
            )
            kind = "" if dtype is None else f" of {str(dtype).removeprefix('torch.')}"
            raise self.wrong(key, f"a tensor{kind} ({wanted}), but is {found}")
        return value
