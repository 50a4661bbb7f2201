"""Pages of the site that are made from docstrings: the Python API and the command line."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import rl_training
from rl_training import extend
from rl_training.algorithms import BUILT_IN
from rl_training.cli import app
from rl_training.experiment.registry import algorithm_class


def pages() -> dict[str, str]:
    """Path in the site to Markdown."""
    return {
        "reference/python.md": python_page(),
        "reference/algorithms.md": knobs_page(),
        "reference/extend.md": module_page(extend, "Extending the package"),
        "reference/command_line.md": command_page(),
    }


def python_page() -> str:
    """Every public name but the classes of the algorithms, which share one description."""
    names = [n for n in rl_training.__all__ if n != "__version__"]
    others = [n for n in names if n not in BUILT_IN.values()]
    text = ["# Python API\n", inspect.cleandoc(rl_training.__doc__ or "") + "\n"]
    text.append(
        "The class of every algorithm, such as `SAC`, is a `ManagedAlgorithm` with the algorithm's "
        "[knobs](algorithms.md) as further keywords.\n"
    )
    return "\n".join([*text, *(entry(name, getattr(rl_training, name)) for name in others)])


def module_page(module: ModuleType, title: str) -> str:
    entries = [entry(name, getattr(module, name)) for name in module.__all__]
    return "\n".join([f"# {title}\n", inspect.cleandoc(module.__doc__ or "") + "\n", *entries])


def entry(name: str, thing: Any) -> str:
    """Signature and docstring of a name; of a class also its methods and fields."""
    lines = [f"## {name}\n"]
    if inspect.isclass(thing):
        lines += [code(f"class {name}{signature(thing)}"), docstring(thing)]
        lines += fields(thing)
        for method, function in methods(thing):
            lines += [f"### {name}.{method}\n", code(f"{method}{signature(function)}")]
            lines.append(docstring(function))
    elif callable(thing):
        lines += [code(f"{name}{signature(thing)}"), docstring(thing)]
    else:
        lines.append(code(f"{name} = {readable(str(thing))}"))
    return "\n".join(lines)


def methods(thing: type) -> Iterator[tuple[str, Any]]:
    """Public methods with a docstring, those of this package's base classes included."""
    for name, value in inspect.getmembers(thing):
        plain = inspect.unwrap(getattr(value, "__func__", value))
        module = getattr(plain, "__module__", None) or ""
        if name.startswith("_") or not inspect.isroutine(plain) or not plain.__doc__:
            continue
        if module.startswith("rl_training"):
            yield name, value


def fields(thing: type) -> list[str]:
    """A table of the fields of a configuration section."""
    if not issubclass(thing, BaseModel) or not thing.model_fields:
        return []
    rows = [
        f"| `{name}` | `{default(field)}` | {cell(field.description or '')} |"
        for name, field in thing.model_fields.items()
    ]
    return ["| field | default | meaning |", "| --- | --- | --- |", *rows, ""]


def default(field: Any) -> str:
    if field.default is PydanticUndefined:
        return "required"
    value = field.default
    if isinstance(value, BaseModel):
        return "a section"
    if isinstance(value, enum.Enum):
        value = value.value
    return cell(repr(value))


def knobs_page() -> str:
    lines = ["# Knobs of the algorithms\n"]
    lines.append("Keywords of the classes in Python, `algo_kwargs` in configurations.\n")
    for algo, public in BUILT_IN.items():
        learner = algorithm_class(algo)
        lines += [f"## {public}\n", f"[How it works](../algorithms/{algo}.md). {learner.paper}\n"]
        lines += fields(learner.Params)
    return "\n".join(lines)


def command_page() -> str:
    """Every command with its options, from what `--help` prints."""
    lines = ["# Command line\n"]
    lines.append("`rl-training --debug`, before or after a command, shows tracebacks.\n")
    command: Any = typer.main.get_command(app)
    for path, found in sorted(commands(command)):
        lines += [f"## {' '.join(path)}\n", readable(found.help or "") + "\n"]
        usage = " ".join(["rl-training", *path, *found.collect_usage_pieces(_context(found))])
        lines += [code(usage, "text"), "| option | default | meaning |", "| --- | --- | --- |"]
        for option in found.params:
            if option.name in ("help", None):
                continue
            names = ", ".join(f"`{n}`" for n in (*option.opts, *option.secondary_opts))
            shown = "" if option.default in (None, False, ...) else f"`{cell(str(option.default))}`"
            lines.append(f"| {names} | {shown} | {cell(getattr(option, 'help', None) or '')} |")
        lines.append("")
    return "\n".join(lines)


def _context(command: Any) -> Any:
    return typer.Context(command)


def commands(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*before, name))
        elif not command.hidden:
            yield (*before, name), command


def signature(thing: Any) -> str:
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return "(...)"
    return readable(text)


def readable(text: str) -> str:
    """Without the paths of modules, which no user types, and objects' addresses."""
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z]\w*)", "", text)
    text = re.sub(r"<([\w.]+) object at 0x\w+>", r"\1", text).replace("'", '"')
    return re.sub(r'(: |-> )"([^"]*)"', r"\1\2", text)


def docstring(thing: Any) -> str:
    return inspect.cleandoc(inspect.getdoc(thing) or "") + "\n"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str, language: str = "python") -> str:
    """A block that breaks long signatures at their arguments."""
    if language == "python" and len(text) > 90:
        head, _, rest = text.partition("(")
        arguments, _, result = rest.rpartition(")")
        parts = re.split(r", (?![^\[\(\{]*[\]\)\}])", arguments)
        text = head + "(\n" + "".join(f"    {part},\n" for part in parts) + ")" + result
    return f"```{language}\n{text}\n```\n"
