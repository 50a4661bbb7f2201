"""The ICU-Sepsis decision process: logs by its clinicians, and the exact value of a policy.

Choudhary, Gupta and Thomas 2024, arXiv:2406.05646. The arrays come with the package
`icu-sepsis`, which is not imported, because it needs the older `gym`.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

TERMINAL = (713, 714, 715)
"""Death, survival, and a state after both."""
LONGEST = 500

Array = NDArray[np.float64]


class Process(NamedTuple):
    """A finite decision process; gamma is 1, and survival is paid 1."""

    transition: Array  # (states, actions, states)
    reward: Array  # (states, actions, states)
    start: Array  # (states,)
    clinicians: Array  # (states, actions)
    features: Array  # (states, 47)


def assets() -> Path:
    """The folder of the installed package that holds the arrays."""
    found = find_spec("icu_sepsis")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("icu-sepsis is missing; pip install 'rl-training[icu-sepsis]'")
    return Path(found.origin).parent / "envs" / "assets"


def load_process(folder: str | Path | None = None) -> Process:
    """From the folder, or from the installed package."""
    with np.load(Path(folder or assets()) / "dynamics.npz") as d:
        return Process(
            d["tx_mat"], d["r_mat"], d["d_0"], d["expert_policy"], d["state_cluster_centers"]
        )


def exact_value(process: Process, policy: Array) -> float:
    """Expected return from the start of a policy, (states, actions) probabilities."""
    live = np.setdiff1d(np.arange(len(process.start)), TERMINAL)
    moves = np.einsum("sa,sat->st", policy, process.transition)
    pay = np.einsum("sa,sat,sat->s", policy, process.transition, process.reward)
    # a policy may go round in circles for ever, which pays nothing
    stay = moves[np.ix_(live, live)] * (1.0 - 1e-9)
    value = np.linalg.solve(np.eye(len(live)) - stay, pay[live])
    return float(process.start[live] @ value)


def greedy(actions: NDArray[np.int64], num_actions: int) -> Array:
    """The policy that takes one action per state."""
    policy = np.zeros((len(actions), num_actions))
    policy[np.arange(len(actions)), actions] = 1.0
    return policy


def clinicians_log(process: Process, episodes: int, seed: int) -> dict[str, NDArray[Any]]:
    """Episodes of the clinicians' policy as arrays of a data set, one after the other."""
    rng = np.random.default_rng(seed)
    policy, moves = process.clinicians.cumsum(1), process.transition.cumsum(2)

    def draw(cumulative: Array) -> NDArray[np.int64]:
        place = rng.random(len(cumulative))[:, None] * cumulative[:, -1:]
        return np.asarray((cumulative < place).sum(1))

    state = draw(np.broadcast_to(process.start.cumsum(), (episodes, len(process.start))))
    episode = np.arange(episodes)
    rows: list[tuple[NDArray[Any], ...]] = []
    for step in range(LONGEST):
        action = draw(policy[state])
        following = draw(moves[state, action])
        reward = process.reward[state, action, following]
        ends = np.isin(following, TERMINAL)
        cut = ~ends & (step == LONGEST - 1)
        rows.append(
            (episode, np.full(len(episode), step), state, action, following, reward, ends, cut)
        )
        state, episode = following[~ends], episode[~ends]
        if not len(state):
            break
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    order = np.lexsort((columns[1], columns[0]))
    _, _, state, action, following, reward, ends, cut = (column[order] for column in columns)
    return {
        "observations": process.features[state].astype(np.float32),
        "actions": action,
        "rewards": reward.astype(np.float32),
        "next_observations": process.features[following].astype(np.float32),
        "terminations": ends,
        "truncations": cut,
    }
