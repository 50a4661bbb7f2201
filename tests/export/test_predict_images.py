"""`rl-training predict` with policies that see images, of runs and of exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs.toys.catch import CATCH_ID

from ..conftest import Command
from ..test_bad_input import assert_refused
from .exporting import agent_of, export

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 16, 16), dtype=np.uint8)


@pytest.fixture(scope="module")
def catch(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Path]]:
    """An agent that sees images alone, and where its checkpoint and its export are."""
    folder, agent = tmp_path_factory.mktemp("catch"), agent_of("dqn", "discrete", CATCH_ID)
    agent.save(folder / "saved")
    return agent, {"run": folder / "saved", "export": export(agent, folder / "policy").folder}


@pytest.mark.parametrize("kind", ["run", "export"])
def test_an_image_from_json_and_many_from_a_file(
    catch: tuple[Any, dict[str, Path]], cli: Command, tmp_path: Path, kind: str
) -> None:
    agent, folders = catch
    policy, expected = folders[kind], agent.predict(IMAGES)[0]
    for given, wanted in (
        (IMAGES[0].tolist(), expected[0]),
        (IMAGES.tolist(), expected),
    ):
        answered = cli("predict", policy, json.dumps(given))
        assert answered.code == 0, answered.err
        assert json.loads(answered.out) == wanted.tolist()
    for dtype in (np.uint8, np.int64):
        np.savez(tmp_path / "o.npz", observations=IMAGES.astype(dtype))
        out = tmp_path / f"{np.dtype(dtype)}.npz"
        done = cli("predict", policy, "--file", tmp_path / "o.npz", "--out", out)
        assert done.code == 0, done.err
        with np.load(out) as written:
            np.testing.assert_array_equal(written["actions"], expected)


@pytest.mark.parametrize("kind", ["run", "export"])
def test_what_is_no_image_is_refused_in_one_sentence(
    catch: tuple[Any, dict[str, Path]], cli: Command, tmp_path: Path, kind: str
) -> None:
    policy = catch[1][kind]
    sentence = "must hold whole numbers from 0 to 255"
    for wrong in (0.5, 256, -1, np.inf, np.nan):
        image = np.full((16, 16), wrong).tolist()
        assert_refused(cli("predict", policy, json.dumps(image)), sentence)
        np.savez(tmp_path / "o.npz", observations=[image])
        assert_refused(cli("predict", policy, "--file", tmp_path / "o.npz"), sentence)
    assert_refused(cli("predict", policy, "[1, 2]"), "shape", "16, 16", "2")
    for shape in ((16, 16), (2, 16), (2, 16, 17), ()):
        np.savez(tmp_path / "o.npz", observations=np.zeros(shape, np.uint8))
        done = cli("predict", policy, "--file", tmp_path / "o.npz")
        assert_refused(done, "o.npz': array", "in the shape (n, 16, 16)", f"the shape {shape};")


def test_an_image_beside_other_parts_from_json(cli: Command, tmp_path: Path) -> None:
    agent = agent_of("dqn", "discrete", "tests/Lamps-v0")
    agent.save(tmp_path / "saved")
    seen, _ = gym.make("tests/Lamps-v0").reset(seed=0)
    expected = int(agent.predict(seen)[0])
    given = json.loads(json.dumps(seen, default=lambda array: array.tolist()))
    dim = {**given, "camera": np.full((16, 16), 0.5).tolist()}
    for policy in (tmp_path / "saved", export(agent, tmp_path / "policy").folder):
        answered = cli("predict", policy, json.dumps(given))
        assert answered.code == 0, answered.err
        assert json.loads(answered.out) == expected
        refused = cli("predict", policy, json.dumps(dim))
        assert_refused(refused, "camera' must hold whole numbers from 0 to 255, got float64")
        assert_refused(cli("predict", policy, '{"rule": [1]}'), "predict:", "camera")
