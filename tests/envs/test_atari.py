"""What the games look like to an agent, against the emulator itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training import DQN
from rl_training.envs.atari import AtariFrames, _AreaSums, make_atari
from rl_training.envs.atari_rules import ATARI_ID, for_training, protocol_of
from rl_training.envs.collector import Collector
from rl_training.envs.make import env_spaces, make_env
from rl_training.experiment.errors import ConfigError, MissingExtraError, RLTrainingError

from ..each import each

pytest.importorskip("ale_py")


def atari(game: str = "breakout", **kwargs: Any) -> Any:
    return make_env(ATARI_ID, {"game": game, **kwargs})


def plain(**kwargs: Any) -> Any:
    """Nothing random, nothing stacked, nothing pressed."""
    quiet = {"noop_max": 0, "repeat_action_probability": 0.0, "fire": False, "frame_stack": 1}
    return atari(**{**quiet, **kwargs})


def emulator(env: Any) -> Any:
    return env.unwrapped.ale


def area_weights(length: int, parts: int) -> np.ndarray:
    edges, pixel = np.linspace(0, length, parts + 1), np.arange(length)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    return overlap.clip(0) * parts / length


def small(screen: np.ndarray, size: int = 84) -> np.ndarray:
    rows, columns = area_weights(screen.shape[0], size), area_weights(screen.shape[1], size)
    by_row = np.stack(
        [(screen * row.reshape(-1, *(1,) * (screen.ndim - 1))).sum(0) for row in rows]
    )
    return np.stack([np.moveaxis(by_row, 1, -1) @ column for column in columns], 1)


@each(("length", "parts"), [(210, 84), (160, 84), (10, 10), (7, 3), (5, 8)])
def test_resized_rows_are_means_of_areas(length: int, parts: int) -> None:
    values = np.random.default_rng(0).integers(0, 256, (length, 4)).astype(np.uint16)
    rows, columns = (_AreaSums(length, parts, axis, np.uint16) for axis in (0, 1))
    found = rows(values)
    np.testing.assert_allclose(found / rows.weight, area_weights(length, parts) @ values)
    np.testing.assert_array_equal(columns(values.T), found.T)


@each(("size", "grayscale"), [(84, True), (64, False), (84, False)])
def test_a_frame_is_the_brighter_of_the_last_two_made_small(size: int, grayscale: bool) -> None:
    env = plain(game="space_invaders", grayscale=grayscale, screen_size=size)
    twin = plain(game="space_invaders")
    env.reset(seed=0)
    twin.reset(seed=0)
    ale, actions = emulator(twin), list(twin.unwrapped._action_set)
    read = ale.getScreenGrayscale if grayscale else ale.getScreenRGB
    for step in range(12):
        action = step % env.action_space.n
        frame, reward, *_ = env.step(action)
        screens, total = [], 0.0
        for _ in range(4):
            total += ale.act(actions[action])
            screens.append(read())
        expected = small(np.maximum(screens[-1], screens[-2]), size)
        assert reward == total
        assert frame.dtype == np.uint8
        assert frame.shape == ((size, size) if grayscale else (size, size, 3))
        assert np.abs(frame - expected).max() < 0.5 + 1e-9  # rounded, nothing else


def test_stacks_are_gymnasiums() -> None:
    stacked, single = atari(frame_stack=4), atari(frame_stack=1)
    assert env_spaces(ATARI_ID, {"game": "breakout"}).frame_stack == 4
    obs, _ = stacked.reset(seed=3)
    frames = [single.reset(seed=3)[0]] * 4
    np.testing.assert_array_equal(obs, np.stack(frames))
    for step in range(20):
        obs, *_ = stacked.step(step % 4)
        frames = [*frames[1:], single.step(step % 4)[0]]
        np.testing.assert_array_equal(obs, np.stack(frames))


def play(env: Any, seed: int, steps: int) -> list[Any]:
    seen = [env.reset(seed=seed)[0].tobytes()]
    for step in range(steps):
        obs, reward, terminated, truncated, _ = env.step((step * 7) % env.action_space.n)
        seen.append((obs.tobytes(), reward, terminated, truncated))
        if terminated or truncated:
            break
    return seen


@each("game", ["breakout", "pong", "ms_pacman", "seaquest"])
def test_seed_and_actions_decide_an_episode(game: str) -> None:
    one, other = atari(game), atari(game)
    play(one, 8, 31)  # whatever came before is forgotten
    assert play(one, 5, 100) == play(other, 5, 100)
    assert play(one, 5, 100) != play(one, 6, 100)


def test_idle_frames_and_sticky_actions_come_from_the_seed() -> None:
    for kwargs in ({"noop_max": 30}, {"repeat_action_probability": 0.5}, {"random_actions": 0.5}):
        env = plain(game="pong", **kwargs)
        assert play(env, 1, 60) == play(env, 1, 60)
        assert len({str(play(env, seed, 60)) for seed in range(4)}) > 1
    env = plain(game="pong")
    assert play(env, 1, 60) == play(env, 2, 60), "without them nothing is random"


def test_a_share_of_actions_is_random() -> None:
    env = plain(game="pong", random_actions=0.25)
    buttons = env.unwrapped._action_set
    pressed: list[Any] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(emulator(env), name)

        def act(self, button: Any) -> float:
            pressed.append(button)
            return float(emulator(env).act(button))

    env.reset(seed=0)
    frames = env
    while not isinstance(frames, AtariFrames):
        frames = frames.env
    frames._ale = Watched()
    for _ in range(400):
        env.step(0)
    steps = pressed[::4]
    assert all(pressed[i::4] == steps for i in range(4)), "for all frames of a step"
    shares = {button: steps.count(button) / 400 for button in buttons}
    assert shares[buttons[0]] == pytest.approx(0.75 + 0.25 / 6, abs=0.06)
    assert all(0.01 < shares[button] < 0.09 for button in buttons[1:])


def test_evaluations_of_the_paper_do_not_repeat_a_few_games() -> None:
    """With no-op frames alone one policy plays the same few games over and over."""

    def games(**changes: Any) -> int:
        env = atari("breakout", protocol="mnih2015", screen_size=16, **changes)
        return len({str(play(env, seed, 120)) for seed in range(12)})

    assert games(random_actions=0.0) <= 4
    assert games() == 12


def test_frame_skip_holds_the_action() -> None:
    env = plain(frame_skip=3)
    env.reset(seed=0)
    before = emulator(env).getEpisodeFrameNumber()
    env.step(0)
    assert emulator(env).getEpisodeFrameNumber() - before == 3


def until_a_life_is_lost(env: Any) -> tuple[int, bool, dict[str, Any]]:
    env.reset(seed=0)
    lives = emulator(env).lives()
    for step in range(1, 400):
        *_, terminated, _, info = env.step(0)
        if terminated or emulator(env).lives() < lives:
            return step, terminated, info
    raise AssertionError("no life was lost")


def test_a_lost_life_is_reported_only_where_asked_for_and_the_game_goes_on() -> None:
    env = plain(fire=True, life_loss=True)
    step, terminated, info = until_a_life_is_lost(env)
    assert (terminated, info) == (False, {"life_lost": True})
    assert until_a_life_is_lost(plain(fire=True)) == (step, False, {})
    lives = [emulator(env).lives()]
    while not terminated:
        *_, terminated, _, info = env.step(0)
        lives.append(emulator(env).lives())
        assert ("life_lost" in info) == (lives[-1] < lives[-2] and not terminated)
    assert set(lives) == {4, 3, 2, 1, 0}


def test_the_true_score_of_a_whole_game_is_reported_at_its_end() -> None:
    quick: dict[str, Any] = {"game": "space_invaders", "fire": True, "screen_size": 16}
    env, true = plain(clip_rewards=True, life_loss=True, **quick), plain(**quick)
    env.reset(seed=0)
    true.reset(seed=0)
    score, steps, info, terminated = 0.0, 0, {}, False
    while not terminated:
        assert "episode" not in info
        reward = true.step(1)[1]
        *_, terminated, _, info = env.step(1)
        score, steps = score + reward, steps + 1
    assert info == {"episode": {"r": score, "l": steps}}
    assert score > 100.0


@pytest.mark.parametrize("workers", [0, 1])
def test_a_lost_life_ends_an_episode_for_learning_only(workers: int) -> None:
    """Training goes on in the same game, and a resume replays it from its real beginning."""
    small = {"screen_size": 16, "frame_stack": 1}
    rules = for_training(ATARI_ID, {"protocol": "mnih2015"})
    kwargs = {"game": "breakout", "protocol": "mnih2015", **rules, **small}
    collector = Collector(ATARI_ID, kwargs, 2, 3, workers=workers)
    twin = Collector(ATARI_ID, kwargs, 2, 3)
    try:
        ends, episodes = 0, []
        noop = np.zeros(2, np.int64)
        while not episodes:
            seen = collector.obs
            step = collector.step(noop)
            np.testing.assert_array_equal(step.obs, seen)
            lost = step.terminated & ~np.array([collector._log.length(i) == 0 for i in range(2)])
            np.testing.assert_array_equal(collector.obs[lost], step.next_obs[lost])
            ends += int(step.terminated[0])
            episodes = [e for e in collector.drain_episodes() if e.env == 0]
            if ends == 3 and twin.env_steps == 0:
                assert collector.training_state()["episodes"][0] == 0
                twin.load_training_state(collector.training_state())
                assert twin.exact
                np.testing.assert_array_equal(twin.obs, collector.obs)
        assert ends == 5
        assert episodes[0].score == episodes[0].episode_return == 0.0
    finally:
        collector.close()
        twin.close()


def test_protocols_are_what_the_papers_say() -> None:
    assert for_training(ATARI_ID, {"protocol": "mnih2015"}) == {
        "clip_rewards": True,
        "life_loss": True,
        "random_actions": 0.0,
    }
    assert for_training(ATARI_ID, {"protocol": "machado2018"}) == {"clip_rewards": True}
    assert for_training("CartPole-v1", {"protocol": "mnih2015"}) == {}
    for name, shape, random_starts in (
        ("machado2018", (4, 84, 84), False),
        ("mnih2015", (4, 84, 84), True),
        ("atari100k", (64, 64, 3), True),
    ):
        env = atari("pong", protocol=name)
        assert env.observation_space.shape == shape
        idle = set()
        for seed in range(6):
            env.reset(seed=seed)
            idle.add(emulator(env).getEpisodeFrameNumber())
        assert (len(idle) > 1) == random_starts
        sentence = protocol_of(ATARI_ID, {"game": "pong", "protocol": name})
        assert sentence is not None
        assert sentence.startswith(f"{name}: ")
    changed = protocol_of(ATARI_ID, {"game": "pong", "protocol": "mnih2015", "noop_max": 0})
    assert changed is not None
    assert changed.endswith("; changed: noop_max")
    both = protocol_of(ATARI_ID, {"protocol": "mnih2015", "fire": False}, {"clip_rewards": False})
    assert both is not None
    assert both.endswith("; changed: fire; changed in training: clip_rewards")
    unnamed = protocol_of(ATARI_ID, {"game": "pong"})
    assert unnamed is not None
    assert "no named protocol" in unnamed
    assert protocol_of("CartPole-v1", {}) is None


def test_keys_that_are_given_override_a_protocol_in_training_too() -> None:
    given = {"protocol": "mnih2015", "clip_rewards": False, "random_actions": 0.01}
    assert for_training(ATARI_ID, given) == {"life_loss": True, "random_actions": 0.0}
    own = for_training(ATARI_ID, given, {"life_loss": False, "random_actions": 0.1})
    assert own == {"life_loss": False, "random_actions": 0.1}
    assert for_training("CartPole-v1", {}, {"sutton_barto_reward": True}) == {
        "sutton_barto_reward": True
    }
    with pytest.raises(ConfigError, match=r"^train_env_kwargs\.protocol: .* set env_kwargs"):
        for_training(ATARI_ID, given, {"protocol": "machado2018"})


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("clip_rewards", "maybe", "true or false"),
        ("fire", 1, "true or false"),
        ("frame_skip", True, "a whole number, at least 1"),
        ("frame_stack", 0, "a whole number, at least 1"),
        ("random_actions", False, "a number from 0 to below 1"),
        ("repeat_action_probability", 1.0, "a number from 0 to below 1"),
        ("render_mode", "human", "rgb_array or null"),
    ],
)
def test_rules_of_another_kind_are_refused(key: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=rf"^env_kwargs\.{key}: expected {expected}, got"):
        make_atari("pong", **{key: value})


def test_fire_keeps_a_waiting_game_going() -> None:
    env = plain(fire=True)
    until_a_life_is_lost(env)
    waiting = plain(fire=False)
    waiting.reset(seed=0)
    frames = [waiting.step(0)[0].tobytes() for _ in range(30)]
    assert len(set(frames[5:])) == 1, "Breakout waits for ever"
    assert len({env.step(0)[0].tobytes() for _ in range(30)}) > 5


def test_the_frame_in_which_fire_is_pressed_counts() -> None:
    """After a lost life: what it earns is part of the reward, and fire is held from then on."""
    env = plain(fire=True)
    while not isinstance(env, AtariFrames):
        env = env.env
    env.reset(seed=0)
    env._lives += 1  # as if one had just been lost
    pressed: list[Any] = []

    class Ale:
        def __getattr__(self, name: str) -> Any:
            return getattr(ale, name)

        def act(self, button: Any) -> float:
            pressed.append(button)
            ale.act(button)
            return 7.0 if button == env._fire_button else 1.0

    ale = env._ale
    env._ale = Ale()
    _, reward, terminated, truncated, _ = env.step(0)
    assert reward == 4 * 1.0 + 7.0
    assert not terminated
    assert not truncated
    assert pressed == [env._noop_button] * 4 + [env._fire_button]
    assert env._in_force == env._fire_button


def test_rewards_are_clipped_only_where_asked_for() -> None:
    def rewards(**kwargs: Any) -> list[float]:
        env = plain(game="space_invaders", **kwargs)
        env.reset(seed=0)
        return [env.step(1)[1] for _ in range(150)]

    true, clipped = rewards(), rewards(clip_rewards=True)
    assert max(true) > 1.0
    assert clipped == [float(np.sign(reward)) for reward in true]


def test_the_time_limit_truncates() -> None:
    seen = play(plain(game="pong", max_frames=400), 0, 1000)
    assert seen[-1][2:] == (False, True)
    assert len(seen) - 1 == 100


def test_it_renders_in_colour() -> None:
    env = atari(render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (210, 160, 3)


@pytest.mark.parametrize("name", ["SpaceInvaders", "space_invaders", "Breakout"])
def test_names_of_games(name: str) -> None:
    assert plain(game=name).reset(seed=0)[0].any()


@each(
    ("kwargs", "words"),
    [
        ({}, "env_kwargs.game: .* needs the name of a game"),
        ({"game": "brekout"}, "env_kwargs.game.*did you mean 'breakout'"),
        ({"game": "pong", "frame_skip": 0}, "env_kwargs.frame_skip.*at least 1"),
        ({"game": "pong", "screen_size": 2}, "env_kwargs.screen_size"),
        ({"game": "pong", "screen_siz": 64}, "env_kwargs.screen_siz: .*mean 'screen_size'"),
        ({"game": "pong", "protocol": "mnih2016"}, "protocol.*did you mean 'mnih2015'"),
        ({"game": "pong", "repeat_action_probability": 1.0}, "repeat_action_probability"),
        ({"game": "pong", "random_actions": "few"}, "env_kwargs.random_actions: .*got 'few'"),
    ],
)
def test_wrong_values_are_named(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_env(ATARI_ID, kwargs)


def test_without_the_emulator_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ale_py", None)
    with pytest.raises(MissingExtraError, match=r"gymnasium\[atari\]"):
        make_env(ATARI_ID, {"game": "pong"})


def test_a_wrong_rule_of_training_is_named_as_given(tmp_path: Path) -> None:
    knobs = {"learning_starts": 10, "batch_size": 4, "buffer_capacity": 20}
    options: dict[str, Any] = {"total_timesteps": 20, "algo_kwargs": knobs}
    options["output_dir"] = str(tmp_path)
    game = {"game": "pong", "protocol": "mnih2015"}
    for own, sentence in (
        ({"gam": "pong"}, r"^train_env_kwargs\.gam: unknown key \(did you mean 'game'\?\)"),
        ({"random_actions": 3}, r"^train_env_kwargs\.random_actions: expected a number"),
        ({"screen_size": 44}, r"^train_env_kwargs: .*; give what changes observations"),
    ):
        agent = DQN(ATARI_ID, env_kwargs=game, train_env_kwargs=own, **options)
        with pytest.raises(RLTrainingError, match=sentence):
            agent.learn(progress=False)
    assert not list(tmp_path.iterdir())
