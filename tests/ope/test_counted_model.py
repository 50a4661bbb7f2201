"""The counted model of a log whose states repeat, beside loops over states and actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rl_training
from rl_training.data.sources import load_transition_dataset
from rl_training.ope import counted_model
from rl_training.ope.counted_model import CountedModel, counted_value, states_repeat
from rl_training.ope.evaluate import evaluate, prepare_log
from rl_training.ope.options import Options
from rl_training.ope.steps import action_chances

STATES, ACTIONS, EPISODES = 4, 3, 30


def walks(episodes: int = EPISODES, seed: int = 0) -> dict[str, Any]:
    """Random moves among four states, of which one action is rarely taken; the last one is only
    ever reached where episodes are cut."""
    rng = np.random.default_rng(seed)
    moves = rng.dirichlet(np.ones(STATES - 1), (STATES - 1, ACTIONS))
    rows: list[tuple[int, int, float, int, bool, bool]] = []
    for _ in range(episodes):
        state = int(rng.integers(STATES - 1))
        for step in range(6):
            action = int(rng.choice(ACTIONS, p=[0.6, 0.35, 0.05]))
            after = int(rng.choice(STATES - 1, p=moves[state, action]))
            ends, cut = bool(rng.random() < 0.15), step == 5
            if cut and not ends and rng.random() < 0.5:
                after = STATES - 1
            rows.append((state, action, rng.normal(state + action), after, ends, cut and not ends))
            state = after
            if ends:
                break
    state_, action_, reward, after_, ends_, cut_ = map(np.array, zip(*rows, strict=True))
    points = np.random.default_rng(5).normal(size=(STATES, 2)).astype(np.float32)
    return {
        "observations": points[state_],
        "actions": action_,
        "rewards": reward.astype(np.float32),
        "next_observations": points[after_],
        "terminations": ends_,
        "truncations": cut_,
    }


def by_loops(
    agent: Any, dataset: Any, counts: NDArray[Any], options: Options, wrong: str = ""
) -> float:
    """The value by a table of chances, rows sought for each state and action."""
    points = sorted({tuple(x) for x in [*dataset.observations, *dataset.next_observations]})
    state = [points.index(tuple(x)) for x in dataset.observations]
    after = [points.index(tuple(x)) for x in dataset.next_observations]
    chances = action_chances(agent.algorithm, np.array(points, np.float32), True)
    often = np.repeat(counts, dataset.episode_lengths())
    if wrong == "counts":
        often = (often > 0).astype(float)
    if wrong == "behaviour":
        shares = np.bincount(dataset.actions, minlength=ACTIONS) / len(dataset)
        chances = np.tile(shares, (len(points), 1))
    visits = 0.0 if wrong == "further visits" else counted_model.VISITS
    value = np.zeros(len(points))
    for _ in range(options.horizon or 0):
        found, seen, mass = [], [], []
        targets = []
        for i in range(len(dataset)):
            ends = dataset.terminations[i] and wrong != "ends"
            gamma = 1.0 if wrong == "discount" else options.gamma
            targets.append(dataset.rewards[i] + (0.0 if ends else gamma * value[after[i]]))
        for s in range(len(points)):
            mine = [i for i in range(len(dataset)) if state[i] == s and often[i]]
            total = sum(often[i] for i in mine)
            if not mine:
                found.append(np.nan)
                mass.append(0.0)
                continue
            mean = sum(often[i] * targets[i] for i in mine) / total
            worth = 0.0
            for a in range(ACTIONS):
                own = [i for i in mine if dataset.actions[i] == a]
                paid = sum(often[i] * targets[i] for i in own) + visits * mean
                worth += chances[s, a] * paid / max(1e-9, sum(often[i] for i in own) + visits)
            found.append(worth)
            mass.append(total)
            seen.append(s)
        on = sum(mass[s] * value[s] for s in seen) / sum(mass)
        value = np.array([on if np.isnan(x) else x for x in found])
    first = [state[i] for i in dataset.episode_starts]
    return float(sum(c * value[s] for c, s in zip(counts, first, strict=True)) / counts.sum())


def test_values_are_those_of_loops() -> None:
    data = walks()
    spaces = {"obs_dim": 2, "actions": {"kind": "discrete", "n": ACTIONS}}
    agent = rl_training.BC(dataset=data, spaces=spaces, hidden_sizes=[8], device="cpu")
    dataset = load_transition_dataset(data, spaces=agent.algorithm.spaces)
    assert states_repeat(dataset)
    options = Options(gamma=0.9, horizon=7, stochastic=True, resamples=50)
    counts = np.random.default_rng(1).integers(0, 3, (3, EPISODES)).astype(np.float64)
    counts[0] = 1.0
    counts[2, 5:] = 0.0  # some states are left without a row
    model = CountedModel.of(agent.algorithm, dataset, options)
    wanted = [by_loops(agent, dataset, own, options) for own in counts]
    np.testing.assert_allclose(model.values(counts), wanted, atol=1e-9)
    for wrong in ("counts", "behaviour", "further visits", "ends", "discount"):
        other = by_loops(agent, dataset, counts[1], options, wrong)
        assert abs(other - wanted[1]) > 1e-3, wrong
    found = counted_value(agent.algorithm, dataset, options)
    assert found.low < found.value < found.high
    assert found.value == pytest.approx(wanted[0])
    # replicates draw where further visits led: right on the mean, from rows of the state that count
    one_step = Options(gamma=0.9, horizon=1, stochastic=True)
    short = CountedModel.of(agent.algorithm, dataset, one_step)
    for own in counts:
        drawn = short.values(np.repeat(own[None], 4_000, 0), np.random.default_rng(3))
        error = drawn.std(ddof=1) / np.sqrt(len(drawn))
        assert error > 0.0
        assert drawn.mean() == pytest.approx(by_loops(agent, dataset, own, one_step), abs=4 * error)
        often = np.repeat(own, dataset.episode_lengths())
        mass = np.bincount(short.state, often, len(short.chances))
        rows = short._drawn_rows(often, mass, np.random.default_rng(0))[mass > 0.0]
        assert (often[rows] > 0.0).all()
        assert (short.state[rows] == np.flatnonzero(mass > 0.0)[:, None]).all()
    endless = Options(gamma=0.9, stochastic=True)
    at_the_end = CountedModel.of(agent.algorithm, dataset, endless).values(counts)
    far = Options(gamma=0.9, horizon=120, stochastic=True)
    assert at_the_end[0] == pytest.approx(by_loops(agent, dataset, counts[0], far), rel=1e-3)


def test_states_repeat_where_they_are_discrete_and_box_actions_are_told() -> None:
    data = walks()
    drawn = np.random.default_rng(0).normal(size=data["observations"].shape).astype(np.float32)
    box = {"obs_dim": 2, "actions": {"kind": "box", "low": -1.0, "high": 1.0}}
    data["actions"] = np.tanh(drawn[:, :1])
    agent = rl_training.BC(dataset=data, spaces=box, hidden_sizes=[4], device="cpu")
    dataset = load_transition_dataset(data, spaces=agent.algorithm.spaces)
    assert states_repeat(dataset)
    options = Options(estimators=("mb",), gamma=0.9, horizon=2, resamples=10)
    told = evaluate(agent.config, agent.algorithm, prepare_log(dataset), options)
    assert any("mb with Box actions fits normal distributions" in note for note in told.notes)
    data |= {"observations": drawn, "next_observations": np.roll(drawn, -1, 0)}
    assert not states_repeat(load_transition_dataset(data, spaces=agent.algorithm.spaces))
