"""Train one candidate on half of a log, and estimate on the other half what it is worth."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.learning.ope_peer import peers_estimate
from benchmarks.process import Request, answer_job
from rl_training import ManagedAlgorithm, TrainConfig, load_transition_dataset


def work(request: Request) -> dict[str, Any]:
    spec = request.spec
    data = request.inputs.get("path", spec["data"])
    whole = load_transition_dataset(data, env_id=spec["env_id"])
    odd = np.arange(whole.num_episodes) % 2 == 1
    learned, judged = whole.choose_episodes(~odd), whole.choose_episodes(odd)
    config = TrainConfig(
        algo=spec["algo"],
        env_id=spec["env_id"],
        dataset={"kind": "npz", "path": str(data), "normalize_observations": True,
                 "rewards": {"return_range": 1_000.0}},
        total_updates=spec["training"],
        eval_interval=0,
        checkpoint_interval=0,
        tensorboard=False,
        device="cpu",
        seed=request.seed,
        output_dir=str(request.scratch),
    )  # fmt: skip
    agent = ManagedAlgorithm(config, dataset=learned)
    agent.learn(progress=False)
    truth = agent.collect(episodes=spec["truth_episodes"], seed=1_000)
    lengths = truth.episode_lengths()
    step = np.arange(len(truth)) - np.repeat(truth.episode_starts, lengths)
    discounted = truth.rewards * spec["gamma"] ** step
    began = time.monotonic()
    found = agent.estimate(
        judged, gamma=spec["gamma"], estimators=spec["estimators"], updates=spec["updates"],
        replicates=spec["replicates"], seed=request.seed, progress=False,
    )  # fmt: skip
    seconds = time.monotonic() - began
    acts = np.asarray(
        whole.spaces.from_env(np.asarray(agent.predict(judged.observations)[0])), np.float32
    )
    peer = peers_estimate(
        judged, acts, gamma=spec["gamma"], updates=spec["peer_updates"], seed=request.seed,
        scratch=request.scratch,
    )  # fmt: skip
    value = found.estimates["fqe"]
    returned = float(truth.episode_returns().mean())
    print(f"return {returned:,.1f}, fqe {value:.1f}, d3rlpy {peer}")
    return {
        "return": returned,
        "discounted": float(np.add.reduceat(discounted, truth.episode_starts).mean()),
        "estimates": {name: [e.value, e.low, e.high] for name, e in found.estimates.items()},
        "peer": peer,
        "unusual": found.unusual,
        "seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    answer_job(work, ("rl-training", "torch", "numpy", "gymnasium"))
