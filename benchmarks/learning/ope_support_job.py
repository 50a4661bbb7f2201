"""Support on locomotion data: quantiles of held-out behaviour and of random actions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.process import Request, answer_job
from rl_training import load_transition_dataset
from rl_training.ope.support import UNUSUAL, fit_support

CHECKED = 2_000


def uniformity(quantiles: Any, fitted: int) -> float:
    """Probability of so large a distance from a uniform distribution (Kolmogorov, Smirnov).

    The quantiles come from `fitted` independent episodes, so the test is that of two samples.
    """
    ordered, count = np.sort(quantiles), len(quantiles)
    steps = np.arange(count + 1) / count
    distance = max(np.abs(ordered - steps[1:]).max(), np.abs(ordered - steps[:-1]).max())
    root = math.sqrt(count * fitted / (count + fitted))
    scaled = (root + 0.12 + 0.11 / root) * distance
    terms = [(-1) ** (k - 1) * math.exp(-2.0 * (k * scaled) ** 2) for k in range(1, 101)]
    return float(min(1.0, max(0.0, 2.0 * sum(terms))))


def work(request: Request) -> dict[str, Any]:
    whole = load_transition_dataset(request.inputs["path"])
    rng = np.random.default_rng(request.seed)
    mine = rng.permutation(whole.num_episodes) % 2 == 0
    fitted, other = whole.choose_episodes(mine), whole.choose_episodes(~mine)
    support = fit_support(fitted, seed=request.seed)
    inner = np.asarray(other.spaces.from_env(other.actions), np.float32)
    # rows of one episode depend on each other, so the test takes the first drawn of each
    order = rng.permutation(len(other))
    episode = np.repeat(np.arange(other.num_episodes), other.episode_lengths())[order]
    alone = order[np.unique(episode[: 2 * other.num_episodes], return_index=True)[1]]
    rows = order[:CHECKED]
    random = rng.uniform(-1.0, 1.0, (len(rows), inner.shape[1])).astype(np.float32)
    seen = other.observations
    own = support.quantile(seen[alone], inner[alone])
    random_share = float((support.quantile(seen[rows], random) < UNUSUAL).mean())
    own_share = float((support.quantile(seen[rows], inner[rows]) < UNUSUAL).mean())
    p = uniformity(own, fitted.num_episodes)
    print(f"random actions unusual {random_share:.0%}, logged {own_share:.1%}, KS p {p:.3f}")
    return {"random": random_share, "own": own_share, "p": p, "episodes": len(own)}


if __name__ == "__main__":
    answer_job(work, ("rl-training", "torch", "numpy"))
