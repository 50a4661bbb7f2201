"""Readable messages for mistakes in a configuration."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from rl_training.experiment.errors import did_you_mean
from rl_training.experiment.foreign_names import name_here


def _section_at(model: type[BaseModel], location: tuple[Any, ...]) -> type[BaseModel] | None:
    """The section class that a pydantic error location points into."""
    current: type[BaseModel] | None = model
    for part in location:
        if current is None or part not in current.model_fields:
            continue  # a list index or a union tag
        current = section_in(current.model_fields[part].annotation)
    return current


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The section class within a field's type, such as that of `Section | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = section_in(argument)
        if found:
            return found
    return None


_EXPECTED = {
    "model_type": "a section of keys",
    "model_attributes_type": "a section of keys",
    "dict_type": "a section of keys",
    "tuple_type": "a list, written [a, b]",
    "too_short": "a list with at least one entry",
    "bool_type": "true or false",
    "string_type": "text",
}
"""Replacements for pydantic's messages that are hard to understand."""


def readable_errors(
    error: ValidationError,
    model: type[BaseModel],
    prefix: str = "",
    below: Mapping[str, tuple[str, ...]] | None = None,
) -> Iterator[str]:
    """One line per mistake: the key, what is wrong, what was expected.

    `below` lists the keys below those keys whose contents `model` does not define.
    """
    items = error.errors()
    for item in items:
        location = tuple(part for part in item["loc"] if part != "[key]")
        key = prefix + ".".join(str(part) for part in location)
        kind, given = item["type"], item.get("input")
        if kind == "extra_forbidden":
            yield f"{key}: unknown key{_hint(model, location, below or {})}"
        elif "[key]" in item["loc"] or kind == "invalid_key":
            yield f"{key}: unknown key; keys are names"
        elif kind == "missing" and location and isinstance(location[-1], int):
            parent = prefix + ".".join(str(part) for part in location[:-1])
            yield f"{parent}: expected a list with at least {location[-1] + 1} entries"
        elif kind == "missing":
            yield f"{key}: this key is required"
        elif kind == "value_error":
            message = str(item["ctx"]["error"]) if "ctx" in item else item["msg"]
            if location or (prefix and not re.match(r"[\w.]+: ", message)):
                yield f"{key.removesuffix('.')}: {message}"
            else:  # what a whole section refuses may begin with the name of a key
                yield f"{prefix}{message}"
        elif kind == "too_short" and any(
            len(other["loc"]) > len(location) and other["loc"][: len(location)] == location
            for other in items
        ):
            continue  # too short only because its entries were refused, which is reported already
        else:
            expected = _EXPECTED.get(kind, item["msg"].removeprefix("Input should be "))
            if kind == "too_long":
                expected = f"a list with at most {item['ctx']['max_length']} entries"
            elif kind.startswith(("greater_than", "less_than")):
                (bound,) = item["ctx"].values()
                expected = (
                    f"a value {kind.replace('_', ' ').replace('equal', 'or equal to')} {bound:g}"
                )
            yield f"{key}: expected {expected}, got {shortened(given)}"


def _hint(
    model: type[BaseModel], location: tuple[Any, ...], below: Mapping[str, tuple[str, ...]]
) -> str:
    """A suggestion for an unknown key, or the list of known keys."""
    section = _section_at(model, location[:-1])
    known, word = list(section.model_fields) if section else [], str(location[-1])
    lower = below if len(location) == 1 else {}
    prefixes = {name: f"{parent}." for parent, names in lower.items() for name in names}
    if word not in prefixes:
        foreign = name_here(word, {*known, *prefixes}, prefixes)
        if foreign:
            return foreign
    hint = did_you_mean(word, known)
    for parent, names in lower.items():
        guess = did_you_mean(word, names)
        if word in names or (guess and not hint):
            return guess.replace("'", f"'{parent}.", 1)
    return hint or (f"; known keys are {', '.join(known)}" if known else "")


_SHORT = reprlib.Repr()
"""Shows a few entries of a few levels, because a value may be nested deeply."""
_SHORT.maxlevel = 4
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = 8
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100


def shortened(value: Any) -> str:
    """A value as text, shortened to one line."""
    nested = isinstance(value, (dict, list, tuple, set))
    text = " ".join((_SHORT.repr(value) if nested else repr(value)).split())
    return text if len(text) <= 100 else f"{text[:97]}..."
