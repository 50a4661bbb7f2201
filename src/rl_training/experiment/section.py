"""The parts that every section of a configuration is made of: number types and a strict base."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Integral
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from rl_training.experiment.config_errors import readable_errors
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.renames import Renamed, with_current_names

LARGEST = 3e38
"""The largest float32, because networks compute in float32."""

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Rate = Annotated[float, Field(gt=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0, le=LARGEST, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, le=LARGEST, allow_inf_nan=False)]
Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]


def whole_number(value: Any) -> Any:
    """Convert 1e6 and NumPy integers to int; other values are refused later."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value


def _text(value: Any) -> Any:
    """Convert paths and devices to text; other values are refused later."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    kind = type(value)  # by name, because a config does not import torch
    return str(value) if (kind.__module__, kind.__name__) == ("torch", "device") else value


Whole = Annotated[int, BeforeValidator(whole_number)]
Count = Annotated[Whole, Field(ge=1, le=10**15)]
NonNegativeInt = Annotated[Whole, Field(ge=0)]
Text = Annotated[str, BeforeValidator(_text)]
Bounds = Finite | Annotated[tuple[Finite, ...], Field(min_length=1, strict=False)]
HiddenSizes = Annotated[tuple[Count, ...], Field(min_length=1, strict=False)]


class Section(BaseModel):
    """A part of the configuration: immutable, strict about types and keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
        validate_default=True,
    )

    renamed: ClassVar[Mapping[str, Renamed]] = {}
    """Older names of keys, which are still accepted."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Join the lines of each key's description, which stands in comments and help."""
        super().__pydantic_init_subclass__(**kwargs)
        for field in cls.model_fields.values():
            if field.description:
                field.description = " ".join(field.description.split())

    @model_validator(mode="before")
    @classmethod
    def _current_names(cls, values: Any) -> Any:
        return with_current_names(cls, values) if isinstance(values, dict) else values

    @classmethod
    def parse(cls, values: Mapping[str, Any], prefix: str = "") -> Self:
        """Build from plain values; errors have one line per mistake."""
        try:
            return cls.model_validate(with_current_names(cls, values, prefix))
        except ValidationError as error:
            raise ConfigError("\n".join(readable_errors(error, cls, prefix))) from None
