"""Acting with a memory: in training, in evaluation, in `predict`, and in what is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from rl_training import Dreamer, RLTrainingError, TrainConfig
from rl_training.algorithms.world_model_agent import DreamerCarry
from rl_training.envs.collector import Step
from rl_training.envs.make import env_spaces
from rl_training.envs.toys.catch import CATCH_ID
from rl_training.experiment.errors import ConfigError
from rl_training.models.carry import reset_rows, rows_of
from rl_training.runtime.build import build_algorithm, build_loop
from rl_training.runtime.collection import BehavingPolicy, Behaviour
from rl_training.runtime.evaluation import start_seed
from tests.conftest import Command
from tests.contract.small_runs import LOOP_KNOBS
from tests.envs.probe import PROBE_ID
from tests.test_bad_input import assert_refused

from ..each import each

SMALL: dict[str, Any] = {**LOOP_KNOBS["world_model"], "lr": 1e-2}
PROBE = {"terminate_at": 5, "truncate_at": 5, "alternate": True, "jitter": 3, "scaled": True}


def agent_in(env_id: str, **options: Any) -> Dreamer:
    return Dreamer(env_id, device="cpu", threads=1, tensorboard=False, **{**SMALL, **options})


# --- what is stored ----------------------------------------------------------------------------


def told(steps: list[Step], env: int) -> Iterator[tuple[Any, ...]]:
    """The moments of one environment's stream, from what its environment returned."""
    begins, action, reward = True, 0.0 * steps[0].action[env], 0.0
    for step in steps:
        yield step.obs[env], action, reward, begins, False, False
        action, reward = step.action[env], step.reward[env]
        begins = bool(step.terminated[env] or step.truncated[env])
        if begins:
            yield step.next_obs[env], action, reward, False, True, bool(step.terminated[env])


@each("actions", ["box", "discrete"])
@each(("num_envs", "mode"), [(1, "sync"), (3, "sync"), (3, "async")])
def test_streams_hold_every_observation_once(actions: str, num_envs: int, mode: str) -> None:
    config = TrainConfig(
        algo="dreamer",
        env_id=PROBE_ID,
        env_kwargs={**PROBE, "actions": actions},
        num_envs=num_envs,
        vectorization=mode,
        device="cpu",
        total_timesteps=90,
        algo_kwargs={**SMALL, "learning_starts": 60},
    )
    algorithm = build_algorithm(config, env_spaces(config.env_id, config.env_kwargs))
    loop: Any = build_loop(config, algorithm)
    steps: list[Step] = []
    finish = loop.experience.collector.finish

    def noted() -> Step:
        steps.append(finish())
        return steps[-1]

    loop.experience.collector.finish = noted
    carries = [loop.memory.stream.carry]
    while loop.tick < 60:
        loop.advance(num_envs)
        carries.append(loop.memory.stream.carry)
    loop.close()
    state = loop.memory.replay.training_state()
    written = state["written"]
    kinds = set()
    for env in range(num_envs):
        moments = list(told(steps, env))
        assert written[env] == len(moments)
        for name, expected in zip(
            ("obs", "action", "reward", "first", "last", "terminal"),
            zip(*moments, strict=True),
            strict=True,
        ):
            found = state[name][env, : len(moments)].numpy()
            if name in ("action", "reward"):  # of no meaning where an episode begins
                going = ~state["first"][env, : len(moments)].numpy()
                found, expected = found[going], np.array(expected)[going]
            np.testing.assert_array_equal(found.reshape(np.shape(expected)), expected, name)
        kinds |= {moment[4:] for moment in moments}
    assert kinds == {(False, False), (True, False), (True, True)}, "time limits are no ends"


def test_the_memory_is_that_of_each_episode_alone() -> None:
    """What the vector of environments leaves in the carry is what one episode alone leaves."""
    config = TrainConfig(
        algo="dreamer",
        env_id=PROBE_ID,
        env_kwargs={**PROBE, "actions": "discrete"},
        num_envs=3,
        device="cpu",
        total_timesteps=300,
        algo_kwargs={**SMALL, "learning_starts": 200, "buffer_capacity": 300},
    )
    algorithm: Any = build_algorithm(config, env_spaces(config.env_id, config.env_kwargs))
    loop: Any = build_loop(config, algorithm)
    act, seen = algorithm.act, []

    def noted(obs: Any, *, explore: bool, carry: Any) -> Any:
        torch.manual_seed(len(seen))
        acted = act(obs, explore=False, carry=carry)  # so that it can be repeated row by row
        seen.append((obs, carry, acted))
        return acted

    algorithm.act = noted
    loop.advance(90)
    loop.close()
    starts = 0
    for env in range(3):
        carry = None
        for obs, before, acted in seen:
            if float(obs[env, 2]) == 0.0:  # the probe's step
                carry, starts = None, starts + 1
                assert all(not bool(kept[env].any()) for kept in tree_leaves(before))
            alone = act(obs[env : env + 1], explore=False, carry=carry)
            carry = alone.carry
            for kept, together in zip(alone.carry, acted.carry, strict=True):
                torch.testing.assert_close(kept[0], together[env], rtol=1e-4, atol=1e-5)
    assert starts > 9


