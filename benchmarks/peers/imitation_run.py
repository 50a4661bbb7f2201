"""A run of a trainer of the `imitation` package, evaluated on the way and at its end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from benchmarks.peers.episodes import Array, Evaluations

PACKAGES = ("imitation", "stable-baselines3", "torch", "numpy", "gymnasium")


def trained(
    trainer: Any, env_id: str, steps: int, eval_interval: int, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """The result after at least `steps`, in whole rollouts."""

    def act(observations: Array) -> Array:
        actions: Array = trainer.policy.predict(observations, deterministic=True)[0]
        return actions

    evaluations = Evaluations(act, env_id, inputs["curve_seeds"], "env_steps")
    size = trainer.gen_train_timesteps

    def evaluate(done: int) -> None:
        if (done + 1) * size // eval_interval > done * size // eval_interval:
            evaluations.note((done + 1) * size)

    began = time.perf_counter()
    trainer.train(-(-steps // size) * size, callback=evaluate)
    taken = trainer.gen_algo.num_timesteps
    evaluations.note(taken)
    seconds = time.perf_counter() - began
    result = evaluations.result(inputs["reset_seeds"], taken, seconds)
    print(f"return {result['return_mean']:,.1f}, {seconds:.0f} s of training")
    return result
