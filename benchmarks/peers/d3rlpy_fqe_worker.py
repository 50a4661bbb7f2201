"""d3rlpy's fitted Q evaluation with its defaults, of a policy that is given as a table.

Run by the peers' Python.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import d3rlpy
import numpy as np
import torch
from d3rlpy.constants import ActionSpace
from d3rlpy.dataset import MDPDataset
from d3rlpy.ope import FQE, DiscreteFQE, FQEConfig

from benchmarks.peers.d3rlpy_build import update
from benchmarks.process import serve


class TablePolicy:
    """What d3rlpy asks of an algorithm that it evaluates: actions at known observations.

    Its targets take one action per state, so actions of a stochastic policy are drawn anew for
    every batch.
    """

    def __init__(self, observations: Any, actions: Any, drawn: bool, seed: int) -> None:
        self.rows = {row.tobytes(): i for i, row in enumerate(observations)}
        self.actions, self.drawn = actions, drawn
        self.rng = np.random.default_rng(seed)

    def predict_best_action(self, observations: torch.Tensor) -> torch.Tensor:
        # after a termination d3rlpy has zeros, whose value it does not use
        rows = [self.rows.get(row.tobytes(), 0) for row in observations.numpy()]
        found = self.actions[rows]
        if self.drawn:
            below = found.cumsum(1) < self.rng.random((len(found), 1)) * found.sum(1, keepdims=True)
            found = below.sum(1)
        return torch.from_numpy(np.asarray(found))


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """`policy` of the data are (N, actions) probabilities, or (N, A) Box actions."""
    torch.set_num_threads(1)
    with np.load(request["data"]) as stored:
        arrays = dict(stored)
    discrete = bool(request["discrete"])
    seen = np.ascontiguousarray(arrays["observations"], np.float32)
    actions = np.asarray(arrays["actions"])
    dataset = MDPDataset(
        observations=seen,
        actions=actions.reshape(-1, 1) if discrete else actions.astype(np.float32),
        rewards=np.asarray(arrays["rewards"], np.float32),
        terminals=np.asarray(arrays["terminations"], np.float32),
        timeouts=np.asarray(arrays["truncations"], np.float32),
        action_space=ActionSpace.DISCRETE if discrete else ActionSpace.CONTINUOUS,
        action_size=arrays["policy"].shape[1],
    )
    d3rlpy.seed(request["seed"])
    algorithm: Any = SimpleNamespace(
        impl=TablePolicy(seen, arrays["policy"], discrete, request["seed"])
    )
    evaluation = (DiscreteFQE if discrete else FQE)(algorithm, FQEConfig(gamma=request["gamma"]))
    evaluation.build_with_dataset(dataset)
    began = time.perf_counter()
    update(evaluation, dataset, request["updates"])
    first, policy = seen[arrays["starts"]], arrays["policy"][arrays["starts"]]
    if discrete:
        every = [
            evaluation.predict_value(first, np.full((len(first), 1), action))
            for action in range(policy.shape[1])
        ]
        values = (np.stack(every, 1) * policy).sum(1)
    else:
        values = evaluation.predict_value(first, policy.astype(np.float32))
    return {"value": float(np.mean(values)), "seconds": time.perf_counter() - began}


if __name__ == "__main__":
    serve(handle)
