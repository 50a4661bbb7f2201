"""What a table makes of the same log: a reference beside the networks.

Counts give the transitions and the rewards. Actions that were taken fewer than `least` times are
not considered, and what the others are worth is lowered by `penalty / sqrt(count)`. Both constants
are chosen by the exact value, which no learner sees. It is no bound: networks on the features may
share what they learn between states.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning.icu_sepsis_mdp import (
    TERMINAL,
    Process,
    clinicians_log,
    exact_value,
    greedy,
    load_process,
)
from benchmarks.process import Request, answer_job

SWEEPS = 200


def counts(process: Process, log: dict[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    """How often each state, action and next state followed one another, and the rewards' sums."""
    states, actions = process.clinicians.shape
    numbers = {row.tobytes(): i for i, row in enumerate(process.features.astype(np.float32))}
    # the states of death and survival share their features; the flag of the end tells them apart
    before, after = (
        np.array([numbers[row.tobytes()] for row in log[name]])
        for name in ("observations", "next_observations")
    )
    after = np.where(log["terminations"], TERMINAL[0], after)
    moves = np.zeros((states, actions, states), np.float32)
    np.add.at(moves, (before, log["actions"], after), 1.0)
    pay = np.zeros((states, actions))
    np.add.at(pay, (before, log["actions"]), log["rewards"])
    return moves, pay


def plan(moves: NDArray[Any], pay: NDArray[Any], least: int, penalty: float) -> NDArray[np.int64]:
    """The best action per state of the counted process, with pessimism."""
    taken = moves.sum(2)
    often = np.maximum(taken, 1.0)
    allowed = taken >= least
    rare = ~allowed.any(1)
    allowed[rare] = taken[rare] == taken[rare].max(1, keepdims=True)
    rows, value = moves.reshape(-1, len(taken)), np.zeros(len(taken))
    for _ in range(SWEEPS):
        value[list(TERMINAL)] = 0.0
        following = (rows @ value.astype(np.float32)).reshape(taken.shape)
        worth = (pay + following) / often - penalty / np.sqrt(often)
        worth = np.where(allowed, worth, -np.inf)
        value = np.clip(worth.max(1), 0.0, 1.0)
    return np.asarray(worth.argmax(1))


def work(request: Request) -> dict[str, Any]:
    spec, process = request.spec, load_process()
    moves, pay = counts(process, clinicians_log(process, spec["episodes"], request.seed))
    found = {
        (least, penalty): exact_value(
            process, greedy(plan(moves, pay, least, penalty), process.clinicians.shape[1])
        )
        for least in spec["least"]
        for penalty in spec["penalties"]
    }
    best = max(found, key=lambda pair: found[pair])
    print(f"value {found[best]:.4f} with at least {best[0]} times and a penalty of {best[1]:g}")
    return {
        "value": found[best],
        "least": best[0],
        "penalty": best[1],
        "train_seconds": round(time.process_time(), 1),
    }


if __name__ == "__main__":
    answer_job(work, ("icu-sepsis", "numpy"))
