"""Type stubs of the managed classes: `python -m rl_training.api.stubs` writes algorithms.pyi.

The stubs repeat what the algorithms' `Params` say, so that editors complete knobs and type checkers
check them. A test compares the file with what is written here.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rl_training.algorithms import BUILT_IN
from rl_training.api.algorithms import described
from rl_training.experiment.config import DatasetConfig, LoggerConfig, TrainConfig
from rl_training.experiment.registry import algorithm_class

FILE = Path(__file__).with_name("algorithms.pyi")
NOT_BY_KEYWORD = ("algo", "dataset")
"""Keys of a configuration that a managed class has already, or takes as a parameter of its own."""

_HEADER = '''"""Written by `make generated` from the registry: change Params instead."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict, Unpack

import torch

from rl_training.api.managed import ManagedAlgorithm
from rl_training.data.dataset import TransitionDataset
from rl_training.data.table_files import Frame
from rl_training.envs.named import Environment
from rl_training.models import NetworkFactory
'''


_DATASET = (
    "DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame "
    "| str | Path"
)
_WIDER = {
    "device": "str | torch.device",
    "init_from": "str | PathLike[str] | None",
    "output_dir": "str | PathLike[str]",
    "loggers": "Sequence[LoggerConfig | Mapping[str, Any] | str]",
    "networks": "str | NetworkFactory | None",
}
"""Keys that take more than the type of their field says."""


def stubs() -> str:
    """The text of the stub file."""
    sections: set[type[BaseModel]] = {TrainConfig, DatasetConfig, LoggerConfig}
    body = [f"{line}\n" for line in _classes(sections)]
    imports = sorted(f"from {one.__module__} import {one.__name__}\n" for one in sections)
    return "".join([_HEADER, *imports, "\n", *body])


def _classes(sections: set[type[BaseModel]]) -> Iterator[str]:
    yield f"__all__ = {[*BUILT_IN.values(), 'managed_class']}"
    yield ""
    yield "def managed_class(algo: str) -> type[ManagedAlgorithm]: ..."
    yield "def described(learner: Any) -> str: ..."
    yield "def public_name(algo: str) -> str: ..."
    yield ""
    yield "class RunKeys(TypedDict, total=False):"
    for name, field in TrainConfig.model_fields.items():
        if name not in NOT_BY_KEYWORD:
            yield f"    {name}: {_WIDER.get(name) or _written(field.annotation, sections)}"
            yield f'    """{field.description}"""'
    for algo, public in BUILT_IN.items():
        learner = algorithm_class(algo)
        yield ""
        yield f"class {public}(ManagedAlgorithm):"
        yield f'    """{_indented(described(learner))}"""'
        yield ""
        yield "    algo: ClassVar[str]"
        yield "    def __init__("
        yield "        self,"
        yield "        env_or_config: Environment | TrainConfig | None = None,"
        yield "        *,"
        yield f"        dataset: {_DATASET} | None = None,"
        yield "        spaces: Mapping[str, Any] | None = None,"
        for name, field in learner.Params.model_fields.items():
            kind = _WIDER.get(name) or _written(field.annotation, sections)
            yield f"        {name}: {kind} = {_default(field)},"
        yield "        **run: Unpack[RunKeys],"
        yield "    ) -> None: ..."


def _indented(text: str) -> str:
    first, *rest = text.splitlines()
    return "\n".join([first, *(f"    {line}".rstrip() for line in rest), "    "])


def _default(field: FieldInfo) -> str:
    plain = isinstance(field.default, bool | int | float | str | None)
    return repr(field.default) if plain else "..."


def _written(annotation: Any, sections: set[type[BaseModel]]) -> str:
    """A field's type as a caller may give it: any sequence for a tuple, plain values for a
    section. Sections that are named are collected."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _written(inside[0], sections)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, inside))}]"
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(_written(one, sections) for one in inside))
    if origin is tuple:
        kinds = dict.fromkeys(_written(one, sections) for one in inside if one is not Ellipsis)
        return f"Sequence[{' | '.join(kinds)}]"
    if origin is dict:
        return "Mapping[str, Any]"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        sections.add(annotation)
        return f"{annotation.__name__} | Mapping[str, Any]"
    return "None" if annotation is type(None) else str(annotation.__name__)


if __name__ == "__main__":
    FILE.write_text(stubs(), encoding="utf-8")