def small_loop(num_envs: int, learning_starts: int) -> Any:
    config = TrainConfig(
        algo="dreamer",
        env_id=PROBE_ID,
        env_kwargs=PROBE,
        num_envs=num_envs,
        device="cpu",
        total_timesteps=90,
        algo_kwargs={**SMALL, "learning_starts": learning_starts},
    )
    algorithm = build_algorithm(config, env_spaces(config.env_id, config.env_kwargs))
    return build_loop(config, algorithm)


def test_a_step_is_stored_with_the_state_it_was_acted_on_in() -> None:
    loop = small_loop(num_envs=2, learning_starts=60)
    act, held = loop.algorithm.act, []

    def noted(obs: Any, *, explore: bool, carry: Any) -> Any:
        acted = act(obs, explore=explore, carry=carry)
        held.append(acted.carry)
        return acted

    loop.algorithm.act = noted
    loop.advance(50)
    loop.close()
    state = loop.memory.replay.training_state()
    written = state["written"]
    for env in range(2):
        acted_on = ~state["last"][env, : written[env]]
        assert not acted_on.all()
        deter = torch.stack([carry.deter[env] for carry in held]).half()
        assert torch.equal(state["deter"][env, : written[env]][acted_on], deter)
        stoch = torch.stack([carry.stoch[env].argmax(-1) for carry in held])
        assert torch.equal(state["stoch"][env, : written[env]][acted_on].long(), stoch)


def test_an_update_sees_the_newest_and_refreshes_what_it_saw() -> None:
    loop = small_loop(num_envs=2, learning_starts=12)
    sample, drawn = loop.memory.replay.sample, []

    def noted(*arguments: Any, **named: Any) -> Any:
        drawn.append(sample(*arguments, **named))
        return drawn[-1]

    loop.memory.replay.sample = noted
    torch.manual_seed(0)
    loop.advance(12)
    ends = set()
    for _ in range(8):
        loop.advance(4)
        place = int(drawn[-1].places[0, -1])
        env = place // loop.memory.replay.length
        assert (
            place % loop.memory.replay.length
            == (loop.memory.replay.training_state()["written"][env] - 1) % loop.memory.replay.length
        )
        ends.add(env)
        seen = loop.algorithm.last_deter.half().flatten(0, 1)
        kept = dict(zip(drawn[-1].places.flatten().tolist(), seen, strict=True))
        for place, deter in kept.items():
            assert torch.equal(loop.memory.replay._states.deter[place], deter)
    loop.close()
    assert ends == {0, 1}


def test_an_episode_that_could_not_be_brought_back_is_cut() -> None:
    config = TrainConfig(
        algo="dreamer",
        env_id=PROBE_ID,
        env_kwargs=PROBE,
        num_envs=2,
        device="cpu",
        total_timesteps=60,
        algo_kwargs={**SMALL, "learning_starts": 50},
    )
    algorithm = build_algorithm(config, env_spaces(config.env_id, config.env_kwargs))
    loop: Any = build_loop(config, algorithm)
    loop.advance(6)
    assert not loop.memory.stream.first.any()
    loop.experience.collector.restarted[:] = [False, True]
    loop.advance(2)
    loop.close()
    state = loop.memory.replay.training_state()
    assert state["last"][:, :4].tolist() == [[False] * 4, [False, False, True, False]]
    assert state["first"][:, 3].tolist() == [False, True]
    assert not state["terminal"].any()


# --- using it ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Dreamer:
    """A policy whose actions depend on what it remembers."""
    folder = str(tmp_path_factory.mktemp("runs"))
    agent = agent_in("CartPole-v1", output_dir=folder, total_timesteps=120, final_eval=False)
    agent.learn(progress=False)
    return agent


def test_predict_needs_its_state(trained: Dreamer) -> None:
    env = gym.make("CartPole-v1")
    obs = [env.reset(seed=0)[0], *(env.step(i % 2)[0] for i in range(6))]
    states, state = [], None
    for one in obs:
        action, state = trained.predict(one, state)
        assert env.action_space.contains(action)
        states.append(state)
    assert isinstance(states[0], DreamerCarry)
    with_memory, without = states[-1], trained.predict(obs[-1])[1]
    assert not torch.equal(with_memory.deter, without.deter)
    begun_again = trained.predict(obs[-1], states[-2], episode_start=True)[1]
    assert torch.equal(begun_again.deter, without.deter)


