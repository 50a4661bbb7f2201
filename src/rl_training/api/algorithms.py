"""The managed class of every algorithm, made from the registry when it is asked for.

Editors and type checkers read `algorithms.pyi` beside this file, which `make generated` writes.
"""

from __future__ import annotations

import inspect
import operator
import types
from functools import cache, reduce
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from rl_training.algorithms import BUILT_IN
from rl_training.api.managed import ManagedAlgorithm
from rl_training.experiment.registry import algorithm_class, working_algorithms

__all__ = [*BUILT_IN.values(), "managed_class"]


@cache
def managed_class(algo: str) -> type[ManagedAlgorithm]:
    """The class whose agents are of the algorithm `algo`; its help and signature list the knobs."""
    learner = algorithm_class(algo)
    body = {"algo": algo, "__module__": __name__, "__doc__": described(learner)}
    made = type(public_name(algo), (ManagedAlgorithm,), body)
    made.__signature__ = _signature(learner)  # type: ignore[attr-defined]
    return made


def public_name(algo: str) -> str:
    """The name of the managed class of `algo`; it never equals a built-in one."""
    own = str(algorithm_class(algo).name())
    if own in BUILT_IN.values() and algo not in BUILT_IN:
        return "".join(part.capitalize() for part in algo.split("_"))
    return own


def described(learner: Any) -> str:
    """A description of the algorithm, and of every knob with its type, default and meaning."""
    lines = [str(learner.__doc__).splitlines()[0], "", f"In short: {learner.summary}."]
    lines += [f"Paper: {learner.paper}.", "", "Knobs, beside the keys of the configuration:", ""]
    for name, field in learner.Params.model_fields.items():
        lines += [
            f"    {name} = {_short(field.default)}",
            f"        {field.description or ''}".rstrip(),
        ]
    return "\n".join(lines)


def _short(value: Any) -> str:
    """A default value in short form."""
    return f"{type(value).__name__}()" if isinstance(value, BaseModel) else repr(value)


def _signature(learner: Any) -> inspect.Signature:
    own = inspect.signature(ManagedAlgorithm.__init__).parameters.values()
    first, _, *named, others = list(own)[1:]  # without self and what is refused by position
    knobs = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=_plain(field.annotation),
        )
        for name, field in learner.Params.model_fields.items()
    ]
    return inspect.Signature([first, *named, *knobs, others])


def _plain(annotation: Any) -> Any:
    """A type without the limits and checks that are written into it for pydantic."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _plain(inside[0])
    if origin in (Union, types.UnionType):
        return reduce(operator.or_, map(_plain, inside))
    if origin is tuple:
        return types.GenericAlias(tuple, tuple(map(_plain, inside)))
    return annotation


def __getattr__(name: str) -> Any:
    owner = next((algo for algo, public in BUILT_IN.items() if public == name), None)
    if owner is None and not name.startswith("_"):
        others = working_algorithms().keys() - BUILT_IN.keys()
        owner = next((algo for algo in sorted(others) if public_name(algo) == name), None)
    if owner is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return managed_class(owner)


def __dir__() -> list[str]:
    return __all__
