"""Train Stable-Baselines3's PPO for a long run of ours, and evaluate it as ours is.

In one piece: the library does not resume exactly. It walks with its own defaults and its
normalisation, and plays Atari in its own games with the settings of its zoo.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ale_py
import gymnasium as gym
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from benchmarks.learning.train_job import played
from benchmarks.peers.episodes import Array, Evaluations, Policy
from benchmarks.peers.sb3_build import Rate
from benchmarks.peers.sb3_job import Evaluating
from benchmarks.process import Request, answer_job

if TYPE_CHECKING:
    from rl_training import TrainConfig


GAMES, ZOO_STEPS = 8, 10_000_000
"""Of the zoo's PPO on Atari; its schedules fall to nothing over these steps."""


class Played(BaseCallback):
    """Notes the scores of whole games while they are learned from, as our metrics do."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[dict[str, Any]] = []

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                score = {"rollout/episodes": 1, "rollout/score_mean": float(info["episode"]["r"])}
                self.logged.append({"tick": self.num_timesteps, **score})
        return True


class GameEvaluations(Evaluations):
    """Whole games by the library's own rules, with drawn actions."""

    def __init__(self, model: Any, game: str, curve_seeds: list[int]) -> None:
        super().__init__(model.predict, game, curve_seeds, "env_steps")
        self.model = model

    def returns(self, reset_seeds: Sequence[int]) -> list[float]:
        whole = {"terminal_on_life_loss": False, "clip_reward": False}
        games = stacked_games(self.env_id, len(reset_seeds), reset_seeds[0], whole)
        found: Any = evaluate_policy(  # whose type does not depend on `return_episode_rewards`
            self.model,
            games,
            len(reset_seeds),
            deterministic=False,
            return_episode_rewards=True,
        )
        games.close()
        return list(found[0])


def work(request: Request) -> dict[str, Any]:
    from rl_training import TrainConfig

    torch.set_num_threads(1)
    config, inputs = TrainConfig(**request.spec["config"], seed=request.seed), request.inputs
    total = config.total_timesteps or 0
    evaluations: Evaluations
    if "game" in config.env_kwargs:
        model = player(config.env_kwargs["game"], total, request.seed)
        evaluations = GameEvaluations(model, config.env_kwargs["game"], inputs["curve_seeds"])
    else:
        model = locomotion(config, request.seed)
        env = config.environment, inputs["curve_seeds"], "env_steps", dict(config.env_kwargs)
        evaluations = Evaluations(_walks(model), *env)
    scores = Played()
    began = time.perf_counter()
    model.learn(total, callback=[Evaluating(evaluations, config.eval_interval), scores])
    evaluations.note(model.num_timesteps)
    seconds = time.perf_counter() - began
    model.get_env().close()
    result = evaluations.result(inputs["reset_seeds"], model.num_timesteps, seconds)
    if "game" in config.env_kwargs:
        result |= played([*scores.logged, {"tick": model.num_timesteps}])
    print(f"return {result['return_mean']:,.1f}, {seconds:.0f} s of training")
    return result


def _walks(model: Any) -> Policy:
    def act(observations: Any) -> Array:
        seen = model.get_env().normalize_obs(observations)
        actions: Array = model.predict(seen, deterministic=True)[0]
        return actions

    return act


def locomotion(config: TrainConfig, seed: int) -> Any:
    """PPO with the defaults of the library, and its normalisation as ours has it."""
    env = VecNormalize(make_vec_env(config.environment, 1, seed))
    return PPO("MlpPolicy", env, seed=seed)


def player(game: str, total: int, seed: int) -> Any:
    """PPO with the settings of the zoo, in the library's own games, on one core."""
    return PPO(
        "CnnPolicy",
        stacked_games(game, GAMES, seed),
        n_steps=128,
        n_epochs=4,
        batch_size=256,
        learning_rate=_falling(2.5e-4, total),
        clip_range=_falling(0.1, total),
        vf_coef=0.5,
        ent_coef=0.01,
        seed=seed,
        device="cpu",
    )


def _falling(first: float, total: int) -> Rate:
    """Linearly to zero over the zoo's steps, of which `total` are made."""
    return lambda left: first * (1.0 - (1.0 - left) * total / ZOO_STEPS)


def stacked_games(
    game: str, count: int, seed: int, wrapping: Mapping[str, Any] | None = None
) -> Any:
    """The library's games with its own preprocessing, the last four frames stacked."""
    gym.register_envs(ale_py)
    name = "".join(part.capitalize() for part in game.split("_"))
    made = make_atari_env(f"{name}NoFrameskip-v4", count, seed, wrapper_kwargs=dict(wrapping or {}))
    return VecFrameStack(made, 4)


if __name__ == "__main__":
    answer_job(work, ("rl-training", "stable-baselines3", "torch", "numpy", "gymnasium"))
