"""Model-based evaluation of a log whose states repeat: transitions are counted, not fitted.

No normal distribution fits a process of discrete states. Where observations repeat and actions are
Discrete, the model is the table of what followed each state and action, and the value is computed
in it without drawing anything. An action that was hardly ever taken in a state leads where the
state leads on the mean, as if it had been taken once more. Bootstrap replicates draw where that
visit led, from the rows of the state, so that their spread holds this assumption.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rl_training.algorithms.base import Algorithm
from rl_training.data.dataset import TransitionDataset
from rl_training.ope.episodes import Floats
from rl_training.ope.intervals import normal_quantile, resampled
from rl_training.ope.options import Options
from rl_training.ope.steps import CountedSteps, action_chances
from rl_training.runtime.statistics import Interval

REPEATED = 2.0
"""Rows per distinct observation from which states are said to repeat; of continuous states it is
near 1."""
VISITS = 1.0
"""Further visits of every state and action, which lead where the state leads on the mean."""
RESAMPLES = 200
"""Replicates at most, which are enough for their spread."""
LEFT = 1e-4
"""Discount of the last step where no horizon is given."""
STILL = 1e-7
"""Share of the largest value below which a change of values is none."""

Numbers = NDArray[np.int64]


def distinct_rows(observations: NDArray[np.float32]) -> tuple[Numbers, Numbers]:
    """Where each distinct row first occurs, and the number of the distinct row at every place."""
    flat = np.ascontiguousarray(observations.reshape(len(observations), -1)) + np.float32(0.0)
    as_one = flat.view(np.dtype((np.void, flat.dtype.itemsize * flat.shape[1]))).reshape(-1)
    _, first, number = np.unique(as_one, return_index=True, return_inverse=True)
    return first, number.reshape(-1)


def states_repeat(dataset: TransitionDataset) -> bool:
    """Whether there are few distinct observations compared with the rows."""
    first, _ = distinct_rows(dataset.observations)
    return len(first) * REPEATED <= len(dataset)


def counted_value(algorithm: Algorithm, dataset: TransitionDataset, options: Options) -> Interval:
    """The policy's value in the counted model, with the spread of replicates around it."""
    model = CountedModel.of(algorithm, dataset, options)
    groups = CountedSteps.of(dataset, options.horizon).groups
    return model.interval(options, groups)


@dataclass(frozen=True, eq=False)
class CountedModel:
    """A log by the numbers of its states."""

    state: Numbers
    action: Numbers
    following: Numbers
    reward: Floats
    goes_on: Floats
    """(N,) gamma, or 0 where the episode ended."""
    chances: Floats
    """(states, actions) of the policy."""
    starts: Numbers
    """(episodes,) first states."""
    lengths: Numbers
    steps: int

    @classmethod
    def of(cls, algorithm: Algorithm, dataset: TransitionDataset, options: Options) -> CountedModel:
        seen = np.concatenate([dataset.observations, dataset.next_observations])
        first, number = distinct_rows(seen)
        state, following = np.split(number, 2)
        steps = options.horizon or math.ceil(math.log(LEFT) / math.log(options.gamma))
        return cls(
            state=state,
            action=np.asarray(dataset.spaces.from_env(dataset.actions)).astype(np.int64),
            following=following,
            reward=dataset.rewards.astype(np.float64),
            goes_on=np.where(dataset.terminations, 0.0, options.gamma),
            chances=action_chances(algorithm, seen[first], options.stochastic),
            starts=state[dataset.episode_starts],
            lengths=dataset.episode_lengths(),
            steps=steps,
        )

    @cached_property
    def pairs(self) -> tuple[Numbers, Numbers]:
        """Distinct pairs of a state and the next one, as one number each, and the (N,) place of
        each row's pair among them."""
        both = self.state * len(self.chances) + self.following
        found, place = np.unique(both, return_inverse=True)
        return found, place.reshape(-1)

    def interval(self, options: Options, groups: Numbers | None = None) -> Interval:
        """A normal one from replicates: episodes are resampled, and further visits drawn."""
        rng = np.random.default_rng(options.seed)
        drawn = resampled(
            lambda counts: self.values(counts, rng),
            len(self.starts),
            groups=groups,
            resamples=min(options.resamples, RESAMPLES),
            seed=options.seed,
        )
        value = float(self.values(np.ones((1, len(self.starts))))[0])
        spread = normal_quantile(options.confidence) * float(drawn.std(ddof=1))
        return Interval(value, value - spread, value + spread)

    def values(self, counts: Floats, rng: np.random.Generator | None = None) -> Floats:
        """(R,) values for (R, episodes), how often each episode counts; `rng` draws where further
        visits led."""
        return np.array([self._value(one, rng) for one in counts])

    def _value(self, counts: Floats, rng: np.random.Generator | None) -> float:
        paid, weight, share = self._moves(np.repeat(counts, self.lengths), rng)
        owner, after = np.divmod(self.pairs[0], len(self.chances))
        lonely = share == 0.0
        value = np.zeros(len(self.chances))
        for _ in range(self.steps):
            moved = np.bincount(owner, weight * value[after], len(value))
            found = np.where(lonely, share @ value, paid + moved)
            still = np.abs(found - value).max() <= STILL * np.abs(found).max()
            value = found
            if still:
                break
        return float(counts @ value[self.starts] / counts.sum())

    def _moves(
        self, often: Floats, rng: np.random.Generator | None
    ) -> tuple[Floats, Floats, Floats]:
        """What the policy is paid in each state, the discounted chance of each pair of states, and
        the (states,) shares of logged rows. A state without rows goes on as the log does on the
        mean."""
        states, actions = self.chances.shape
        cell = self.state * actions + self.action
        visits = np.bincount(cell, often, states * actions).reshape(states, actions)
        of_state = visits.sum(1)
        by_action = self.chances / (visits + VISITS)
        chance = often * by_action[self.state, self.action]
        if rng is None:
            by_state = VISITS * by_action.sum(1) / np.maximum(of_state, 1.0)
            chance = chance + often * by_state[self.state]
        else:
            kept = of_state > 0.0
            rows = self._drawn_rows(often, of_state, rng)[kept].reshape(-1)
            chance = chance + np.bincount(rows, VISITS * by_action[kept].reshape(-1), len(often))
        paid = np.bincount(self.state, chance * self.reward, states)
        pairs, place = self.pairs
        weight = np.bincount(place, chance * self.goes_on, len(pairs))
        return np.asarray(paid), np.asarray(weight), np.asarray(of_state / of_state.sum())

    def _drawn_rows(self, often: Floats, of_state: Floats, rng: np.random.Generator) -> Numbers:
        """(states, actions) numbers of rows of each state, drawn as often as they count; those of
        states without rows mean nothing."""
        order = np.argsort(self.state, kind="stable")
        up_to = often[order].cumsum()
        before = np.append(0.0, of_state.cumsum()[:-1])
        places = before[:, None] + rng.random(self.chances.shape) * of_state[:, None]
        found = np.searchsorted(up_to, places, side="right")
        return order[np.minimum(found, len(order) - 1)]