def test_predict_of_several_episodes_at_once(trained: Dreamer) -> None:
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(5, 3, 4)).astype(np.float32)
    first = np.zeros((5, 3), bool)
    first[0], first[2, 1], first[3, 0] = True, True, True
    state, alone = None, [None, None, None]
    for t in range(5):
        actions, state = trained.predict(obs[t], state, episode_start=first[t])
        for row in range(3):
            one, alone[row] = trained.predict(obs[t, row], alone[row], first[t, row])
            assert one == actions[row]
            torch.testing.assert_close(alone[row].deter[0], state.deter[row], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("state", "start", "message"),
    [
        ("nonsense", None, "expected the state that the call before returned"),
        (3, None, "for 3 observations, got 2 rows"),
        (2, [True, False], "episode_start must hold one flag per observation, 3"),
    ],
)
def test_what_is_no_state_is_refused(
    state: Any, start: Any, message: str, trained: Dreamer
) -> None:
    obs = np.zeros((3, 4), np.float32)
    if isinstance(state, int):
        rows = 3 if start else 2
        state = trained.algorithm.initial_carry(rows)
    with pytest.raises(ConfigError, match=message):
        trained.predict(obs, state, start)


def test_episodes_are_evaluated_together_as_one_by_one(trained: Dreamer) -> None:
    """They end at different times, and each goes on with its own memory."""
    result = trained.evaluate(6, seed=3)
    assert len(set(result.lengths)) > 1
    env = gym.make("CartPole-v1")
    for episode, length in enumerate(result.lengths):
        obs, _ = env.reset(seed=start_seed(3, episode))
        state, steps, ended = None, 0, False
        while not ended:
            action, state = trained.predict(obs, state)
            obs, _, terminated, truncated, _ = env.step(int(action))
            steps, ended = steps + 1, terminated or truncated
        assert steps == length


def test_drawn_actions_are_evaluated_the_same_way_each_time(trained: Dreamer) -> None:
    before = torch.get_rng_state()
    drawn = trained.evaluate(6, seed=3, deterministic=False)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert trained.evaluate(6, seed=3, deterministic=False) == drawn
    assert trained.evaluate(6, seed=3) != drawn


def test_stable_baselines_evaluates_it(trained: Dreamer) -> None:
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    env = gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))
    mean, _ = evaluation.evaluate_policy(trained, env, n_eval_episodes=3, warn=False)
    assert mean >= 8.0


def test_a_memory_knows_what_was_done_in_its_place(trained: Dreamer) -> None:
    """With chance in the data, the carry holds the action that was taken."""
    behaving = BehavingPolicy(
        lambda obs, mode, state: trained.predict(obs, state, deterministic=mode),
        Behaviour(epsilon=0.5),
        trained.algorithm,
    )
    rng, obs, others = np.random.default_rng(0), np.zeros(4, np.float32), 0
    for _ in range(40):
        own, _ = trained.predict(obs, behaving.state)
        action = behaving(obs, rng)
        assert int(behaving.state.action.argmax()) == action
        others += action != int(own)
        obs = rng.normal(size=4).astype(np.float32)
    assert others > 5
    behaving.begin_episode()
    assert behaving.state is None


def test_box_actions_in_its_place_are_inner_ones() -> None:
    agent = agent_in("Pendulum-v1")
    carry = agent.algorithm.initial_carry(1)
    kept = agent.algorithm.with_action(carry, torch.tensor([[0.25]]))
    assert kept.action.tolist() == [[0.25]]


def test_data_are_collected_with_memory(trained: Dreamer) -> None:
    data = trained.collect(episodes=3, epsilon=0.3, seed=1)
    again = trained.collect(episodes=3, epsilon=0.3, seed=1)
    assert len(data.episode_returns()) == 3
    np.testing.assert_array_equal(data.actions, again.actions)


def test_rows_of_a_carry() -> None:
    agent = agent_in("Pendulum-v1")
    carry = DreamerCarry(*(torch.rand(4, *x.shape[1:]) for x in agent.algorithm.initial_carry(4)))
    some = rows_of(carry, [True, False, False, True])
    assert torch.equal(some.deter, carry.deter[[0, 3]])
    fresh = reset_rows(carry, torch.tensor([False, True, False, False]))
    for kept, new in zip(carry, fresh, strict=True):
        assert torch.equal(new[[0, 2, 3]], kept[[0, 2, 3]])
        assert not bool(new[1].any())
    assert rows_of((), [True]) == reset_rows((), torch.tensor([True])) == ()


