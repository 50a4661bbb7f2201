"""Exports of observations in parts: choices, categories, masks, and every way to give them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training import AWR, PPO
from rl_training.envs.make import make_env
from rl_training.experiment.errors import DataError, ExportError
from rl_training.export.contract import read_contract
from rl_training.export.exported import ExportedPolicy, load_policy
from rl_training.export.graph import PolicyGraph
from rl_training.export.run_policy import repeat_sample
from rl_training.serve.app import PolicyServer

from ..conftest import Command
from ..data.test_tables import KEYS, stays
from ..envs.choices import ACTIONS
from ..envs.choices import ENV_ID as CHOICES
from ..envs.masked import register_masked
from ..envs.test_parts import PARTS as WARDS
from .exporting import agent_of, disturb, export

SMALL: dict[str, Any] = {"hidden_sizes": [8], "tensorboard": False}


def ask(server: PolicyServer, body: Any, binary: bool = False) -> tuple[int, Any]:
    """Status and answer of `POST /act`."""
    sent: list[dict[str, Any]] = []
    data = body if binary else json.dumps(body).encode()
    headers = [(b"content-type", b"application/octet-stream")] if binary else []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": data}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/act", "headers": headers}
    asyncio.run(server(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_parts_are_given_as_the_environment_has_them(parts_export: Path) -> None:
    agent, folder = agent_of("bc", "discrete", "tests/Wards-v0"), parts_export
    inputs = {port["name"]: port for port in read_contract(folder)["inputs"]}
    ward, pair = inputs["observation.ward"], inputs["observation.pair.0"]
    assert (ward["dtype"], ward["choices"], ward["low"], ward["high"]) == ("int64", [4], 2, 5)
    assert (pair["choices"], pair["path"], pair["shape"]) == ([2, 3], ["pair", 0], ["batch", 2])
    assert inputs["observation.table"]["shape"] == ["batch", 2, 3]
    assert inputs["observation.table"]["low"] == -1.0
    assert repeat_sample(folder) == 0

    WARDS.seed(0)
    seen: list[Any] = [WARDS.sample() for _ in range(6)]
    expected = np.array([agent.predict(one)[0] for one in seen])
    policy, exported = load_policy(folder), ExportedPolicy(folder)
    columns: Any = {
        "table": np.stack([one["table"] for one in seen]),
        "ward": np.array([one["ward"] for one in seen]),
        "flags": np.stack([one["flags"] for one in seen]),
        "pair": tuple(np.stack([one["pair"][i] for one in seen]) for i in (0, 1)),
    }
    vectors, _ = agent.algorithm.spaces.layout.named_rows(columns, "")  # type: ignore[union-attr]
    assert [policy(one)[0] for one in seen] == expected.tolist()
    for given in (columns, seen):
        np.testing.assert_array_equal(policy(given)[0], expected)
    for given in (columns, vectors):
        np.testing.assert_array_equal(exported.predict(given)[0], expected)
    assert exported.predict(vectors[0])[0] == expected[0]

    server = PolicyServer(policy)
    as_json: Any = json.loads(json.dumps(seen, default=lambda x: x.tolist()))
    for i, one in enumerate(as_json):
        assert ask(server, {"observation": one}) == (200, {"action": expected[i]})
    together = {"actions": expected.tolist()}
    assert ask(server, {"observations": as_json}) == (200, together)
    by_name = json.loads(json.dumps(columns, default=lambda x: x.tolist()))
    assert ask(server, {"observations": by_name}) == (200, together)
    feeds, _ = policy.feeds(columns)
    rows = np.zeros(6, server.reader.packed)
    for name, values in feeds.items():
        rows[name] = values
    assert ask(server, rows.tobytes(), binary=True) == (200, together)

    one = as_json[0]
    wrong: list[tuple[Any, str]] = [
        ({**one, "ward": 6}, "'observation.ward' holds 6, expected a whole number from 2 to 5"),
        ({**one, "ward": 2.5}, "holds 2.5, expected a whole number"),
        ({**one, "ward": "north"}, "'observation.ward' must hold numbers"),
        ({**one, "table": [[1, 2]]}, "must have the shape [2, 3]"),
        ({**one, "table": [[1, 2], 3]}, "'observation.table'"),
        ({**one, "table": [[0, 0, 0], [0, 0, float("nan")]]}, "NaN, infinity"),
        ({**one, "table": [[0, 0, 0], [0, 0, 7]]}, "component 5 of row 0 is 7, outside [-1"),
        ({key: one[key] for key in ("table", "flags", "pair")}, "has no 'ward'"),
        ({**one, "pair": [[0, 0]]}, "has no 'pair.1'"),
        ([0.5] * 9, "the observation has no '"),
    ]
    for given, sentence in wrong:
        status, said = ask(server, {"observation": given})
        assert status == 400, (given, said)
        assert sentence in said["error"], said
        assert "\n" not in said["error"]
    assert ask(server, {"observation": one})[0] == 200
    with pytest.raises(DataError, match="must be 1 for one choice"):
        exported.predict(np.full_like(vectors[0], 0.5))
    assert exported.evaluate(2).returns == agent.evaluate(2).returns


def test_categories_are_given_by_name_and_unknown_ones_refused(
    tmp_path: Path,
    cli: Command,
    run_script: Callable[..., str],
) -> None:
    frame = stays(30)
    agent = AWR(dataset={"frame": frame, **KEYS}, output_dir=tmp_path, **SMALL)
    disturb(agent)
    mean, std = torch.tensor([60.0, 85, 0, 0, 0]), torch.tensor([9.0, 20, 1, 1, 1])
    agent.algorithm.normalizer.set_statistics(mean, std)
    folder = export(agent, tmp_path / "awr").folder
    contract = read_contract(folder)
    ward = contract["inputs"][2]
    assert (ward["name"], ward["dtype"]) == ("observation.ward", "int64")
    assert ward["categories"] == ["icu", "north", "south"]
    assert contract["outputs"][0]["categories"] == ["high", "low", "none"]
    policy, exported = load_policy(folder), ExportedPolicy(folder)
    names = agent.predict(frame)[0]
    assert len(set(names)) > 1
    np.testing.assert_array_equal(exported.predict(frame)[0], names)
    np.testing.assert_array_equal(policy.label(policy(frame)[0]), names)
    seen = {"age": 61.0, "pulse": 80, "ward": "icu"}
    action, label = policy(seen)[0], agent.predict(seen)[0]
    assert exported.predict(seen)[0] == label
    server = PolicyServer(policy)
    assert ask(server, {"observation": seen}) == (200, {"action": action, "label": label})
    status, said = ask(server, {"observation": {**seen, "ward": "west"}})
    assert status == 400
    assert said["error"] == (
        "'observation.ward' has the unknown category 'west'; known are icu, north, south"
    )
    with pytest.raises(DataError, match="unknown category 'west'"):
        exported.predict({**seen, "ward": "west"})
    assert json.loads(cli("predict", folder, json.dumps(seen)).out) == label
    refused = cli("predict", folder, json.dumps({**seen, "ward": "west"}))
    assert (refused.code, len(refused.error_lines)) == (2, 1)
    assert "unknown category 'west'" in refused.error_lines[0]
    assert json.loads(run_script(folder / "run_policy.py", json.dumps(seen))) == label
    card = json.loads((folder / "card.json").read_text())
    assert card["support"]["states"] > 0
    assert card["by_group"]


def test_a_mask_is_an_input_of_its_own(tmp_path: Path) -> None:
    register_masked()
    agent = PPO("masked/Task-v0", output_dir=tmp_path, **SMALL)
    disturb(agent)
    folder = export(agent, tmp_path / "ppo", further=["density"]).folder
    seen, mask = read_contract(folder)["inputs"]
    assert (seen["shape"], mask["shape"]) == (["batch", 3], ["batch", 5])
    assert (mask["role"], mask["dtype"]) == ("mask", "bool")
    assert repeat_sample(folder) == 0
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(40, 3)).astype(np.float32)
    masks = rng.random((40, 5)) < 0.4
    masks[np.arange(40), rng.integers(0, 5, 40)] = True
    policy, exported = load_policy(folder), ExportedPolicy(folder)
    expected = agent.predict(obs, action_mask=masks)[0]
    found = policy(obs, action_mask=masks)[0]
    np.testing.assert_array_equal(found, expected)
    assert masks[np.arange(40), found].all()
    assert len(set(found.tolist())) > 2
    np.testing.assert_array_equal(exported.predict(obs, action_mask=masks)[0], expected)
    joined = np.concatenate([obs, masks], 1).astype(np.float32)
    np.testing.assert_array_equal(exported.predict(joined)[0], expected)
    assert exported.evaluate(2).returns == agent.evaluate(2).returns

    server = PolicyServer(policy, bounds=False)
    one = {"observation": obs[0].tolist(), "action_mask": masks[0].tolist()}
    status, said = ask(server, one)
    assert (status, said["action"]) == (200, expected[0])
    assert ask(server, {"observation": one})[1]["action"] == expected[0]  # as some tasks give it
    many = {"observations": obs.tolist(), "action_mask": masks.tolist()}
    assert ask(server, many)[1]["actions"] == expected.tolist()
    for wrong, sentence in (
        ({"observation": one["observation"]}, "'action_mask' is missing"),
        ({**one, "action_mask": [False] * 5}, "must allow an action in every row"),
        ({**one, "action_mask": [True] * 4}, "must have the shape [5]"),
        ({**many, "action_mask": [[True] * 5]}, "40 observations have 1 action masks"),
    ):
        status, said = ask(server, wrong)
        assert (status, sentence in said["error"]) == (400, True), said


def test_an_image_beside_other_parts(tmp_path: Path) -> None:
    env_id = "tests/StackedLamps-v0"
    env, stored = gym.make(env_id), make_env(env_id)
    seen: Any = [env.reset(seed=i)[0] for i in range(8)]
    rows = np.stack([stored.reset(seed=i)[0] for i in range(8)])
    agent = agent_of("dqn", "discrete", env_id)
    network: Any = agent.algorithm.policy
    with torch.no_grad():  # either action is the best for a half
        q = network.q_values(torch.from_numpy(rows))
        network.head.actions.layers[-1].bias[0] -= (q[:, 0] - q[:, 1]).quantile(0.5)
    folder = export(agent, tmp_path / "dqn").folder
    inputs = {port["name"]: port for port in read_contract(folder)["inputs"]}
    camera, hour, rule = (inputs[f"observation.{name}"] for name in ("camera", "hour", "rule"))
    assert (camera["dtype"], camera["shape"]) == ("uint8", ["batch", 3, 16, 16])
    assert (hour["choices"], hour["low"], hour["high"]) == ([3] * 3, [0] * 3, [2] * 3)
    assert (rule["shape"], rule["low"], rule["high"]) == (["batch", 3, 1], -1.0, 1.0)
    assert repeat_sample(folder) == 0
    policy, exported = load_policy(folder), ExportedPolicy(folder)
    expected = np.array([agent.predict(one)[0] for one in seen])
    assert len(set(expected.tolist())) > 1
    columns: Any = {key: np.stack([one[key] for one in seen]) for key in seen[0]}
    assert [policy(one)[0] for one in seen] == expected.tolist()
    assert [exported.predict(row)[0] for row in rows] == expected.tolist()
    for given in (seen[:], columns, rows):
        np.testing.assert_array_equal(exported.predict(given)[0], expected)
    assert exported.evaluate(2).returns == agent.evaluate(2).returns

    server = PolicyServer(policy)
    as_json: Any = json.loads(json.dumps(seen, default=lambda x: x.tolist()))
    assert ask(server, {"observation": as_json[0]}) == (200, {"action": expected[0]})
    together = (200, {"actions": expected.tolist()})
    assert ask(server, {"observations": as_json}) == together
    packed = np.zeros(8, server.reader.packed)
    for name, values in policy.feeds(columns)[0].items():
        packed[name] = values
    assert ask(server, packed.tobytes(), binary=True) == together
    bright, dim = np.full((3, 16, 16), 256).tolist(), np.full((3, 16, 16), 0.5).tolist()
    for wrong, sentence in (
        ({"camera": bright}, "'observation.camera' must hold whole numbers from 0 to 255"),
        ({"camera": dim}, "'observation.camera' must hold whole numbers from 0 to 255"),
        ({"camera": [[0]]}, "must have the shape [3, 16, 16]"),
        ({"rule": [[0], [0], [7]]}, "'observation.rule': component 2 of row 0 is 7"),
        ({"hour": [0, 3, 0]}, "'observation.hour' holds 3, expected a whole number from 0 to 2"),
    ):
        status, said = ask(server, {"observation": {**as_json[0], **wrong}})
        assert (status, sentence in said["error"]) == (400, True), said
    contract = json.loads((folder / "contract.json").read_text())
    contract["inputs"][0]["frame_stack"] = 7
    (folder / "contract.json").write_text(json.dumps(contract))
    with pytest.raises(ExportError, match="frame_stack' should be the first axis"):
        load_policy(folder)


def test_actions_of_several_choices_and_of_any_shape(tmp_path: Path) -> None:
    obs = np.random.default_rng(0).uniform(-1, 1, (30, 4)).astype(np.float32)
    for kind, draws in (("multi_discrete", True), ("multi_binary", False), ("table", False)):
        agent = PPO(CHOICES, env_kwargs={"actions": kind}, output_dir=tmp_path, **SMALL)
        disturb(agent)
        result = export(agent, tmp_path / kind, stochastic=draws)
        assert repeat_sample(result.folder) <= 1e-5
        action = read_contract(result.folder)["outputs"][0]
        space: Any = ACTIONS[kind]
        assert action["shape"] == ["batch", *space.shape]
        policy = ExportedPolicy(result.folder)
        expected = agent.predict(obs)[0]
        found = policy.predict(obs, deterministic=not draws)[0]
        assert found.shape == expected.shape
        assert all(space.contains(one.astype(space.dtype)) for one in found)
        if not draws:
            np.testing.assert_allclose(found, expected, atol=1e-5)
            assert len(np.unique(found, axis=0)) > 1
            assert policy.evaluate(2).returns == pytest.approx(agent.evaluate(2).returns)
        reply = ask(PolicyServer(policy.policy), {"observation": obs[0].tolist()})[1]["action"]
        assert np.shape(reply) == space.shape
    scalar = PPO(CHOICES, env_kwargs={"actions": "scalar"}, output_dir=tmp_path, **SMALL)
    graph = PolicyGraph(scalar.algorithm, draws=False)
    with torch.no_grad():
        (numbers,) = graph(torch.from_numpy(obs))
    np.testing.assert_allclose(numbers.numpy(), scalar.predict(obs)[0], atol=1e-6)


def test_a_policy_without_masks_takes_none_and_older_contracts_are_read(bc_export: Path) -> None:
    path = bc_export / "contract.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 1}))
    status, said = ask(
        PolicyServer(load_policy(bc_export)), {"observation": [0, 0, 0], "action_mask": [True]}
    )
    assert (status, "takes no mask" in said["error"]) == (400, True)
