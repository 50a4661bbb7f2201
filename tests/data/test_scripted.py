"""Scripted and random data: quality, reproducibility, cache."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.data import scripted
from rl_training.data.scripted import Recipe, Segment, scripted_arrays
from rl_training.data.sources import load_transition_dataset
from rl_training.data.validation import unmarked_seams
from rl_training.envs.make import env_spaces, make_env
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import (
    ConfigError,
    DataError,
    EnvironmentSetupError,
    MissingExtraError,
)


def test_pendulum_mixed_is_good_and_bad_half_and_half() -> None:
    mixed = load_transition_dataset("pendulum-mixed", env_id="Pendulum-v1")
    returns = mixed.episode_returns()
    assert mixed.episode_lengths().tolist() == [200] * 200
    assert not mixed.terminations.any()
    assert -160 < returns[:100].mean() < -130
    assert -1350 < returns[100:].mean() < -1000
    assert mixed.spaces == Spaces(3, "box", 1, (-2.0,), (2.0,))
    assert mixed.env_id == "Pendulum-v1"
    assert unmarked_seams(mixed) == 0
    assert mixed.notes == ()
    expert = load_transition_dataset("pendulum-expert")
    random = load_transition_dataset("pendulum-random")
    assert expert.episode_returns().mean() > -200
    assert random.episode_returns().mean() < -1000
    for name, array in mixed.to_arrays().items():
        np.testing.assert_array_equal(array[:20000], getattr(expert, name))
        np.testing.assert_array_equal(array[20000:], getattr(random, name))


def test_cartpole_is_discrete_with_half_of_the_rows_each() -> None:
    mixed = load_transition_dataset("cartpole-mixed", env_id="CartPole-v1")
    assert mixed.actions.dtype == np.int64
    assert set(mixed.actions.tolist()) == {0, 1}
    returns = mixed.episode_returns()
    assert returns[:50].mean() > 475
    assert 15 < returns[50:].mean() < 35
    assert 0.4 < mixed.episode_lengths()[:50].sum() / len(mixed) < 0.65
    assert mixed.truncations.sum() == 50
    assert mixed.terminations.sum() == 1000
    assert load_transition_dataset("cartpole-expert").episode_returns().tolist() == [500.0] * 50


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    segments = (Segment("pendulum-swing-up", 0, 1), Segment("random", 1, 1))
    monkeypatch.setitem(scripted.SCRIPTED, "tiny", Recipe("Pendulum-v1", segments))
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "cache"))
    return "tiny"


def _same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return all(np.array_equal(one[name], two[name]) for name in one)


def test_the_seed_decides_everything(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = scripted_arrays(tiny, 0)
    monkeypatch.setenv("RL_TRAINING_CACHE", "/nowhere/to/be/found")
    again = scripted_arrays(tiny, 0)
    assert _same(first, again)
    assert not _same(first, scripted_arrays(tiny, 1))


def test_cache_is_used_and_repaired(tiny: str, tmp_path: Path) -> None:
    first = scripted_arrays(tiny, 0)
    (path,) = (tmp_path / "cache").iterdir()
    assert path.name.startswith("tiny-seed0-recipe")
    whole = path.read_bytes()
    second = scripted_arrays(tiny, 1)
    (other,) = set((tmp_path / "cache").iterdir()) - {path}
    shutil.copyfile(other, path)
    assert _same(second, scripted_arrays(tiny, 0)), "generated although cached"
    path.write_bytes(whole)
    altered: dict[str, Any] = {
        **first,
        "rewards": first["rewards"] + 1,
        "digest": np.array("0" * 64),
    }
    for damage in (whole[: len(whole) // 2], b"", b"not a zip", None):
        if damage is None:  # a sound archive of other numbers
            np.savez(path, **altered)
        else:
            path.write_bytes(damage)
        assert _same(first, scripted_arrays(tiny, 0))
        assert path.read_bytes() == whole


def test_unwritable_cache_is_skipped(
    tiny: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("RL_TRAINING_CACHE", str(blocker / "below-a-file"))
    assert len(scripted_arrays(tiny, 0)["rewards"]) == 400


def test_names_and_environments_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"is unknown \(did you mean 'pendulum-mixed'\?\)"):
        load_transition_dataset({"kind": "scripted", "name": "pendulum-mixd"})
    with pytest.raises(DataError, match=r"is made in Pendulum-v1, not in CartPole-v1; use cart"):
        load_transition_dataset("pendulum-mixed", env_id="CartPole-v1")


def test_random_data() -> None:
    config = {"kind": "random", "steps": 450, "seed": 3}
    one = load_transition_dataset(config, env_id="Pendulum-v1")
    assert one.episode_lengths().tolist() == [200, 200, 50]
    assert "last episode has no end" in one.notes[0]
    assert np.abs(one.actions).max() > 1.9
    assert unmarked_seams(one) == 0
    again = load_transition_dataset(config, env_id="Pendulum-v1")
    assert again.fingerprint() == one.fingerprint()
    longer = load_transition_dataset({**config, "steps": 460}, env_id="Pendulum-v1")
    np.testing.assert_array_equal(longer.observations[:450], one.observations)
    other = load_transition_dataset({**config, "seed": 4}, env_id="Pendulum-v1")
    assert other.fingerprint() != one.fingerprint()
    short = load_transition_dataset({**config, "steps": 50}, env_id="Pendulum-v1")
    assert not short.has_whole_episode
    discrete = load_transition_dataset({"kind": "random", "steps": 60}, env_id="CartPole-v1")
    assert set(discrete.actions.tolist()) == {0, 1}
    with pytest.raises(DataError, match="random data need an environment"):
        load_transition_dataset(config)


def test_random_data_has_ten_thousand_steps_by_default() -> None:
    assert len(load_transition_dataset("random", env_id="CartPole-v1")) == 10_000


def test_environments_that_cannot_be_made() -> None:
    with pytest.raises(EnvironmentSetupError, match=r"'Pendlum-v1' \(did you mean 'Pendulum-v1'"):
        make_env("Pendlum-v1")
    with pytest.raises(EnvironmentSetupError, match="env_kwargs: environment 'Pendulum-v1' does"):
        make_env("Pendulum-v1", {"gravity": 1.0})
    with pytest.raises(EnvironmentSetupError, match=r"of 'no_such_package:Env-v0' is not found"):
        make_env("no_such_package:Env-v0")
    assert make_env("Pendulum-v1", {"g": 9.81}).unwrapped.g == 9.81  # type: ignore[attr-defined]
    assert env_spaces("FrozenLake-v1").obs_dim == 16


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [
        ("HalfCheetah-v5", "mujoco", "mujoco"),
        ("LunarLander-v3", "Box2D", "box2d"),
        ("ALE/Pong-v5", "ale_py", "atari"),
    ],
)
def test_missing_simulators_name_their_extra(env_id: str, module: str, extra: str) -> None:
    try:
        __import__(module)
    except ImportError:
        with pytest.raises(MissingExtraError, match=rf"'{env_id}' needs .*rl-training\[{extra}\]"):
            make_env(env_id)
    else:
        pytest.skip(f"{module} is installed")


def test_mix_rejects_bad_configs() -> None:
    mix = [{"kind": "scripted", "name": "pendulum-expert"}]
    with pytest.raises(ConfigError, match=r"dataset\.max_episodes: belongs to the parts"):
        load_transition_dataset({"mix": mix, "max_episodes": 3})
    with pytest.raises(ConfigError, match=r"nam: unknown key \(did you mean 'name'\?\)"):
        load_transition_dataset({"kind": "scripted", "nam": "pendulum-expert"})
