"""What large weights do to estimators by ratios: ICU-Sepsis with critics that are tables.

Tables cost little, so that many logs can be drawn; the estimators are those of the package.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning.icu_sepsis_mdp import (
    Array,
    Process,
    clinicians_log,
    exact_value,
    load_process,
)
from benchmarks.learning.ope_job import states_of
from benchmarks.learning.ope_policies import mixed, optimal_policy
from benchmarks.process import Request, answer_job
from rl_training.ope.episodes import WeightedEpisodes, padded
from rl_training.ope.estimators import (
    Values,
    truncated_doubly_robust,
    weighted_doubly_robust,
    weighted_importance_sampling,
)
from rl_training.ope.intervals import point

STEPS = 150
"""Of fitted Q evaluation; after so many, values stand still."""


class Rows:
    """A log by the numbers of its states."""

    def __init__(self, process: Process, episodes: int, seed: int) -> None:
        data = clinicians_log(process, episodes, seed)
        self.state = states_of(process, data["observations"])
        self.following = states_of(process, data["next_observations"])
        self.action, self.ends = data["actions"], data["terminations"]
        self.reward = data["rewards"].astype(np.float64)
        last = np.flatnonzero(data["terminations"] | data["truncations"])
        self.starts = np.append(0, last[:-1] + 1)
        self.lengths = np.diff(np.append(self.starts, len(self.state)))


def fitted_table(rows: Rows, used: NDArray[np.bool_], policy: Array) -> tuple[Array, Array]:
    """(states, actions) Q and (states,) V by counts; every pair has one visit more, whose target
    is the mean of its state."""
    states, actions = policy.shape
    pair = rows.state[used] * actions + rows.action[used]
    visits = np.bincount(pair, minlength=states * actions)
    of_state = visits.reshape(states, actions).sum(1)
    overall = rows.reward[used].sum() / max(1, int(rows.ends[used].sum()))
    value = np.zeros(states)
    for _ in range(STEPS):
        after = np.where(rows.ends[used], 0.0, value[rows.following[used]])
        total = np.bincount(pair, rows.reward[used] + after, minlength=states * actions)
        mean = total.reshape(states, actions).sum(1) / np.maximum(of_state, 1)
        mean = np.where(of_state > 0, mean, overall)
        q = ((total + np.repeat(mean, actions)) / (visits + 1.0)).reshape(states, actions)
        value = (policy * q).sum(1)
    return q, value


def estimates(process: Process, policy: Array, episodes: int, seed: int) -> dict[str, float]:
    rows = Rows(process, episodes, seed)
    half = np.random.default_rng(seed).permutation(episodes) % 2 == 1
    in_half = np.repeat(half, rows.lengths)
    q, v = np.zeros(len(rows.state)), np.zeros(len(rows.state))
    for own in (in_half, ~in_half):  # judged by the critic of the other half
        table, values = fitted_table(rows, ~own, policy)
        q[own], v[own] = table[rows.state[own], rows.action[own]], values[rows.state[own]]
    _, whole = fitted_table(rows, np.ones(len(q), bool), policy)
    chosen = policy[rows.state, rows.action], process.clinicians[rows.state, rows.action]
    with np.errstate(divide="ignore"):
        ratios = np.log(chosen[0]) - np.log(chosen[1])
    logged = WeightedEpisodes.of(rows.reward, ratios, rows.starts, 1.0)
    wide = np.zeros((episodes, int(rows.lengths.max()) + 1))
    wide[:, :-1] = padded(v, rows.starts, rows.lengths)
    modelled = Values(padded(q, rows.starts, rows.lengths), wide)
    return {
        "fqe": float(whole[rows.state[rows.starts]].mean()),
        "wdr": point(truncated_doubly_robust(logged, modelled), episodes),
        "wdr_full": point(weighted_doubly_robust(logged, modelled), episodes),
        "wis": point(weighted_importance_sampling(logged), episodes),
        "effective_size": logged.effective_size,
    }


def work(request: Request) -> dict[str, Any]:
    spec, process = request.spec, load_process()
    policy = mixed(process, optimal_policy(process), spec["share"])
    found = [
        estimates(process, policy, spec["episodes"], request.seed + i) for i in range(spec["logs"])
    ]
    return {"truth": exact_value(process, policy), "logs": found}


if __name__ == "__main__":
    answer_job(work, ("rl-training", "icu-sepsis", "numpy"))
