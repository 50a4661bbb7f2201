"""What an exported policy is tried on: observations of its task, and random ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.algorithms.base import Algorithm
from rl_training.envs.contract import close_env
from rl_training.envs.make import make_env
from rl_training.envs.packed import packed
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import RLTrainingError
from rl_training.models.carry import Carry
from rl_training.runtime.evaluation import EvalResult, evaluate_once
from rl_training.runtime.policy import ActingPolicy

Array = np.ndarray[Any, Any]
KEPT = 1_000
"""Observations of each kind."""
LONGEST = 1_000
"""Steps of an episode by which agent and export are compared."""


@dataclass(frozen=True)
class Task:
    """The environment, or the sentence that says why there is none."""

    env_id: str | None
    env_kwargs: dict[str, Any]
    problem: str | None = None


@dataclass(frozen=True)
class Seen:
    """What is known of the observations of a task."""

    low: Array | None
    """Of an image beside other parts, the bounds of the numbers in those parts."""
    high: Array | None
    by_kind: dict[str, Array]
    returns: EvalResult | None
    """Of the agent."""
    problem: str | None
    """Why there was no evaluation."""


def observe(
    config: TrainConfig, algorithm: Algorithm, task: Task, episodes: int, logged: Array | None
) -> Seen:
    """Observations of evaluation episodes, else those `logged`; random ones beside them."""
    low = high = returns = None
    observed, kind, problem = np.zeros((0, *algorithm.spaces.obs_shape)), "", task.problem
    if problem is None and task.env_id is not None:
        try:
            env = make_env(task.env_id, task.env_kwargs)
            space: Any = env.observation_space
            low, high = np.asarray(space.low), np.asarray(space.high)
            if algorithm.spaces.packing is not None:
                low, high = env.get_wrapper_attr("number_bounds")
            close_env(env)
            if episodes:
                recorder = _Recorder(ActingPolicy(algorithm))
                returns = evaluate(config, algorithm, task, recorder, episodes)
                observed, kind = recorder.kept(), "environment"
        except RLTrainingError as error:
            low = high = returns = None
            problem = str(error).splitlines()[0]
    if not len(observed) and logged is not None:
        observed, kind = _spread(logged), "data"
    by_kind = {kind: observed} if len(observed) else {}
    by_kind["random"] = _random(algorithm, observed, low, high)
    dtype = algorithm.spaces.obs_dtype
    by_kind = {name: np.ascontiguousarray(rows, dtype) for name, rows in by_kind.items()}
    return Seen(low, high, by_kind, returns, problem)


def evaluate(
    config: TrainConfig,
    algorithm: Algorithm,
    task: Task,
    act: Callable[[Array, Any], tuple[Array, Any]],
    episodes: int,
) -> EvalResult:
    """Episodes from the held-out start states."""
    assert task.env_id is not None
    return evaluate_once(
        act,
        (task.env_id, task.env_kwargs),
        algorithm.spaces,
        episodes=episodes,
        max_steps=min(config.eval_max_steps, LONGEST),
    )


class _Recorder:
    """Acts and keeps what it saw."""

    def __init__(self, act: ActingPolicy) -> None:
        self.act, self.seen = act, list[Array]()

    def __call__(self, obs: Array, carry: Carry | None) -> tuple[Array, Carry]:
        self.seen.append(obs.copy())
        return self.act(obs, carry)

    def kept(self) -> Array:
        return _spread(np.concatenate(self.seen))


def _spread(rows: Array) -> Array:
    """At most `KEPT` rows, evenly over all."""
    index = np.unique(np.linspace(0, len(rows) - 1, min(KEPT, len(rows))).astype(np.int64))
    return np.asarray(rows[index])


def _random(algorithm: Algorithm, seen: Array, low: Array | None, high: Array | None) -> Array:
    """Uniform between bounds; where there are none, around what was seen or normalised by."""
    rng, spaces, packing = np.random.default_rng(0), algorithm.spaces, algorithm.spaces.packing
    if packing is not None:
        frames = KEPT * spaces.frame_stack
        centre, spread = np.zeros(packing.numbers), np.ones(packing.numbers)
        numbers = _possible(_uniform(rng, frames, centre, spread, low, high), spaces)
        image = rng.integers(0, 256, (frames, *packing.pixels), dtype=np.uint8)
        return packed(packing, numbers, image).reshape(KEPT, *spaces.obs_shape)
    if spaces.is_image:
        return rng.integers(0, 256, (KEPT, *spaces.image_shape), dtype=np.uint8)
    normalizer = algorithm.normalizer
    centre, spread = normalizer.mean.cpu().numpy(), normalizer.std.cpu().numpy()
    if len(seen) and not normalizer.active:
        centre, spread = seen.mean(0), np.maximum(seen.std(0), 1e-3)
    return _possible(_uniform(rng, KEPT, centre, spread, low, high), spaces)


def _uniform(
    rng: np.random.Generator,
    rows: int,
    centre: Array,
    spread: Array,
    low: Array | None,
    high: Array | None,
) -> Array:
    drawn = centre + 3.0 * spread * rng.uniform(-1.0, 1.0, (rows, len(centre)))
    if low is not None and high is not None:
        bounded = np.isfinite(low) & np.isfinite(high) & (np.abs(low) < 1e6) & (np.abs(high) < 1e6)
        inside = rng.uniform(np.where(bounded, low, 0.0), np.where(bounded, high, 1.0), drawn.shape)
        drawn = np.where(bounded, inside, np.clip(drawn, low, high))
    return drawn


def _possible(drawn: Array, spaces: Spaces) -> Array:
    """Drawn vectors with one of every choice, and masks that allow an action."""
    at = 0
    for part in spaces.layout.parts if spaces.layout is not None else ():
        for count in part.choices or (0,):
            end = at + (count or part.width)
            if count:
                chosen = drawn[:, at:end].argmax(-1, keepdims=True)
                drawn[:, at:end] = np.arange(count) == chosen
            at = end
    if spaces.has_mask:
        masks = drawn[:, -spaces.action_dim :]
        masks[...] = masks >= np.minimum(0.5, masks.max(-1, keepdims=True))
    return drawn
