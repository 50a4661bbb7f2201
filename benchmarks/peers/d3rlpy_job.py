"""Train one of d3rlpy's algorithms on given data and evaluate it from given start states.

A job with a `folder` may be cut into pieces of `minutes`: networks and optimisers are kept between
them, while rows are drawn by a new stream of random numbers. Run by the peers' Python.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.peers.d3rlpy_build import make_algorithm, make_dataset, update
from benchmarks.peers.episodes import Array, Evaluations, Policy, episode_returns
from benchmarks.process import PausedError, Request, answer_job

PIECE = 500
"""Updates between two looks at the clock."""


def mode_policy(algorithm: Any) -> Policy:
    """The policy's mode, which for CRR is not what `predict` returns."""

    def act(observations: Array) -> Array:
        with torch.no_grad():
            mode = algorithm.impl.policy(torch.from_numpy(observations)).squashed_mu
            actions: Array = algorithm.config.action_scaler.reverse_transform(mode).numpy()
        return actions

    return act


class Pieces:
    """How far a run has come, kept in a folder if there is one."""

    def __init__(self, algorithm: Any, folder: str | None, minutes: float | None) -> None:
        self.algorithm, self.folder = algorithm, None if folder is None else Path(folder)
        self.done, self.seconds = 0, 0.0
        self._ends = None if minutes is None else time.perf_counter() + 60.0 * minutes
        if self.folder is not None and (self.folder / "state.json").is_file():
            state = json.loads((self.folder / "state.json").read_text(encoding="utf-8"))
            algorithm.load_model(str(self.folder / state["model"]))
            self.done, self.seconds = state["done"], state["seconds"]

    def advance(self, dataset: Any, count: int) -> None:
        """Train; where the time is over before that is done, save and stop the job."""
        target = self.done + count
        while self.done < target:
            began = time.perf_counter()
            updates = min(PIECE, target - self.done)
            update(self.algorithm, dataset, updates)
            self.done += updates
            self.seconds += time.perf_counter() - began
            if self.done < target and self._is_over:
                self._pause()

    @property
    def _is_over(self) -> bool:
        return self._ends is not None and time.perf_counter() > self._ends

    def _pause(self) -> None:
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        model = f"model-{self.done}.pt"
        self.algorithm.save_model(str(self.folder / model))
        state = {"done": self.done, "seconds": self.seconds, "model": model}
        (self.folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
        raise PausedError(f"{self.done:,} updates after {self.seconds:.0f} s")

    def forget(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def work(request: Request) -> dict[str, Any]:
    torch.set_num_threads(1)
    spec, inputs = request.spec, request.inputs
    with np.load(inputs["data"]) as stored:
        dataset = make_dataset(dict(stored))
    env = gym.make(spec["env_id"])
    space = env.action_space
    assert isinstance(space, gym.spaces.Box)
    bounds = (space.low.tolist(), space.high.tolist())
    env.close()
    algorithm = make_algorithm(
        spec["algo"],
        spec["knobs"],
        dataset,
        request.seed,
        bounds,
        spec.get("standardize", False),
        spec.get("device", False),
    )

    total, interval = spec["updates"], spec["eval_interval"] or spec["updates"]
    evaluations = Evaluations(algorithm.predict, spec["env_id"], inputs["curve_seeds"])
    pieces = Pieces(algorithm, inputs.get("folder"), inputs.get("minutes"))
    while pieces.done < total:
        pieces.advance(dataset, min(interval, total - pieces.done))
        evaluations.note(pieces.done)

    seconds = pieces.seconds
    result = evaluations.result(inputs["reset_seeds"], pieces.done, seconds)
    pieces.forget()
    if spec["algo"] == "crr":
        mode = episode_returns(mode_policy(algorithm), spec["env_id"], inputs["reset_seeds"])
        result["mode_return_mean"] = float(np.mean(mode))
    print(f"return {result['return_mean']:,.1f}, {seconds:.0f} s of training")
    return result


if __name__ == "__main__":
    answer_job(work, ("d3rlpy", "torch", "numpy", "gymnasium"))
