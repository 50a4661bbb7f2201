"""Estimators against double loops, against the exact values of a small MDP, with planted errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rl_training.experiment.errors import ConfigError, DataError
from rl_training.ope import estimators
from rl_training.ope.episodes import WeightedEpisodes, padded
from rl_training.ope.estimators import Values
from rl_training.ope.intervals import bootstrap, empirical_bernstein, lower_bound, point

# --- a small MDP whose values are exact ---------------------------------------------------------

STATES, ACTIONS, GAMMA = 5, 3, 0.9
_rng = np.random.default_rng(7)
NEXT = _rng.dirichlet(np.ones(STATES + 1), size=(STATES, ACTIONS))  # the last one ends the episode
REWARDS = _rng.normal(size=(STATES, ACTIONS))
BEHAVIOUR = _rng.dirichlet(2.0 * np.ones(ACTIONS), size=STATES)
TARGET = _rng.dirichlet(2.0 * np.ones(ACTIONS), size=STATES)
START = np.full(STATES, 1.0 / STATES)


def exact(policy: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
    """Value from the start distribution, and Q, by solving the Bellman equations."""
    moves = np.einsum("sa,sat->st", policy, NEXT[:, :, :STATES])
    v = np.linalg.solve(np.eye(STATES) - GAMMA * moves, (policy * REWARDS).sum(1))
    return float(START @ v), REWARDS + GAMMA * NEXT[:, :, :STATES] @ v


class Log:
    """Episodes of the behaviour policy, row after row."""

    def __init__(self, episodes: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        states, actions, rewards, starts = [], [], [], []
        state, alive = rng.choice(STATES, size=episodes, p=START), np.arange(episodes)
        rows: list[list[tuple[int, int, float]]] = [[] for _ in range(episodes)]
        while len(alive):
            drawn = rng.random((2, len(alive)))
            action = (BEHAVIOUR[state].cumsum(1) < drawn[0][:, None]).sum(1).clip(max=ACTIONS - 1)
            following = (NEXT[state, action].cumsum(1) < drawn[1][:, None]).sum(1)
            for episode, s, a in zip(alive.tolist(), state.tolist(), action.tolist(), strict=True):
                rows[episode].append((s, a, REWARDS[s, a]))
            going = following < STATES
            alive, state = alive[going], following[going]
        for episode in rows:
            starts.append(len(states))
            for s, a, r in episode:
                states.append(s)
                actions.append(a)
                rewards.append(r)
        self.states, self.actions = np.array(states), np.array(actions)
        self.rewards, self.starts = np.array(rewards), np.array(starts)

    def ratios(self) -> np.ndarray[Any, Any]:
        return np.log(TARGET[self.states, self.actions] / BEHAVIOUR[self.states, self.actions])

    def episodes(self, ratios: np.ndarray[Any, Any] | None = None) -> WeightedEpisodes:
        logs = self.ratios() if ratios is None else ratios
        return WeightedEpisodes.of(self.rewards, logs, self.starts, GAMMA)

    def values(self, q: np.ndarray[Any, Any]) -> Values:
        lengths = np.diff(np.append(self.starts, len(self.rewards)))
        v = (TARGET * q).sum(1)
        wide = padded(v[self.states], self.starts, lengths)
        return Values(
            padded(q[self.states, self.actions], self.starts, lengths),
            np.concatenate([wide, np.zeros((len(wide), 1))], axis=1),
        )


PLAIN: dict[str, Callable[[WeightedEpisodes], Any]] = {
    "is": estimators.importance_sampling,
    "wis": estimators.weighted_importance_sampling,
    "pdis": estimators.per_decision,
    "pdwis": estimators.weighted_per_decision,
}
ROBUST: dict[str, Callable[[WeightedEpisodes, Values], Any]] = {
    "dr": estimators.doubly_robust,
    "wdr": estimators.truncated_doubly_robust,
    "wdr_full": estimators.weighted_doubly_robust,
}


# --- the same by double loops, over lists -------------------------------------------------------


def loops(
    rewards: list[list[float]],
    ratios: list[list[float]],
    q: list[list[float]],
    v: list[list[float]],
    gamma: float,
) -> dict[str, float]:
    """All from their definitions; `v` has one entry more than an episode has steps."""
    n, longest = len(rewards), max(map(len, rewards))

    def weight(i: int, t: int) -> float:
        product = 1.0
        for k in range(min(t + 1, len(ratios[i]))):
            product *= ratios[i][k]
        return product

    whole = [weight(i, len(rewards[i]) - 1) for i in range(n)]
    gains = [sum(gamma**t * r for t, r in enumerate(rewards[i])) for i in range(n)]
    found = {"is": sum(w * g for w, g in zip(whole, gains, strict=True)) / n}
    found["wis"] = sum(w * g for w, g in zip(whole, gains, strict=True)) / sum(whole)

    def cut(i: int, t: int) -> float:
        return min(weight(i, t), n**0.5)

    pdis = pdwis = dr = wdr = wdr_full = 0.0
    for t in range(longest + 1):
        total = sum(weight(i, t) for i in range(n))
        earlier = sum(weight(i, t - 1) for i in range(n))
        cut_total = sum(cut(i, t) for i in range(n))
        cut_earlier = sum(cut(i, t - 1) for i in range(n))
        for i in range(n):
            if t < len(rewards[i]):
                pdis += gamma**t * weight(i, t) * rewards[i][t] / n
                pdwis += gamma**t * weight(i, t) * rewards[i][t] / total
                wrong = rewards[i][t] - q[i][t]
                dr += gamma**t * weight(i, t) * wrong / n
                wdr += gamma**t * cut(i, t) * wrong / cut_total
                wdr_full += gamma**t * weight(i, t) * wrong / total
            if t < len(v[i]):
                dr += gamma**t * weight(i, t - 1) * v[i][t] / n
                wdr += gamma**t * cut(i, t - 1) * v[i][t] / cut_earlier
                wdr_full += gamma**t * weight(i, t - 1) * v[i][t] / earlier
    return found | {"pdis": pdis, "pdwis": pdwis, "dr": dr, "wdr": wdr, "wdr_full": wdr_full}


def test_equal_to_double_loops() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, 9, size=12)
        starts = np.concatenate([[0], lengths.cumsum()[:-1]])
        total = int(lengths.sum())
        rewards, ratios, q = rng.normal(size=(3, total))
        ratios = np.exp(ratios)
        v = rng.normal(size=(12, int(lengths.max()) + 1))
        cut = rng.random(12) < 0.5  # the state after the last step counts for these
        v[np.arange(v.shape[1]) > lengths[:, None] - 1 + cut[:, None]] = 0.0
        episodes = WeightedEpisodes.of(rewards, np.log(ratios), starts, 0.95)
        assert (episodes.weights > 12**0.5).any(), "some weights are cut"
        values = Values(padded(q, starts, lengths), v)
        parts = [np.split(array, starts[1:]) for array in (rewards, ratios, q)]
        expected = loops(
            *([list(part) for part in array] for array in parts),
            [list(row[: length + 1]) for row, length in zip(v, lengths, strict=True)],
            0.95,
        )
        found = {name: point(make(episodes), 12) for name, make in PLAIN.items()}
        found |= {name: point(make(episodes, values), 12) for name, make in ROBUST.items()}
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-10, abs=1e-10), name
        # an episode that counts twice is an episode that is there twice
        counts = rng.integers(1, 4, size=(1, 12)).astype(float)
        twice = np.repeat(np.arange(12), counts[0].astype(int))
        again = WeightedEpisodes(
            episodes.rewards[twice], episodes.log_ratios[twice], lengths[twice], 0.95
        )
        copied = Values(values.q[twice], values.v[twice])
        for name, make in PLAIN.items():
            assert make(episodes)(counts)[0] == pytest.approx(point(make(again), len(twice))), name
        for name, robust in ROBUST.items():
            if name == "wdr":
                continue  # copies of an episode move the limit
            wanted = point(robust(again, copied), len(twice))
            assert robust(episodes, values)(counts)[0] == pytest.approx(wanted), name


# --- convergence --------------------------------------------------------------------------------

EPISODES = 100_000


def test_all_converge_to_the_exact_value_and_planted_errors_do_not() -> None:
    value, q = exact(TARGET)
    log = Log(EPISODES, seed=1)
    episodes = log.episodes()
    wrong_model = log.values(q + np.random.default_rng(3).normal(size=q.shape))
    made = {name: make(episodes) for name, make in PLAIN.items()}
    made |= {name: make(episodes, wrong_model) for name, make in ROBUST.items()}

    shares = np.full(EPISODES, 1.0 / EPISODES)
    counts = np.random.default_rng(0).multinomial(EPISODES, shares, size=20).astype(float)

    def errors(estimator: Any) -> float:
        """Distance to the exact value in standard errors."""
        return abs(point(estimator, EPISODES) - value) / float(np.std(estimator(counts)))

    for name, estimator in made.items():
        assert errors(estimator) < 3.0, f"{name}: {point(estimator, EPISODES)} for {value}"
    # what libraries have shipped: none passes the same test
    rng = np.random.default_rng(5)
    fresh = (TARGET[log.states].cumsum(1) < rng.random((len(log.states), 1))).sum(1)
    fresh_ratios = np.log(TARGET[log.states, fresh] / BEHAVIOUR[log.states, fresh])
    single = WeightedEpisodes.of(log.rewards, log.ratios(), log.starts, GAMMA)
    object.__setattr__(single, "weights", np.exp(single.log_ratios))  # not cumulative
    no_discount = WeightedEpisodes.of(log.rewards, log.ratios(), log.starts, 1.0)
    on_itself = log.episodes(np.zeros(len(log.states)))  # beta taken from the target policy
    for name, wrong in {
        "a fresh action in the ratio": log.episodes(fresh_ratios),
        "ratios that are not cumulative": single,
        "a missing discount": no_discount,
        "behaviour probabilities of the target policy": on_itself,
    }.items():
        assert errors(estimators.per_decision(wrong)) > 3.0, name


def test_one_heavy_episode_does_not_decide_the_truncated_estimate() -> None:
    value, q = exact(TARGET)
    log = Log(400, seed=3)
    values = log.values(q)
    ratios = log.ratios()
    first = int(np.flatnonzero(log.rewards > REWARDS.mean())[0])
    ratios[first] += np.log(1e4)  # of weight 10,000, as actions that are rare in the log have
    found = {name: point(make(log.episodes(ratios), values), 400) for name, make in ROBUST.items()}
    plain = point(ROBUST["wdr"](log.episodes(), values), 400)
    assert abs(found["wdr"] - value) < 0.2
    assert abs(found["wdr"] - plain) < 0.25 * abs(found["wdr_full"] - plain)
    assert abs(found["wdr_full"] - value) > 2.0 * abs(found["wdr"] - value)


# --- intervals ----------------------------------------------------------------------------------


def test_intervals_cover() -> None:
    value, q = exact(TARGET)
    hits = dict.fromkeys(("wis", "pdwis", "wdr"), 0)
    bounds = 0
    trials = 60
    for seed in range(trials):
        log = Log(400, seed=100 + seed)
        episodes = log.episodes()
        for name in hits:
            make = PLAIN.get(name)
            values = log.values(q + 0.3)
            made = make(episodes) if make else ROBUST[name](episodes, values)
            interval = bootstrap(made, 400, resamples=200, seed=seed)
            hits[name] += interval.low <= value <= interval.high
        low, high = -40.0, 40.0
        bounds += lower_bound(episodes.whole_weights, episodes.returns, low, high) <= value
    for name, count in hits.items():
        assert count >= 0.85 * trials, f"{name} covers {count} of {trials}"
    assert bounds == trials


def test_bernstein_by_hand_and_groups_widen() -> None:
    values = np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    log = np.log(4 / 0.05)
    width = np.sqrt(2 * values.var(ddof=1) * log / 5) + 7 * 2.0 * log / (3 * 4)
    found = empirical_bernstein(values, 0.0, 2.0)
    assert (found.value, found.low, found.high) == pytest.approx((0.6, 0.0, min(2.0, 0.6 + width)))
    episodes = 200
    returns = np.repeat(np.random.default_rng(0).normal(size=20), 10)  # ten alike of each group
    mean = estimators._mean(returns)
    alone = bootstrap(mean, episodes)
    together = bootstrap(mean, episodes, groups=np.repeat(np.arange(20), 10))
    assert together.high - together.low > 2.0 * (alone.high - alone.low)
    assert alone == bootstrap(mean, episodes), "the same for the same data"


def test_refusals() -> None:
    starts = np.array([0])
    for wrong in (np.inf, np.nan):
        with pytest.raises(DataError, match=r"^row 1: the behaviour probability"):
            WeightedEpisodes.of(np.zeros(2), np.array([0.0, wrong]), starts, 0.9)
    # a logged action that the target policy never takes is no mistake: its weight is 0
    never = WeightedEpisodes.of(np.ones(2), np.array([0.0, -np.inf]), starts, 0.9)
    assert never.whole_weights[0] == 0.0
    assert never.effective_size == 0.0
    with pytest.raises(ConfigError, match="return bounds"):
        empirical_bernstein(np.array([0.0, 3.0]), 0.0, 2.0)
    with pytest.raises(DataError, match="two episodes"):
        empirical_bernstein(np.array([1.0]), 0.0, 2.0)


def test_weights_that_vanish_or_are_too_small_for_a_float() -> None:
    # a thousand steps at half the chance: only their shares mean something
    ratios = np.concatenate([np.full(1_000, np.log(0.5)), np.full(1_000, np.log(0.5))])
    ratios[0] += np.log(3.0)
    rewards = np.zeros(2_000)
    rewards[[999, 1_999]] = 1.0, 5.0
    long = WeightedEpisodes.of(rewards, ratios, np.array([0, 1_000]), 1.0)
    for name in ("wis", "pdwis"):
        assert point(PLAIN[name](long), 2) == pytest.approx((3.0 * 1.0 + 5.0) / 4.0), name
    assert long.effective_size == pytest.approx(16.0 / 10.0)
    # no episode is followed beyond its first step: the values of the model take its place there
    left = np.array([0.0, -np.inf, 0.0, 0.0, -np.inf, 0.0])
    never = WeightedEpisodes.of(np.ones(6), left, np.array([0, 3]), 1.0)
    assert never.effective_size == 0.0
    values = Values(np.full((2, 3), 7.0), np.tile([10.0, 20.0, 30.0, 0.0], (2, 1)))
    for name in ("wdr", "wdr_full", "dr"):
        assert point(ROBUST[name](never, values), 2) == pytest.approx(10.0 + (1.0 - 7.0) + 20.0)


def test_effective_size() -> None:
    starts = np.arange(4)
    flat = WeightedEpisodes.of(np.ones(4), np.full(4, 0.7), starts, 0.9)
    assert flat.effective_size == pytest.approx(4.0)
    one = WeightedEpisodes.of(np.ones(4), np.array([500.0, 0.0, 0.0, 0.0]), starts, 0.9)
    assert one.effective_size == pytest.approx(1.0)
