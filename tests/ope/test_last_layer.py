"""The solved last layer of fitted Q evaluation, beside least squares in NumPy, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import rl_training
from rl_training.algorithms.fqe import FQEAlgorithm
from rl_training.data.dataset import TransitionDataset
from rl_training.data.sources import load_transition_dataset
from rl_training.ope import last_layer, pooling
from rl_training.ope.options import Options
from rl_training.runtime.fitted_critics import ResampledCritics

from ..algorithms.test_fqe import chain, policy_with

Floats = NDArray[np.float64]
KNOBS = {"gamma": 0.9, "hidden_sizes": [6], "value_range": (-5.0, 5.0)}


def untrained(start: Any, dataset: TransitionDataset) -> tuple[FQEAlgorithm, NDArray[np.int64]]:
    """A critic with its first weights, and counts of which some are 0."""
    counts = np.random.default_rng(0).integers(0, 3, dataset.num_episodes)
    knobs = {**KNOBS, "stochastic": dataset.spaces.is_discrete}
    made = ResampledCritics(
        start.config, start.algorithm, dataset, counts[None], knobs, updates=1, engine="eager"
    )
    return made.agents[0], counts


def by_numpy(
    agent: FQEAlgorithm,
    dataset: TransitionDataset,
    counts: NDArray[np.int64],
    options: Options,
    steps: int,
    wrong: str = "",
    draw: int | None = None,
) -> Floats:
    """(heads, features) after so many steps from values of 0."""
    net: Any = agent.critics.net
    weights = [np.asarray(one[0].detach().double()) for one in net.weights]
    biases = [np.asarray(one[0, 0].detach().double()) for one in net.biases]
    seen = agent.network_input

    def features(observations: Any, action: Any) -> Floats:
        x = np.asarray(seen(torch.from_numpy(observations[None]))[0].double())
        if not dataset.spaces.is_discrete:
            x = np.append(x, action)
        return np.append(np.maximum(x @ weights[0] + biases[0], 0.0), 1.0)

    def acts(observations: Any) -> Floats:
        given = seen(torch.from_numpy(observations[None]))
        if dataset.spaces.is_discrete:
            found: Any = agent.evaluated(given).exp()[0].double().numpy()
        else:
            found = agent.evaluated.mode(given)[0].double().numpy()
        return np.asarray(found)

    discrete = dataset.spaces.is_discrete
    inner = np.asarray(dataset.spaces.from_env(dataset.actions))
    rows = np.repeat(counts, dataset.episode_lengths())
    if wrong == "counts":
        rows = (rows > 0).astype(np.int64)
    first = np.concatenate([weights[1], biases[1][None]]).T
    logged, following, chances = [], [], []
    for i in range(len(dataset)):
        chosen = acts(dataset.next_observations[i])
        logged.append(features(dataset.observations[i], inner[i]))
        following.append(features(dataset.next_observations[i], chosen))
        chances.append(chosen if discrete else np.ones(1))
    used = [i for i in range(len(dataset)) if rows[i]]
    actions, width = first.shape
    ridge = last_layer.RIDGE * np.mean([logged[i] ** 2 for i in used])
    pull, often = ridge * np.eye(width), np.zeros(actions)
    for i in used:
        often[int(inner[i]) if discrete else 0] += rows[i]
    if discrete and wrong != "pooling":
        for i in used:
            part = pooling.VISITS * width / sum(rows[j] for j in used)
            pull = pull + part * rows[i] * np.outer(logged[i], logged[i])
    middle = often @ first / often.sum()
    noise = 0.0 * first
    if draw is not None and discrete:
        noise = torch.randn(first.shape, generator=torch.Generator().manual_seed(draw)).numpy()
    heads, value = first * 0.0, np.zeros(len(dataset))
    for _ in range(steps):
        wanted = []
        grams, right = np.zeros((actions, width, width)), np.zeros((actions, width))
        for i in used:
            ends = bool(dataset.terminations[i]) and wrong != "ends"
            target = dataset.rewards[i] + options.gamma * (0.0 if ends else value[i])
            if options.value_range is not None and wrong != "clipping":
                target = min(max(target, options.value_range[0]), options.value_range[1])
            k = int(inner[i]) if discrete else 0
            grams[k] += rows[i] * np.outer(logged[i], logged[i])
            right[k] += rows[i] * target * logged[i]
            wanted.append((k, i, target))
        heads = pooled(grams, right, pull, ridge, middle, wrong, 0.0 * noise)
        if draw is not None:
            missed = [rows[i] * (t - heads[k] @ logged[i]) ** 2 for k, i, t in wanted]
            scatter = 1.0 if wrong == "scatter" else np.sqrt(sum(missed) / often.sum())
            heads = pooled(grams, right, pull, ridge, middle, wrong, scatter * noise)
        value = np.array([c @ (heads @ f) for c, f in zip(chances, following, strict=True)])
        if wrong == "logged action":
            value = np.array([heads[int(a)] @ f for a, f in zip(inner, following, strict=True)])
    return heads


def pooled(
    grams: Floats,
    right: Floats,
    pull: Floats,
    ridge: float,
    middle: Floats,
    wrong: str,
    noise: Floats,
) -> Floats:
    """All heads and the common one, as one least-squares problem; `noise` are the targets of the
    further rows, whose size is that of independent logged ones."""
    heads, width = right.shape
    if heads == 1:
        middle = 0.0 * middle if wrong == "prior" else middle
        return np.linalg.solve(grams[0] + pull, right[0] + pull @ middle)[None]
    root = np.linalg.cholesky(pull).T  # |root (w - c)|^2 is the pull
    equations, wanted = [], []
    for a in range(heads):
        spectrum, axes = np.linalg.eigh(grams[a])
        kept = spectrum > 1e-9 * max(1e-300, spectrum.max())
        own = np.sqrt(spectrum[kept])[:, None] * axes[:, kept].T  # own' own is the gram
        fit = np.zeros((len(own), (heads + 1) * width))
        fit[:, a * width : (a + 1) * width] = own
        equations.append(fit)
        wanted.append((axes[:, kept].T @ right[a]) / np.sqrt(spectrum[kept]))
        drawn = np.zeros((width, (heads + 1) * width))
        drawn[:, a * width : (a + 1) * width] = root
        if wrong != "drawn to zero":
            drawn[:, heads * width :] = -root
        equations.append(drawn)
        wanted.append(noise[a])
    start = np.zeros((width, (heads + 1) * width))
    start[:, heads * width :] = np.sqrt(ridge) * np.eye(width)
    equations.append(start)
    wanted.append(np.sqrt(ridge) * (0.0 * middle if wrong == "prior" else middle))
    found = np.linalg.lstsq(np.concatenate(equations), np.concatenate(wanted), rcond=None)[0]
    return np.asarray(found[: heads * width].reshape(heads, width))


def box_chain(episodes: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    obs = rng.normal(size=(episodes, 5, 2)).astype(np.float32)
    ends = np.tile([False] * 4 + [True], (episodes, 1))
    return {
        "observations": obs.reshape(-1, 2),
        "actions": rng.uniform(-1, 1, (episodes * 5, 1)).astype(np.float32),
        "next_observations": np.roll(obs, -1, 1).reshape(-1, 2),
        "rewards": obs[..., 0].reshape(-1),
        "terminations": ends.reshape(-1),
        "truncations": np.zeros(episodes * 5, bool),
    }


def test_steps_and_the_end_are_those_of_least_squares_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = rl_training.BC(dataset=box_chain(12), hidden_sizes=[8], device="cpu")
    for start, data in (
        (rl_training.load(policy_with(0.8, tmp_path)), chain(12, 3)),
        (boxes, box_chain(12)),
    ):
        dataset = load_transition_dataset(data, spaces=start.algorithm.spaces)
        agent, counts = untrained(start, dataset)
        shared: dict[str, Any] = {"stochastic": dataset.spaces.is_discrete}
        for horizon, value_range in ((1, None), (4, None), (4, (-0.3, 0.3))):
            options = Options(gamma=0.95, horizon=horizon, value_range=value_range, **shared)
            given = agent, dataset, counts, options
            if value_range is None:
                agent.see_rewards(-100.0, 100.0)  # nothing is out of reach
            found = last_layer.solved_critic(*given)
            np.testing.assert_allclose(
                found.heads[-1], by_numpy(*given, steps=horizon), atol=1e-4, err_msg=str(options)
            )
            if horizon == 1:
                continue
            mistakes = ["counts", "prior", "ends"] if value_range is None else ["clipping"]
            if dataset.spaces.is_discrete:
                mistakes += ["logged action", "pooling", "drawn to zero"]
            for wrong in mistakes:
                other = by_numpy(*given, steps=horizon, wrong=wrong)
                assert np.abs(np.asarray(found.heads[-1]) - other).max() > 5e-3, wrong
            drawn = last_layer.solved_critic(*given, draw=7).heads[-1]
            np.testing.assert_allclose(drawn, by_numpy(*given, horizon, draw=7), atol=1e-4)
            if dataset.spaces.is_discrete:
                for seed, wrong in ((7, "scatter"), (8, ""), (None, "")):
                    other = by_numpy(*given, horizon, wrong=wrong, draw=seed)
                    assert np.abs(np.asarray(drawn) - other).max() > 5e-3, (seed, wrong)
            after = found.state_values(dataset.observations, np.zeros(len(dataset), np.int64))
            np.testing.assert_array_equal(after, 0.0)
        endless = Options(gamma=0.9, **shared)
        ends: dict[int | None, Floats] = {}
        for draw in (None, 3):
            at_once = last_layer.solved_critic(agent, dataset, counts, endless, draw)
            with monkeypatch.context() as patch:
                patch.setattr(last_layer, "MOST_UNKNOWNS", 0)
                by_steps = last_layer.solved_critic(agent, dataset, counts, endless, draw)
            wanted = by_numpy(agent, dataset, counts, endless, steps=150, draw=draw)
            np.testing.assert_allclose(by_steps.heads[-1], wanted, atol=1e-3)
            ends[draw] = np.asarray(at_once.heads[-1].double())
            if draw is None:
                np.testing.assert_allclose(ends[draw], wanted, atol=1e-3)
        if dataset.spaces.is_discrete:  # the end has the scatter around values without noise
            one, none = (
                by_numpy(agent, dataset, counts, endless, 150, "scatter", draw)
                for draw in (3, None)
            )
            added, unit = ends[3] - ends[None], one - none
            scatter = (added * unit).sum() / (unit**2).sum()
            assert 1e-3 < scatter < 1.0
            np.testing.assert_allclose(added, scatter * unit, atol=1e-3)


def test_sums_over_many_rows_are_exact_beside_the_ridge() -> None:
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(6, 65, generator=generator)
    rows = torch.relu(torch.randn(100_000, 6, generator=generator) @ mixed + 1.0)
    exact = rows.double().T @ rows.double()
    wrong = torch.linalg.matrix_norm(last_layer._gram(rows, rows) - exact, 2)
    # an error as large as the ridge makes sums of collinear features that cannot be solved
    assert float(wrong) < 0.1 * last_layer.RIDGE * float((rows**2).mean())


def test_an_action_never_taken_has_the_common_head_and_a_usual_one_its_own() -> None:
    rng = np.random.default_rng(2)
    features = rng.normal(size=(3, 20_000, 4))
    own = np.array([[1.0, 0.0, 2.0, -1.0], [0.0, 1.0, 2.0, -1.0], [0.0] * 4])
    taken = torch.tensor([20_000, 20_000, 0])
    rows = [features[a, : int(taken[a])] for a in range(3)]
    grams = torch.from_numpy(np.stack([x.T @ x for x in rows]))
    right = torch.from_numpy(np.stack([x.T @ (x @ w) for x, w in zip(rows, own, strict=True)]))
    heads_of = pooling.PooledHeads(grams, taken, 1e-3, torch.zeros(3, 4), draw=0)
    found = heads_of.solve(right)
    np.testing.assert_allclose(found[:2], own[:2], atol=1e-3)
    np.testing.assert_allclose(found[2], own[:2].mean(0), atol=1e-3)
    assert heads_of.noise is not None
    # a mean of 1 / sqrt(0.3 rows per feature) where nothing is known, nearly none elsewhere
    drawn = [
        pooling.PooledHeads(grams, taken, 1e-3, torch.zeros(3, 4), draw=i).noise for i in range(400)
    ]
    spread = torch.stack([one for one in drawn if one is not None]).std(0)
    assert float(spread[:2].max()) < 0.02
    np.testing.assert_allclose(spread[2], 1.0 / np.sqrt(pooling.VISITS * 4), rtol=0.35)
