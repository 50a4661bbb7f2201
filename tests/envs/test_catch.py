"""The small task on pixels."""

from __future__ import annotations

import numpy as np
from gymnasium.utils.env_checker import check_env

from rl_training.envs.make import make_env
from rl_training.envs.toys.catch import CATCH_ID


def score(follow: bool, episodes: int = 200) -> float:
    env = make_env(CATCH_ID)
    rng = np.random.default_rng(0)
    total = 0.0
    for seed in range(episodes):
        obs, _ = env.reset(seed=seed)
        done = False
        while not done:
            board = obs[::2, ::2]
            ball, paddle = int(board[:-1].argmax() % 8), int(board[-1].argmax())
            action = int(np.sign(ball - paddle)) + 1 if follow else int(rng.integers(3))
            obs, reward, done, _, _ = env.step(action)
            total += float(reward)
    return total / episodes


def test_following_the_ball_catches_it_and_chance_does_not() -> None:
    assert score(follow=True) == 1.0
    assert -0.9 < score(follow=False) < -0.2


def test_it_is_a_proper_environment() -> None:
    check_env(make_env(CATCH_ID).unwrapped, skip_render_check=True)
    picture = make_env(CATCH_ID, {"render_mode": "rgb_array"})
    picture.reset(seed=0)
    assert picture.render().shape == (128, 128, 3)
