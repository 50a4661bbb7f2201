"""What must have happened in a vector of probes, from the schedule and the actions alone.

Written without the package's environments, collector, replay, returns or advantages: sums
run forward over single steps, one at a time. A `Mistake` is a well-known way to get the end
of an episode wrong; a check that agrees with a mistaken oracle checks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.experiment.seeding import derive_seed, episode_seed

TERMINATE_AT, TRUNCATE_AT, JITTER = 4, 6, 2
LOW, HIGH = -2.0, 3.0
SCHEDULE: dict[str, Any] = {
    "terminate_at": TERMINATE_AT,
    "truncate_at": TRUNCATE_AT,
    "alternate": True,
    "jitter": JITTER,
    "scaled": True,
    "low": LOW,
    "high": HIGH,
}

Array = NDArray[Any]
Value = Callable[[Array], Array]
"""(N, O) observations to (N,) values."""


class Mistake(Enum):
    TRUNCATION_ENDS_THE_RETURN = "a time limit is treated as a termination"
    TERMINATION_GOES_ON = "a termination is treated as a time limit"
    NEXT_IS_THE_RESET = "the state after a cut is the first of the next episode"
    CROSSES_CUTS = "sums run on over a time limit"
    CROSSES_ENDS = "sums run on over a termination"
    FULL_POWER = "a window that was cut short bootstraps with gamma^n"


class Transition(NamedTuple):
    seed: int
    step: int
    obs: Array
    action: Array  # inner units
    reward: float
    next_obs: Array
    terminated: bool
    truncated: bool

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


class Row(NamedTuple):
    obs: Array
    action: Array
    reward: float
    next_obs: Array
    discount: float


def observation(seed: int, step: int, action: Array) -> Array:
    first = [seed // 65536 / 32768, seed % 65536 / 65536, step / 16]
    return np.array([*first, *np.atleast_1d(action)], np.float32)


def episode_length(seed: int) -> int:
    return (TERMINATE_AT if seed % 2 == 0 else TRUNCATE_AT) + seed % (JITTER + 1)


def stream(seeds: Callable[[int], int], actions: Sequence[Array]) -> list[Transition]:
    """The transitions of one environment whose episode k has the seed `seeds(k)`."""
    found: list[Transition] = []
    nothing = np.zeros(np.size(actions[0]))
    episode, step, obs = 0, 0, observation(seeds(0), 0, nothing)
    for action in actions:
        seed = seeds(episode)
        in_env_units = LOW + (action + 1.0) * 0.5 * (HIGH - LOW) if np.ndim(action) else action
        next_obs = observation(seed, step + 1, in_env_units)
        ends, terminates = step + 1 == episode_length(seed), seed % 2 == 0
        flags = (ends and terminates, ends and not terminates)
        found.append(Transition(seed, step, obs, action, step + 1.0, next_obs, *flags))
        step += 1
        obs = next_obs
        if ends:
            episode, step = episode + 1, 0
            obs = observation(seeds(episode), 0, nothing)
    return found


def run_streams(run_seed: int, taken: Sequence[Array]) -> list[list[Transition]]:
    """Per environment, the transitions of a run in which (E, ...) `taken` were its actions."""
    seed = derive_seed(run_seed, "collect")
    return [
        stream(lambda k, i=i: episode_seed(seed, i, k), [row[i] for row in taken])  # type: ignore[misc]
        for i in range(len(taken[0]))
    ]


def n_step_row(
    transitions: list[Transition], at: int, n: int, gamma: float, mistake: Mistake | None = None
) -> Row:
    reward, steps = 0.0, 0
    for steps in range(1, n + 1):
        last = transitions[at + steps - 1]
        reward += gamma ** (steps - 1) * last.reward
        if last.terminated and mistake is not Mistake.CROSSES_ENDS:
            break
        if last.truncated and mistake is not Mistake.CROSSES_CUTS:
            break
    discount = gamma ** (n if mistake is Mistake.FULL_POWER else steps)
    ends = last.terminated and mistake is not Mistake.TERMINATION_GOES_ON
    if ends or (last.truncated and mistake is Mistake.TRUNCATION_ENDS_THE_RETURN):
        discount = 0.0
    next_obs = last.next_obs
    if last.truncated and mistake is Mistake.NEXT_IS_THE_RESET:
        next_obs = transitions[at + steps].obs
    return Row(transitions[at].obs, transitions[at].action, reward, next_obs, discount)


def td_errors(
    transitions: list[Transition],
    rewards: Sequence[float],
    value: Value,
    gamma: float,
    following: Transition | None = None,
    mistake: Mistake | None = None,
) -> Array:
    """r + gamma V(s') - V(s) of consecutive transitions, `following` being the one after."""
    now = value(np.stack([t.obs for t in transitions])).astype(np.float64)
    states = []
    for t, after in zip(transitions, [*transitions[1:], following], strict=True):
        reset = t.truncated and mistake is Mistake.NEXT_IS_THE_RESET and after is not None
        states.append(after.obs if reset and after is not None else t.next_obs)
    then = value(np.stack(states)).astype(np.float64)
    for i, t in enumerate(transitions):
        ends = t.terminated and mistake is not Mistake.TERMINATION_GOES_ON
        if ends or (t.truncated and mistake is Mistake.TRUNCATION_ENDS_THE_RETURN):
            then[i] = 0.0
    return np.asarray(rewards, np.float64) + gamma * then - now


def advantages(
    transitions: list[Transition],
    errors: Array,
    decay: float,
    mistake: Mistake | None = None,
) -> Array:
    """sum_k decay^k error_{t+k}, to the end of the episode or of the transitions."""
    found = np.zeros(len(transitions))
    for t in range(len(transitions)):
        for k, later in enumerate(transitions[t:]):
            found[t] += decay**k * errors[t + k]
            if later.terminated and mistake is not Mistake.CROSSES_ENDS:
                break
            if later.truncated and mistake is not Mistake.CROSSES_CUTS:
                break
    return found


def scaled_rewards(
    streams: list[list[Transition]], gamma: float, *, reset_at_ends: bool = True
) -> Array:
    """(T, E) rewards over the deviation of all discounted returns seen until then."""
    running = np.zeros(len(streams))
    seen: list[float] = []
    found = []
    for now in zip(*streams, strict=True):
        reward = np.array([t.reward for t in now])
        running = running * gamma + reward
        seen.extend(running)
        found.append(np.clip(reward / np.sqrt(np.var(seen) + 1e-8), -10.0, 10.0))
        if reset_at_ends:
            running[[t.ended for t in now]] = 0.0
    return np.array(found)
