"""Export folders from strangers: each is refused in one sentence, and nothing of it is run."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rl_training.experiment.errors import ExportError
from rl_training.export.exported import load_policy

from ..conftest import Command


def change_model(folder: Path, change: Callable[[Any], None]) -> None:
    """Another model, with the hash that fits."""
    model = onnx.load(folder / "policy.onnx", load_external_data=False)
    change(model)
    data = model.SerializeToString()
    (folder / "policy.onnx").write_bytes(data)
    change_contract(folder, lambda c: c["model"].update(sha256=hashlib.sha256(data).hexdigest()))


def change_contract(folder: Path, change: Callable[[Any], None]) -> None:
    path = folder / "contract.json"
    contract = json.loads(path.read_text())
    change(contract)
    path.write_text(json.dumps(contract))


def keep_weights_elsewhere(model: Any) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../etc/passwd")


def hide_weights_elsewhere_in_a_branch(model: Any) -> None:
    tensor = numpy_helper.from_array(np.zeros(3, np.float32), "x")
    tensor.external_data.add(key="location", value="/etc/passwd")
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["x"], value=tensor)],
        "branch",
        [],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
    )
    model.graph.node.append(
        helper.make_node("If", ["flag"], ["unused"], then_branch=branch, else_branch=branch)
    )


def need_foreign_operators(model: Any) -> None:
    model.opset_import.add(domain="evil.example", version=1)
    model.graph.node[0].domain = "evil.example"


def ask_for_all_memory(model: Any) -> None:
    shape = numpy_helper.from_array(np.array([1 << 20, 1 << 18], np.int64), "huge_shape")
    model.graph.initializer.append(shape)
    action = model.graph.output[0].name
    for node in model.graph.node:
        for i, name in enumerate(node.output):
            if name == action:
                node.output[i] = "inner_action"
    model.graph.node.extend(
        [
            helper.make_node("ConstantOfShape", ["huge_shape"], ["huge"]),
            helper.make_node("ReduceSum", ["huge"], ["sum"], keepdims=0),
            helper.make_node("Add", ["inner_action", "sum"], [action]),
        ]
    )


def answer_nan(model: Any) -> None:
    tensor = model.graph.initializer[0]
    values = np.full_like(numpy_helper.to_array(tensor), np.nan)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def rename_the_input(model: Any) -> None:
    model.graph.input[0].name = "other"
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            if name == "observation":
                node.input[i] = "other"


MODELS: list[tuple[Callable[[Any], None], str]] = [
    (keep_weights_elsewhere, "keeps weights in other files"),
    (hide_weights_elsewhere_in_a_branch, "keeps weights in other files"),
    (need_foreign_operators, "needs operators of 'evil.example'"),
    (ask_for_all_memory, "asks for more memory"),
    (answer_nan, "NaN or infinite"),
    (rename_the_input, "does not fit policy.onnx: the model's inputs are other"),
]


def test_hostile_models_are_refused(bc_export: Path, tmp_path: Path, cli: Command) -> None:
    for i, (change, sentence) in enumerate(MODELS):
        folder = Path(shutil.copytree(bc_export, tmp_path / str(i)))
        change_model(folder, change)
        for command in (("predict", folder, "[1, 0, 0]"), ("serve", folder, "--port", 0)):
            outcome = cli(*command)
            assert outcome.code == 2, change.__name__
            assert len(outcome.error_lines) == 1
            assert sentence in outcome.error_lines[0], (change.__name__, outcome.err)


def test_damaged_models_are_refused(bc_export: Path) -> None:
    whole = (bc_export / "policy.onnx").read_bytes()
    rng = np.random.default_rng(0)
    for size in (0, 1, 100, len(whole) - 1):
        (bc_export / "policy.onnx").write_bytes(whole[:size])
        with pytest.raises(ExportError, match=r"is not the file that contract\.json is for"):
            load_policy(bc_export)
    for trial in range(30):  # with a hash that fits, whatever the bytes are
        data = bytearray(whole)
        for at in rng.integers(0, len(whole), 20):
            data[at] = int(rng.integers(256))
        data = data if trial % 2 else data[: int(rng.integers(len(whole)))]
        (bc_export / "policy.onnx").write_bytes(bytes(data))
        digest = hashlib.sha256(bytes(data)).hexdigest()
        change_contract(bc_export, lambda c, digest=digest: c["model"].update(sha256=digest))
        with suppress(ExportError):  # some are models still
            load_policy(bc_export)


def changed(*path: Any, to: Any) -> Callable[[Any], None]:
    """Another value at a place of the contract."""

    def change(contract: Any) -> None:
        for key in path[:-1]:
            contract = contract[key]
        contract[path[-1]] = to

    return change


CONTRACTS: list[tuple[Callable[[Any], None], str]] = [
    (changed("format", to="other"), "'format' should be"),
    (changed("format_version", to=99), "format version 99"),
    (changed("model", "file", to="/etc/passwd"), "'model.file' should be"),
    (changed("model", "sha256", to=3), "'model.sha256' should be"),
    (changed("inputs", to=3), "'inputs' should be a list"),
    (changed("inputs", 0, "role", to="state"), "an observation"),
    (changed("inputs", 0, "path", to=3), "names and positions"),
    (changed("inputs", 0, "choices", to=[2]), "should hold 3 whole numbers"),
    (changed("inputs", 0, "categories", to=["a"]), "should hold 3 whole numbers"),
    (changed("inputs", 0, "dtype", to="object"), "dtype' should be one of"),
    (changed("inputs", 0, "shape", to=["batch", 1 << 40]), "larger than"),
    (changed("inputs", 0, "shape", to=["batch", -3]), "should hold whole numbers"),
    (changed("inputs", 0, "dtype", to="float64"), "does not fit policy.onnx"),
    (changed("inputs", 0, "low", to=[1, 2]), "should hold 3 numbers"),
    (changed("outputs", 0, "name", to="other"), "'outputs.action' should be"),
    (changed("outputs", 0, "dtype", to="int64"), "does not fit policy.onnx"),
    (changed("task", to=None), "'task.spaces' should describe"),
    (changed("task", "env_kwargs", to=3), "'task.env_kwargs' should be"),
    (changed("task", "eval_max_steps", to=0), "'task.eval_max_steps' should be"),
]


def test_contracts_that_do_not_fit_are_refused(bc_export: Path) -> None:
    path = bc_export / "contract.json"
    whole = path.read_text()
    for text in ("", "{", "[" * 100_000, "null", "3"):
        path.write_text(text)
        with pytest.raises(ExportError, match=r"is damaged|is not the contract"):
            load_policy(bc_export)
    for change, sentence in CONTRACTS:
        path.write_text(whole)
        change_contract(bc_export, change)
        with pytest.raises(ExportError) as refusal:
            load_policy(bc_export)
        assert sentence in str(refusal.value), refusal.value
        assert "\n" not in str(refusal.value)


def test_environments_of_strangers_are_made_with_trust_only(bc_export: Path, cli: Command) -> None:
    change_contract(bc_export, changed("task", "env_id", to="os:Evil-v0"))
    outcome = cli("eval", bc_export, "-n", 1)
    assert outcome.code == 2
    assert "--trust" in outcome.error_lines[0]