# --- films -------------------------------------------------------------------------------------


def test_tensorboard_gets_a_video_of_what_the_model_expects(tmp_path: Path) -> None:
    from io import BytesIO

    from PIL import Image
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    agent = Dreamer(
        CATCH_ID,
        device="cpu",
        threads=1,
        **{**SMALL, "batch_length": 9},
        total_timesteps=60,
        log_interval=5,
        final_eval=False,
        output_dir=str(tmp_path),
    )
    run = agent.learn(progress=False).run_dir
    events = EventAccumulator(str(run / "tensorboard"), {"images": 0})
    events.Reload()
    films = events.Images("model/open_loop")
    assert len(films) >= 5
    film = Image.open(BytesIO(films[-1].encoded_image_string))
    assert film.format == "GIF"
    assert film.n_frames == 9
    side = 16 * 3 + 2
    assert film.size == (6 * side, 3 * side)
    edges = []
    for i in range(9):
        film.seek(i)
        pixel = np.array(film.convert("RGB"))[side // 2, 0]
        edges.append("green" if pixel[1] > pixel[0] else "red")
    assert edges == ["green"] * 5 + ["red"] * 4
    text = (run / "metrics.jsonl").read_text()
    assert "model/open_loop_error" in text


def test_a_video_changes_nothing_that_is_learned(tmp_path: Path) -> None:
    weights = []
    for tensorboard in (True, False):
        agent = Dreamer(
            CATCH_ID,
            device="cpu",
            threads=1,
            **SMALL,
            total_timesteps=40,
            log_interval=5,
            final_eval=False,
            tensorboard=tensorboard,
            output_dir=str(tmp_path / str(tensorboard)),
        )
        agent.learn(progress=False)
        weights.append(agent.algorithm.state_dict())
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name


def test_a_video_of_an_episode_is_recorded(tmp_path: Path, cli: Command) -> None:
    pytest.importorskip("imageio_ffmpeg")
    agent = agent_in(CATCH_ID, output_dir=str(tmp_path), total_timesteps=20, final_eval=False)
    run = agent.learn(progress=False).run_dir
    done = cli("eval", run, "--episodes", 2, "--video", tmp_path / "catch.gif")
    assert done.code == 0, done.err
    assert (tmp_path / "catch.gif").stat().st_size > 0
    assert "in 7 steps" in done.out


# --- bad input ---------------------------------------------------------------------------------


@each(
    ("changes", "fragments"),
    [
        (
            ["env_kwargs={rows: 9}"],
            ("env_id:", "images of 18x16 pixels", "a power of two from 8 to 64", "such as 64x64"),
        ),
        (["env_kwargs={rows: 3, columns: 3}"], ("images of 6x6 pixels", "power of two")),
        (["algo_kwargs.batch_length=626"], ("algo_kwargs.learning_starts:", "longer", "2,504")),
        (["algo_kwargs.buffer_capacity=50"], ("algo_kwargs.buffer_capacity:", "at least 68")),
        (["algo_kwargs.buffer_capacity=1000000000000"], ("algo_kwargs.buffer_capacity:", "GB")),
        (["algo_kwargs.size=13m"], ("algo_kwargs.size:", "'13m'")),
        (["algo_kwargs.batch_length=1"], ("algo_kwargs.batch_length:", "2")),
        (["algo_kwargs.hidden_sizes=[8]"], ("algo_kwargs.hidden_sizes: unknown key",)),
        (["algo_kwargs.horizon=1"], ("algo_kwargs.horizon:", "greater than 1")),
        (["algo_kwargs.horizon=.inf"], ("algo_kwargs.horizon:", "finite")),
        (["dataset={kind: random}"], ("dataset: Dreamer learns in the environment",)),
        (["seeds=[0, 1]"], ("seeds: Dreamer trains one seed per run",)),
    ],
)
def test_bad_input(
    changes: list[str], fragments: tuple[str, ...], tmp_path: Path, cli: Command
) -> None:
    runs = tmp_path / "runs"
    short = ["total_timesteps=2510", *changes]  # in case it is not refused
    assert_refused(cli("train", "dreamer/catch", *short, "--output-dir", runs), *fragments)
    assert not runs.exists()


def test_memory_is_estimated_before_it_is_taken(free_memory: Callable[[int], None]) -> None:
    free_memory(1_000_000)
    agent = agent_in(CATCH_ID, buffer_capacity=100_000, total_timesteps=100)
    with pytest.raises(RLTrainingError, match=r"buffer_capacity: a replay of 100,000 .* would fit"):
        agent.learn(progress=False)
