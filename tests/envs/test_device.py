"""Environments on the device: tasks, seeds, episode ends, failures and the protocol."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.envs.device.classic import CartPole, TorchTask
from rl_training.envs.device.register import CLASSIC, device_task, register_device_env
from rl_training.envs.device.streams import normals, uniforms
from rl_training.envs.device.worlds import Worlds, make_worlds
from rl_training.envs.make import make_env
from rl_training.experiment.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFailure,
    EnvironmentSetupError,
)

from .simulators import Reach

CPU = torch.device("cpu")


def worlds_of(env_id: str, count: int, seed: int = 0, **env_kwargs: Any) -> Worlds:
    task = device_task(env_id)
    assert task is not None
    return make_worlds(task, env_kwargs, count, CPU, seed)


def random_actions(worlds: Worlds, generator: torch.Generator) -> torch.Tensor:
    spaces, n = worlds.spaces, worlds.num_envs
    if spaces.is_discrete:
        return torch.randint(spaces.action_dim, (n,), generator=generator)
    return torch.rand(n, spaces.action_dim, generator=generator) * 2.0 - 1.0


def largest_difference(task: TorchTask, env: gym.Env[Any, Any], steps: int) -> float:
    """Between the two, over steps that begin in the same states with the same actions."""
    generator, plain, worst = np.random.default_rng(0), env.unwrapped, 0.0
    env.reset(seed=0)
    task.reset(torch.ones(task.num_worlds, dtype=torch.bool), torch.arange(task.num_worlds))
    for _ in range(steps):
        before = task.variables.double().numpy()
        if isinstance(env.action_space, gym.spaces.Discrete):
            actions: Any = generator.integers(env.action_space.n, size=task.num_worlds)
        else:  # beyond the bounds, too
            actions = generator.uniform(-3, 3, (task.num_worlds, 1)).astype(np.float32)
        obs, reward, terminated, _ = task.step(torch.as_tensor(actions))
        for i, action in enumerate(actions):
            plain.state = np.array(before[i])  # type: ignore[attr-defined]
            if hasattr(plain, "steps_beyond_terminated"):
                plain.steps_beyond_terminated = None
            expected, gain, over, _, _ = plain.step(action)
            assert bool(terminated[i]) == over
            errors = [np.abs(obs[i].numpy() - expected).max(), abs(float(reward[i]) - gain)]
            worst = max(worst, *(float(error) for error in errors))
    return worst


def test_classic_tasks_step_as_gymnasium_does() -> None:
    for name in CLASSIC:
        task = device_task(f"torch/{name}")
        assert task is not None
        made = task.maker()(16, CPU)
        with gym.make(name) as env:
            assert made.time_limit == env.spec.max_episode_steps  # type: ignore[union-attr]
            # long enough for the cars to reach the wall, and for the poles to fall
            assert largest_difference(made, env, 60) < 2e-5, name

    class Heavier(CartPole):
        POLE = 0.11

    with gym.make("CartPole-v1") as env:
        assert largest_difference(Heavier(16, CPU), env, 20) > 1e-4
    arguments: dict[str, dict[str, Any]] = {
        "CartPole-v1": {"sutton_barto_reward": True},
        "Pendulum-v1": {"g": 5.0},
        "MountainCar-v0": {"goal_velocity": 0.02},
    }
    for name, env_kwargs in arguments.items():
        task = device_task(f"torch/{name}")
        assert task is not None
        with gym.make(name, **env_kwargs) as env:
            assert largest_difference(task.maker()(8, CPU, **env_kwargs), env, 30) < 2e-5


def test_whole_episodes_have_the_returns_of_gymnasium() -> None:
    """Random actions; the seeds are fixed, so that the outcome is, too."""
    for name, episodes, steps in (("CartPole-v1", 150, 200), ("Pendulum-v1", 12, 200)):
        worlds, generator = worlds_of(f"torch/{name}", 256), torch.Generator().manual_seed(0)
        for _ in range(steps):
            worlds.step(random_actions(worlds, generator))
        (found,) = worlds.totals()
        returns = []
        with gym.make(name) as env:
            env.action_space.seed(1)
            for episode in range(episodes):
                env.reset(seed=episode)
                total, over = 0.0, False
                while not over:
                    _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
                    total, over = total + float(reward), terminated or truncated
                returns.append(total)
        assert found.episodes >= 256
        error = 4.0 * np.std(returns) / np.sqrt(episodes)
        assert abs(found.return_sum / found.episodes - np.mean(returns)) < error, name


def test_random_numbers_depend_on_seed_and_place_alone() -> None:
    seeds = torch.tensor([0, 1, 2**62, 7])
    together = uniforms(seeds, 5)
    assert torch.equal(uniforms(seeds[2:3], 3)[0], together[2, :3])
    many = uniforms(torch.arange(20_000), 2)
    assert bool(((many >= 0) & (many < 1)).all())
    counts = torch.histc(many[:, 0], 10, 0, 1)
    assert float((counts - 2000).abs().max()) < 200
    assert abs(float(torch.corrcoef(many.T)[0, 1])) < 0.03
    bell = normals(torch.arange(20_000), 1)
    assert abs(float(bell.mean())) < 0.03
    assert abs(float(bell.std()) - 1.0) < 0.03


def test_a_world_depends_on_its_seed_and_its_actions_alone() -> None:
    """Whatever happens beside it, and one world in Gymnasium's form repeats its episodes."""
    few, many = worlds_of("simulators/Reach-v0", 2, seed=5), worlds_of("simulators/Reach-v0", 7, 5)
    generator = torch.Generator().manual_seed(0)
    alone = make_env("simulators/Reach-v0")
    seed = int(many._seeds()[1])
    obs, _ = alone.reset(seed=seed)
    assert np.array_equal(obs, many.obs[1].numpy())
    ends = 0
    for _ in range(50):
        actions = torch.rand(7, 1, generator=generator) * 2 - 1
        wide, narrow = many.step(actions), few.step(actions[:2])
        assert torch.equal(many.obs[:2], few.obs)
        for a, b in zip(wide, narrow, strict=True):
            assert torch.equal(a[:2], b)
        after, reward, terminated, truncated, _ = alone.step(0.5 * actions[1].numpy())
        assert np.array_equal(after, wide.next_obs[1].numpy())
        assert reward == float(wide.reward[1])
        over = bool(wide.terminated[1]), bool(wide.truncated[1])
        assert (terminated, truncated and not terminated) == over
        if any(over):
            ends += 1
            alone.reset(seed=int(many._seeds()[1]))
    assert ends >= 2
    assert not torch.equal(worlds_of("simulators/Reach-v0", 2, seed=6).obs, few.obs)


