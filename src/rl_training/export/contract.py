"""The content of contract.json, and its checks before it is used. Needs no PyTorch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.experiment.errors import ExportError
from rl_training.experiment.files import open_regular

CONTRACT, MODEL, SAMPLE, RUNNER = "contract.json", "policy.onnx", "sample.npz", "run_policy.py"
CARD, CARD_DATA, PROGRAM = "card.md", "card.json", "policy.pt2"
FORMAT, VERSION = "rl-training policy", 2
CONTRACT_LIMIT, MODEL_LIMIT = 1 << 24, 1 << 31
LARGEST_ROW = 1 << 26
"""Numbers in one row of an input or output; more are refused before anything is made of them."""
DTYPES = ("float32", "float64", "uint8", "int64", "int32", "bool")
EPISODE_START = (
    "Where an episode begins, every state input holds its initial value in that row. After each "
    "call, the output named in 'next' is the state input of the next call of the same episode."
)


def is_export(path: Path) -> bool:
    """Whether a path is a folder that `rl-training export` has written."""
    return (path / CONTRACT).is_file()


def read_limited(path: Path, limit: int) -> bytes:
    """A file of at most `limit` bytes."""
    try:
        with open_regular(path) as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ExportError(
            f"'{path}' cannot be read ({error.strerror or error}); expected a folder written by "
            "rl-training export"
        ) from None
    if len(data) > limit:
        raise ExportError(f"'{path}' is larger than {limit:,} bytes; it is not an exported policy")
    return data


def read_contract(folder: Path) -> dict[str, Any]:
    """The contract of an export folder; every part that is used has been checked."""
    path = folder / CONTRACT
    try:
        contract = json.loads(read_limited(path, CONTRACT_LIMIT))
    except (ValueError, RecursionError):
        raise ExportError(f"'{path}' is damaged: it is not JSON; export the policy again") from None
    try:
        _check(contract)
    except ValueError as error:
        raise ExportError(
            f"'{path}' is not the contract of a policy: {error}; export the policy again"
        ) from None
    return dict(contract)


def _check(contract: Any) -> None:
    if not isinstance(contract, Mapping) or contract.get("format") != FORMAT:
        raise ValueError(f"'format' should be '{FORMAT}'")
    version = contract.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError("'format_version' should be a whole number")
    if version > VERSION:
        raise ValueError(
            f"it has the format version {version}, and this version of rl-training reads up to "
            f"{VERSION}"
        )
    model = contract.get("model")
    if not isinstance(model, Mapping) or model.get("file") != MODEL:
        raise ValueError(f"'model.file' should be '{MODEL}'")
    if not isinstance(model.get("sha256"), str):
        raise ValueError("'model.sha256' should be a text")
    inputs, outputs = (_ports(contract.get(key), key) for key in ("inputs", "outputs"))
    roles = [port.get("role") for port in inputs]
    known = {"observation", "mask", "state", "noise"}
    if not roles.count("observation") or roles.count("mask") > 1 or set(roles) - known:
        raise ValueError("'inputs' should be an observation or its parts, a mask, states and noise")
    names = {port["name"]: port for port in outputs}
    for port in inputs:
        if port["role"] == "observation":
            _check_part(port)
        elif port["role"] == "state":
            following = names.get(str(port.get("next")))
            if following is None or following["shape"] != port["shape"]:
                raise ValueError(f"'inputs.{port['name']}.next' should be an output of its shape")
            if not _is_number(port.get("initial")):
                raise ValueError(f"'inputs.{port['name']}.initial' should be a number")
        elif port["role"] == "noise" and port.get("distribution") not in (
            "standard normal",
            "uniform",
        ):
            raise ValueError(f"'inputs.{port['name']}.distribution' is not known")
    _check_task(contract, names.get("action"))


def _check_part(port: Mapping[str, Any]) -> None:
    """Where a part of an observation lies, and what it may choose from."""
    name, path, choices = port["name"], port.get("path", []), port.get("choices")
    if not isinstance(path, list) or not all(isinstance(step, (str, int)) for step in path):
        raise ValueError(f"'inputs.{name}.path' should hold names and positions")
    frames = port.get("frame_stack", 1)
    if type(frames) is not int or frames < 1 or (frames > 1 and port["shape"][1:2] != [frames]):
        raise ValueError(f"'inputs.{name}.frame_stack' should be the first axis of its frames")
    categories = port.get("categories")
    if categories is not None and not _are_names(categories):
        raise ValueError(f"'inputs.{name}.categories' should hold names")
    if choices is None and categories is None:
        return
    numbers = math.prod(port["shape"][1:])
    if not isinstance(choices, list) or len(choices) != numbers:
        raise ValueError(f"'inputs.{name}.choices' should hold {numbers} whole numbers")
    for bound in ("low", "high"):
        given: Any = port.get(bound)
        entries = given if isinstance(given, list) else [given]
        if len(entries) != numbers or not all(type(entry) is int for entry in entries):
            raise ValueError(f"'inputs.{name}.{bound}' should hold {numbers} whole numbers")
    if not all(type(count) is int and 1 <= count <= LARGEST_ROW for count in choices):
        raise ValueError(f"'inputs.{name}.choices' should hold {numbers} whole numbers")
    if categories is not None and choices != [len(categories)]:
        raise ValueError(f"'inputs.{name}.categories' should hold {choices} names")


def _check_task(contract: Mapping[str, Any], action: Mapping[str, Any] | None) -> None:
    """What an evaluation in the environment needs."""
    if action is None or action.get("kind") not in ("box", "discrete", "multi_discrete"):
        raise ValueError("'outputs.action' should be a Box, Discrete or MultiDiscrete action")
    labels = action.get("categories")
    if labels is not None:
        first: Any = action.get("low")
        last: Any = action.get("high")
        whole = isinstance(first, int) and isinstance(last, int) and action["kind"] == "discrete"
        count = last - first + 1 if whole else -1
        if not _are_names(labels) or len(labels) != count:
            raise ValueError("'outputs.action.categories' should name every action")
    task = contract.get("task")
    if not isinstance(task, Mapping) or not isinstance(task.get("spaces"), Mapping):
        raise ValueError("'task.spaces' should describe the spaces of the task")
    if not isinstance(task.get("env_id"), (str, type(None))):
        raise ValueError("'task.env_id' should be a text or null")
    if not isinstance(task.get("env_kwargs"), Mapping):
        raise ValueError("'task.env_kwargs' should be keyword arguments")
    for key in ("eval_episodes", "eval_max_steps"):
        value = task.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"'task.{key}' should be a whole number, at least 1")


def _ports(given: Any, key: str) -> list[Mapping[str, Any]]:
    if not isinstance(given, list) or not 1 <= len(given) <= 1000:
        raise ValueError(f"'{key}' should be a list")
    seen: set[str] = set()
    for port in given:
        if not isinstance(port, Mapping) or not isinstance(port.get("name"), str):
            raise ValueError(f"'{key}' should be a list of named entries")
        name, shape = port["name"], port.get("shape")
        if name in seen:
            raise ValueError(f"'{key}' names '{name}' twice")
        seen.add(name)
        if port.get("dtype") not in DTYPES:
            raise ValueError(f"'{key}.{name}.dtype' should be one of {', '.join(DTYPES)}")
        if not isinstance(shape, list) or not shape or shape[0] != "batch":
            raise ValueError(f"'{key}.{name}.shape' should begin with 'batch'")
        if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in shape[1:]):
            raise ValueError(f"'{key}.{name}.shape' should hold whole numbers")
        if math.prod(shape[1:]) > LARGEST_ROW:
            raise ValueError(f"'{key}.{name}.shape' is larger than {LARGEST_ROW:,} numbers")
        for bound in ("low", "high"):
            _check_bound(port.get(bound), f"'{key}.{name}.{bound}'", math.prod(shape[1:]))
    return given


def _check_bound(bound: Any, name: str, numbers: int) -> None:
    """One number for all components, one per component, or null where there is no bound."""
    entries = bound if isinstance(bound, list) else [bound]
    if isinstance(bound, list) and len(bound) != numbers:
        raise ValueError(f"{name} should hold {numbers} numbers")
    if not all(entry is None or _is_number(entry) for entry in entries):
        raise ValueError(f"{name} should hold numbers")


def _are_names(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def refuse_other_model(contract: Mapping[str, Any], session: Any, folder: Path) -> None:
    """Refuse a model whose inputs and outputs are not those of its contract."""
    for key, found in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
        said = [
            _described(port["name"], port["dtype"], port["shape"][1:]) for port in contract[key]
        ]
        has = [_described(port.name, _dtype(port.type), port.shape[1:]) for port in found]
        if said != has:
            raise ExportError(
                f"'{folder / CONTRACT}' does not fit {MODEL}: the model's {key} are "
                f"{_shown(has)}, the contract says {_shown(said)}; export the policy again"
            )


def _described(name: str, dtype: str, shape: Sequence[Any]) -> str:
    return f"{name} {dtype}{list(shape)}"


def _shown(ports: Sequence[str]) -> str:
    text = ", ".join(ports)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _dtype(onnx_type: str) -> str:
    """`tensor(float)` as NumPy calls it."""
    name = onnx_type.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(name, name)
