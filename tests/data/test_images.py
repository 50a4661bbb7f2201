"""Data sets of images: kept as bytes in every file and home, alone or beside other parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rl_training import BC, IQL, TransitionDataset, load, load_transition_dataset
from rl_training.cli.main import app
from rl_training.data.convert import save_dataset
from rl_training.data.dataset import ARRAY_NAMES
from rl_training.data.inference import spaces_section, stored_spaces
from rl_training.data.packed import open_packed
from rl_training.data.sources import pack_source
from rl_training.experiment.config import SpacesConfig
from rl_training.experiment.errors import ConfigError, DataError, RLTrainingError
from rl_training.replay.table import TransitionTable

from ..envs import test_packed

CATCH = "rl_training/Catch-v0"
LAMPS, STACKED = "tests/Lamps-v0", "tests/StackedLamps-v0"
assert test_packed.SIDE  # its module registers both
SMALL: dict[str, Any] = {
    "tensorboard": False,
    "device": "cpu",
    "threads": 1,
    "hidden_sizes": [8],
    "batch_size": 8,
}


def arrays(rows: int = 40, shape: tuple[int, ...] = (9, 11, 3)) -> dict[str, Any]:
    """Images of random bytes, among which every float32 occurs that is none."""
    rng = np.random.default_rng(0)
    seen = rng.integers(0, 256, (rows + 1, *shape), dtype=np.uint8)
    seen[:, 0, :2] = 255
    return {
        "observations": seen[:-1],
        "next_observations": seen[1:],
        "actions": rng.integers(0, 3, rows),
        "rewards": rng.standard_normal(rows).astype(np.float32),
        "terminations": np.arange(rows) % 10 == 9,
        "truncations": np.arange(rows) % 10 == 4,
    }


def parts(rows: int = 40) -> dict[str, Any]:
    plain = arrays(rows)
    speed = (np.arange(2 * rows + 2, dtype=np.float32) / 7.0).reshape(-1, 2)
    both = {name: plain.pop(name) for name in ("observations", "next_observations")}
    return {
        **plain,
        "observations": {"camera": both["observations"], "speed": speed[:-1]},
        "next_observations": {"camera": both["next_observations"], "speed": speed[1:]},
    }


def same(one: TransitionDataset, other: TransitionDataset) -> None:
    assert one.spaces == other.spaces
    for name in ARRAY_NAMES:
        mine, theirs = (np.asarray(getattr(data, name)) for data in (one, other))
        assert mine.dtype == theirs.dtype, name
        np.testing.assert_array_equal(mine, theirs, err_msg=name)
    assert one.fingerprint() == other.fingerprint()


def test_files_and_packed_folders_give_back_every_byte(tmp_path: Path) -> None:
    collected = [
        load_transition_dataset({"kind": "random", "steps": 30}, env_id=env_id)
        for env_id in (CATCH, LAMPS, STACKED)
    ]
    for number, dataset in enumerate([*collected, load_transition_dataset(arrays())]):
        assert dataset.observations.dtype == np.uint8
        for kind in ("npz", "h5"):
            path = save_dataset(dataset, tmp_path / f"{number}.{kind}")
            same(load_transition_dataset(path, env_id=dataset.env_id), dataset)
        packed = pack_source(path, tmp_path / f"packed-{number}", env_id=dataset.env_id)
        same(open_packed(packed.folder).dataset, dataset)
        section = SpacesConfig.parse(spaces_section(dataset.spaces), prefix="spaces.")
        assert stored_spaces(section) == dataset.spaces
    named = load_transition_dataset(parts())
    assert named.spaces.packing is not None
    assert (named.spaces.packing.pixels, named.spaces.packing.numbers) == ((9, 11, 3), 2)
    path = save_dataset(named, tmp_path / "named.npz")
    stored = np.load(path)
    np.testing.assert_array_equal(stored["observations.camera"], parts()["observations"]["camera"])
    same(load_transition_dataset(path), named)
    episode = {**parts(4), "terminations": [False] * 3 + [True], "truncations": [False] * 4}
    listed = load_transition_dataset([episode])
    np.testing.assert_array_equal(listed.observations, named.observations[:4])
    minari = pytest.importorskip("minari")
    assert minari
    with pytest.raises(DataError, match="of which a Minari data set would lose the parts"):
        save_dataset(named, "minari:lamps/named-v0")


def test_homes_hold_the_bytes_and_batches_are_the_images(tmp_path: Path) -> None:
    dataset = load_transition_dataset(arrays())
    packed = pack_source(save_dataset(dataset, tmp_path / "x.npz"), tmp_path / "x").dataset
    index = torch.tensor([0, 7, 39, 7])
    for home in ("device", "host", "disk"):
        table = TransitionTable(
            packed, torch.device("cpu"), gamma=0.9, with_returns=True, home=home
        )
        width = -(-9 * 11 * 3 // 4)
        assert table.widths[:2] == [width, width]  # four bytes to a column
        batch = table.gather(index)
        for mine, theirs in (
            (batch.obs, dataset.observations[index]),
            (batch.next_obs, dataset.next_observations[index]),
            (batch.final_obs, dataset.next_observations[[4, 9, 39, 9]]),
        ):
            assert mine is not None
            assert mine.dtype == torch.uint8
            np.testing.assert_array_equal(mine.numpy(), theirs)


def test_cloning_from_images_without_an_environment(tmp_path: Path) -> None:
    """Equal parameters in every home, exact resume, held-out metrics, predict by name."""
    path = Path(save_dataset(load_transition_dataset(parts()), tmp_path / "log.npz"))
    folder = str(pack_source(path, tmp_path / "packed").folder)
    ends, split = [], {"holdout": 0.3}
    for home in ("device", "host", "disk"):
        source = {"kind": "packed", "path": folder, "home": home, "split": split}
        agent = BC(dataset=source, total_updates=6, output_dir=tmp_path, **SMALL)
        result = agent.learn(progress=False)
        ends.append(torch.cat([p.detach().flatten() for p in agent.algorithm.parameters()]))
    assert all(torch.equal(ends[0], end) for end in ends[1:])
    assert {"offline/log_likelihood", "offline/action_agreement"} <= set(result.metrics)
    half = BC(dataset=source, total_updates=3, output_dir=tmp_path, **SMALL)
    run = half.learn(progress=False).run_dir
    resumed = BC.resume(run, total_updates=6, progress=False)
    end = torch.cat([p.detach().flatten() for p in resumed.algorithm.parameters()])
    assert torch.equal(ends[0], end)
    camera, speed = parts()["observations"]["camera"], parts()["observations"]["speed"]
    actions, _ = load(run).predict({"camera": camera[:5], "speed": speed[:5]})
    assert actions.shape == (5,)
    assert load(run).predict({"camera": camera[2], "speed": speed[2]})[0] == actions[2]


def test_an_agent_of_images_collects_and_is_cloned(tmp_path: Path) -> None:
    agent = IQL(CATCH, dataset="random", total_updates=2, output_dir=tmp_path, **SMALL)
    data = agent.collect(episodes=2)
    assert data.observations.shape == (14, 16, 16)
    clone = BC(LAMPS, dataset={"kind": "random", "steps": 40}, **SMALL, output_dir=tmp_path)
    clone.learn(total_updates=2, progress=False)
    again = clone.collect(steps=9, epsilon=0.5)
    obs, _ = gym.make(LAMPS).reset(seed=0)
    assert again.spaces == clone.algorithm.spaces
    assert load(clone.run_dir).predict(obs)[0] in (0, 1)


def test_the_command_line_makes_inspects_packs_and_trains(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        found = CliRunner().invoke(app, list(arguments))
        assert found.exit_code == 0, found.output
        return found.output

    file, folder = str(tmp_path / "catch.npz"), str(tmp_path / "packed")
    run("data", "make", "random", "--env", CATCH, "--steps", "40", "--out", file)
    shown = " ".join(run("data", "inspect", file).split())
    assert "images (16, 16)" in shown
    assert "takes vectors, these are images" in shown
    run("data", "pack", file, "--out", folder)
    quick = ["total_updates=2", "tensorboard=false", f"output_dir={tmp_path}", "device=cpu"]
    run("train", "bc", "env_id=null", f"dataset={folder}", *quick)


def test_choices_alone_are_encoded_as_the_environment_encodes_them() -> None:
    log = {
        "observations": np.asarray([0, 4, 8, 15]),
        "next_observations": np.asarray([4, 8, 15, 15]),
        "actions": np.asarray([1, 1, 2, 0]),
        "rewards": np.zeros(4),
        "terminations": np.asarray([False, False, False, True]),
        "truncations": np.zeros(4, bool),
    }
    known = load_transition_dataset(log, env_id="FrozenLake-v1")
    said = load_transition_dataset(log, spaces=SpacesConfig.parse({"layout": [{"choices": [16]}]}))
    for data in (known, said):
        np.testing.assert_array_equal(data.observations, np.eye(16)[log["observations"]])
        np.testing.assert_array_equal(data.next_observations, np.eye(16)[log["next_observations"]])
    with pytest.raises(DataError, match=r"say how many there are.*choices: \[16\]"):
        load_transition_dataset(log)
    few = SpacesConfig.parse({"layout": [{"choices": [8]}]})
    with pytest.raises(DataError, match="holds 8, expected a whole number from 0 to 7"):
        load_transition_dataset(log, spaces=few)


def test_what_does_not_fit_is_refused_in_one_sentence(tmp_path: Path) -> None:
    def with_(name: str, value: Any) -> dict[str, Any]:
        return {**arrays(), name: value}

    plain, named = arrays(), parts()
    seen, two = named["observations"], dict(named["observations"])
    two["left"] = two["camera"]
    cases: list[tuple[Any, str | None, str]] = [
        (plain, CATCH, r"uint8 of the shape \(9, 11, 3\) per row, but the task has images \(16"),
        (with_("next_observations", plain["observations"][:, :8]), None, r"shape \(8, 11, 3\) per"),
        (with_("observations", plain["observations"] / 255.0), None, r"reshape it"),
        (with_("action_mask", np.ones((40, 3), bool)), None, "masks need vector observations"),
        ({**named, "observations": two}, None, "there are 2 images, camera and left"),
        (
            {**named, "observations": {"camera": seen["camera"]}},
            None,
            "'next_observations.speed' i",
        ),
        (
            {**named, "next_observations": {"camera": seen["camera"]}},
            None,
            "key 'next_observations",
        ),
        (named, CATCH, "its observations are several arrays"),
        (named, LAMPS, "is not part of the observations"),
        ({**named, "obs": plain["observations"]}, None, "mean the same array"),
    ]
    for source, env_id, message in cases:
        with pytest.raises(DataError, match=message) as caught:
            load_transition_dataset(source, env_id=env_id)
        assert "\n" not in str(caught.value)
    for target in ("x.parquet", "x.csv"):
        with pytest.raises(DataError, match="which tables do not hold"):
            save_dataset(load_transition_dataset(plain), tmp_path / target)
    tiny = {**plain, "observations": np.zeros((40, 5, 5), np.uint8)}
    with pytest.raises(RLTrainingError, match="5x5 pixels are too small"):
        BC(dataset={**tiny, "next_observations": tiny["observations"]}, **SMALL)
    with pytest.raises(ConfigError, match=r"^dataset\.normalize_observations: images"):
        BC(CATCH, dataset={"kind": "random", "normalize_observations": True}, **SMALL)
    for wrong in ({"image_shape": [3]}, {"image_shape": [4, 4], "obs_dim": 9}):
        with pytest.raises(ConfigError, match="image_shape"):
            SpacesConfig.parse(wrong)
    assert not list(tmp_path.iterdir())