def test_episodes_end_by_termination_or_by_the_time_limit() -> None:
    worlds = worlds_of("simulators/Reach-v0", 2, max_episode_steps=6)
    pushed = torch.tensor([[1.0], [0.0]])  # the first leaves the line after four steps or five
    flags, first = [], worlds.obs[1, 0].clone()
    for _ in range(6):
        before = worlds.obs.clone()
        step = worlds.step(pushed)
        flags.append((step.terminated.tolist(), step.truncated.tolist()))
        if step.terminated[0]:  # the last observation, not the first of the next episode
            assert float(step.next_obs[0, 0]) > 2.0 > float(before[0, 0])
            assert abs(float(worlds.obs[0, 0])) <= 0.5
    assert [t[0][0] for t in flags].count(True) == 1
    assert flags[-1][1][1]
    assert not any(truncated[0] for _, truncated in flags)
    assert float(step.next_obs[1, 0]) == float(first)
    assert float(worlds.obs[1, 0]) != float(first)
    (totals,) = worlds.totals()
    assert totals.episodes == 2
    assert totals.length_sum == 6 + 1 + next(i for i, t in enumerate(flags) if t[0][0])


def test_state_is_tensors_from_which_another_process_continues() -> None:
    generator = torch.Generator().manual_seed(0)
    one, other = worlds_of("torch/Acrobot-v1", 3, 1), worlds_of("torch/Acrobot-v1", 3, 1)
    for _ in range(7):
        one.step(random_actions(one, generator))
    state = one.of(0).training_state()
    part = other.of(0)
    part.load_training_state(state)
    assert part.exact
    for _ in range(7):
        actions = random_actions(one, generator)
        for a, b in zip(one.step(actions), other.step(actions), strict=True):
            assert torch.equal(a, b)
    state["card"] = "another card"
    part.load_training_state(state)
    assert not part.exact
    assert "simulated on another card" in part.notes[0]
    Reach.deterministic = False
    try:
        assert "does not repeat" in (
            worlds_of("simulators/Reach-v0", 1).of(0).inexact_because or ""
        )
    finally:
        Reach.deterministic = True
    with pytest.raises(CheckpointError, match=r"holds 3 worlds.*this run has 4"):
        worlds_of("torch/Acrobot-v1", 4, 1).of(0).load_training_state(state)
    with pytest.raises(CheckpointError, match="holds no worlds"):
        part.load_training_state({"seeds": []})


def test_a_world_with_nan_is_named_with_seed_and_step() -> None:
    worlds = worlds_of("simulators/Reach-v0", 4, fails_at=3)
    seed = int(worlds._seeds()[2])
    for _ in range(5):
        worlds.step(torch.zeros(4, 1))
    with pytest.raises(
        EnvironmentFailure, match=rf"NaN.*observation in world 2 \(seed {seed}, step 3"
    ):
        worlds.check()


def test_wrong_simulators_are_refused() -> None:
    for env_kwargs, error, message in (
        ({"width": 1}, EnvironmentSetupError, r"observations of shape \(4, 1\).*expected \(4, 2\)"),
        ({"depth": 1}, EnvironmentSetupError, "env_kwargs: .*does not accept.*depth"),
    ):
        with pytest.raises(error, match=message):
            worlds_of("simulators/Reach-v0", 4, **env_kwargs)
    with pytest.raises(ConfigError, match="num_envs: 0 worlds"):
        worlds_of("simulators/Reach-v0", 0)
    with pytest.raises(
        ConfigError, match=r"'nowhere' must have the form 'package.module:function'"
    ):
        register_device_env("simulators/Other-v0", "nowhere")
    with pytest.raises(ConfigError, match="cannot be registered"):
        register_device_env("simulators/Other-v0", Reach, evaluated_in="Nothing-v7")

    for where in ("no_such_module:make", f"{Reach.__module__}:Nothing"):
        register_device_env("simulators/Lost-v0", where)
        with pytest.raises(EnvironmentSetupError, match=f"env_id: '{where}'.*is not found"):
            worlds_of("simulators/Lost-v0", 1)

    class OddActions(Reach):
        action_space = gym.spaces.Text(3)

    register_device_env("simulators/Odd-v0", OddActions)
    with pytest.raises(EnvironmentSetupError, match="'simulators/Odd-v0': action space"):
        worlds_of("simulators/Odd-v0", 2)

    def too_many(num_worlds: int, device: torch.device) -> Reach:
        raise torch.OutOfMemoryError

    register_device_env("simulators/Large-v0", too_many)
    with pytest.raises(ConfigError, match="num_envs: 9 worlds of 'simulators/Large-v0' do not fit"):
        worlds_of("simulators/Large-v0", 9)
